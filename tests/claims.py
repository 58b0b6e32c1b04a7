"""Every figure of README, CONTRIBUTING and docs/, with the CSV file that it comes from.

A figure on a page is one of five:

- on a page of docs/results/, all of which is written from a file: `results_page`;
- in a table between markers, which is written from a file: `results_page`, `sources_page`, and
  `<!-- published NAME -->` from docs/published/NAME.csv;
- in a sentence of `claims_of`, which makes it anew from the files;
- in a sentence that `claims_of` names as no measurement, with the reason;
- an error.

`python -m tests.claims` lists the first three. `python -m tests.claims write` puts what the files
hold into the pages, where the words of a sentence have stayed.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import results_page, sources_page
from tests.claims_of import KINDS, NO_MEASUREMENT, claims
from tests.figures import DOCS, FIVE

ROOT = DOCS.parent
RESULTS = {f"docs/results/{name}.md": name for name in results_page.files()}
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
ALL = ["README.md", "CONTRIBUTING.md", *(page for page in PAGES if page not in RESULTS)]
WRITTEN: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "docs/performance.md": results_page.SECTIONS,
    "docs/lab/dependent_launch.md": {"matmuls": results_page.of_matmuls},
    **{
        page: {name: sources_page.SECTIONS[name] for name in names}
        for page, names in sources_page.PAGES.items()
    },
}
# Of the sections that are not written from benchmark/<their name>.csv.
FILES_OF = {
    "findings": tuple(f"benchmark/{name}.csv" for name in results_page.files()),
    "matmuls": ("matmuls/between_matmuls.csv",),
    "targets": tuple(f"benchmark/{name}.csv" for name in FIVE),
    "000": ("benchmark/online.csv",),
    "001": ("benchmark/online.csv",),
    "002": ("benchmark/packs.csv",),
    "003": ("benchmark/triton.csv",),
    "004": ("benchmark/fastsoftmax.csv",),
}

CODE = re.compile(r"^( *)```.*?^ *```$", re.MULTILINE | re.DOTALL)
PUBLISHED = re.compile(
    r"^( *)<!-- published (\w+) -->\n.*?^ *<!-- end of published \2 -->$", re.MULTILINE | re.DOTALL
)
SECTION = re.compile(r"<!-- (.+?) -->.*?<!-- end of \1 -->", re.DOTALL)
UNITS = "us|ms|ns|s|seconds?|minutes|hours|times|[GT]B/s|[GT]FLOP/s|GB|GiB"
FIGURE = re.compile(
    rf"(?<![\w.^-])\d+(?:\.\d+)?(?:%|\s(?:{UNITS})\b)|(?<![\w.^-])\d+\.\d+(?![\w.]*\d)"
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def words(text: str) -> str:
    """Return a text with one space between its words."""
    return " ".join(text.split())


def published(name: str) -> list[str]:
    """Return the lines of the table of docs/published/<name>.csv.

    Its first three columns say where and when, for all of it.
    """
    with (DOCS / "published" / f"{name}.csv").open(newline="") as file:
        heads, *rows = [line[3:] for line in csv.reader(file)]
    return sources_page.table(heads, rows)


def uncovered(page: str, text: str) -> list[str]:
    """Return the figures of a page that nothing covers, each with what is around it."""
    text = words(SECTION.sub("", PUBLISHED.sub("", CODE.sub("", text))))
    for claim in claims(page):
        text = text.replace(words(claim.text), "")
    for part in NO_MEASUREMENT.get(page, {}):
        text = text.replace(part, "")
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    for kind in KINDS:
        text = re.sub(kind, "", text)
    return [text[max(0, m.start() - 60) : m.end() + 40] for m in FIGURE.finditer(text)]


def written(page: str) -> str:
    """Return a page with the tables, and the figures of the sentences, that the files hold."""
    text = PUBLISHED.sub(_table, read(page))
    if page in WRITTEN:
        text = sources_page.rendered(text, sections=WRITTEN[page])
    for claim in claims(page):
        text = _with_figures(text, claim.text)
    return text


def _table(match: re.Match[str]) -> str:
    indent, name = match[1], match[2]
    marks = (f"<!-- published {name} -->", f"<!-- end of published {name} -->")
    lines = [marks[0], "", *published(name), "", marks[1]]
    return "\n".join(indent + line if line else "" for line in lines)


def _with_figures(text: str, sentence: str) -> str:
    """Return a page with a sentence's figures in place of those that its words stand around."""
    parts = [re.escape(part) for part in NUMBER.split(words(sentence))]
    known = NUMBER.pattern.join(part.replace(r"\ ", r"\s+") for part in parts)
    found = list(re.finditer(known, text))
    if len(found) != 1:
        return text
    figures = iter(NUMBER.findall(sentence))
    new = NUMBER.sub(lambda _: next(figures), found[0][0])
    return text[: found[0].start()] + new + text[found[0].end() :]


def sources() -> Iterator[tuple[str, str, str]]:
    """Yield of each table and each sentence the page, what it is, and the files."""
    for page, name in RESULTS.items():
        yield page, f"page {name}", f"benchmark/{name}.csv"
    for page in ALL:
        text = read(page)
        for _, name in PUBLISHED.findall(text):
            yield page, f"table {name}", f"published/{name}.csv"
        for name in WRITTEN.get(page, {}):
            files = FILES_OF.get(name, (f"benchmark/{name}.csv",))
            if all((DOCS / file).is_file() for file in files):
                yield page, f"table {name}", ", ".join(files)
        for claim in claims(page):
            yield page, words(claim.text), ", ".join(claim.files)


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        for page, name in RESULTS.items():
            (ROOT / page).write_text(results_page.results(name))
        for page in ALL:
            (ROOT / page).write_text(written(page))
    else:
        for page, what, files in sources():
            print(f"{page}: {what}\n    {files}")
