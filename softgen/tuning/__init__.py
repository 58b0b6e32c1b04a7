"""Which variant is the fastest, found by timing and remembered."""
