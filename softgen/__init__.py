"""softgen: generates, tunes and launches specialized CUDA softmax kernels."""

__version__ = "0.1.0"
