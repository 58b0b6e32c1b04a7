"""The calls people make, on arrays of CuPy and PyTorch."""
