"""Calls without end: values stay right and memory does not grow, with a GPU or without.

run.py makes calls and measures, of_cupy.py and of_torch.py say which: those that tests/differential
draws, and those of tests/torch_calls.py.
"""
