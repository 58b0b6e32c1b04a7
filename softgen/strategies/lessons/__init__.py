"""Kernels for teaching: the steps of FastSoftmax's ladder that nothing else needs."""
