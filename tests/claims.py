"""Every figure of README, CONTRIBUTING and docs/, with the CSV file that it comes from.

A figure on a page is one of four:

- in a table between markers, which is written from a file (`performance_page`, `sources_page`, and
  `<!-- published NAME -->` from docs/published/NAME.csv);
- in a sentence of `claims_of`, made anew from the files;
- in a sentence that `NO_MEASUREMENT` names with the reason;
- an error.

`python -m tests.claims` lists the first two; `python -m tests.claims write` puts the figures of the
files into the pages, where the words of a sentence have stayed.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import performance_page, sources_page
from tests.claims_of import PAGES, Claim
from tests.figures import DOCS

ROOT = DOCS.parent
ALL = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]
WRITTEN = {
    "docs/performance.md": performance_page.SECTIONS,
    "docs/sources.md": sources_page.SECTIONS,
}
# Of the sections that are not written from the file of their name.
FILES_OF = {
    **dict.fromkeys(("000", "001"), ("online",)),
    **{"002": ("packs",), "003": ("triton",), "004": ("fastsoftmax",)},
    "drawn": ("drawn", "drawn-h100"),
    "targets": (*sources_page_five(), "published/targets") if False else (),
}

CODE = re.compile(r"^( *)```.*?^ *```$", re.MULTILINE | re.DOTALL)
PUBLISHED = re.compile(
    r"^( *)<!-- published (\w+) -->\n(.*?)^ *<!-- end of published \2 -->$",
    re.MULTILINE | re.DOTALL,
)
SECTION = re.compile(r"<!-- (.+?) -->.*?<!-- end of \1 -->", re.DOTALL)
UNITS = "us|ms|ns|s|seconds?|minutes|hours|times|[GT]B/s|[GT]FLOP/s|GB"
NUMBER = r"(?<![\w.^-])\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(rf"{NUMBER}(?:%|\s(?:{UNITS})\b)|(?<![\w.^-])\d+\.\d+(?![\w.]*\d)")
