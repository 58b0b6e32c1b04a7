"""A kernel on a GPU: compiled, loaded, launched."""
