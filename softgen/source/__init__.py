"""From a variant to its CUDA text, and to folders of texts."""
