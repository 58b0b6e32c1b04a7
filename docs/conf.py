"""How Sphinx makes the site of docs/: `python docs/build.py` builds all of it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "softgen"
author = "the authors of softgen"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["explorer", "static"]
default_role = "literal"  # one backtick in a docstring

# Anchors as a repository's pages have them.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin below

# What runs on a GPU alone. PyTorch has to be there, any build of it.
autodoc_mock_imports = ["cupy", "cupy_backends", "cupyx"]
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "softgen"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
