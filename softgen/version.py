"""The version, for modules of every room."""

__version__ = "0.1.0"
