"""Whether variants compute what they should."""
