"""What softgen keeps on disk: whole files, folders that are its own."""
