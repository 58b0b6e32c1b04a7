"""A function, a hook and a strategy for softgen, each found by its entry point."""
