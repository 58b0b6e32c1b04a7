"""A differential run: drawn kernels on drawn rows, against a reference that is not softgen's.

`python -m tests.differential 4000` draws by a seed. `rows.py`, `functions.py`, `dropout.py`,
`storage.py` and `bounds.py` are the reference: they import NumPy and each other, and follow the
pages of docs/. What draws and what runs kernels uses softgen.
"""
