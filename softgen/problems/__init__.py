"""What is asked for: problems, architectures, and how exact a result has to be."""
