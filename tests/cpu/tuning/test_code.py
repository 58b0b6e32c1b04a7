"""A tuned choice stands by the code that was timed: by its text, without what no compiler reads."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softgen.source.render import render
from softgen.strategies.variants import parse_name
from tests.helpers.cli_helpers import copy_package

BLOCK = "softmax_f32_1024_block_p4_c8_g128_b128_m12"
DROPOUT = "softmax_f32_1024_dropout_block_p4_c8_g128_b128_m6"
LOGSUMEXP = "logsumexp_f32_1024_block_p4_c8_g128_b128_m12"
ONLINE = "finish_f32_1000_online_p4_u2_b128"
NAMES = {BLOCK, DROPOUT, LOGSUMEXP, ONLINE}

HEAD = f"""
from softgen.problems.arch import arch_named
from softgen.strategies.variants import parse_name
from softgen.tuning import cache
from softgen.tuning.entry import Entry, Key
variants = {{name: parse_name(name) for name in {sorted(NAMES)}}}
keys = {{name: Key.of(v.problem, 64, {{"device": "a test"}}) for name, v in variants.items()}}
"""
KEEP = f"""{HEAD}
for name, variant in variants.items():
    cache.store(Entry(keys[name], variant, ()))
"""
LOOK = f"""{HEAD}
print(*(name for name, key in keys.items() if cache.load(key, arch_named("sm_90"))))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package with a cache folder that has a choice of each of NAMES."""
    folder = copy_package(tmp_path_factory.mktemp("package"))
    python(folder, KEEP)
    return folder


@pytest.fixture
def package(copy: Path) -> Iterator[Path]:
    """Return a copy of the package whose choices are stored; what a test edits is put back."""
    paths = {copy / each[0] for each in HARMLESS} | {copy / each[0] for each in CHANGES}
    before = {path: path.read_text() for path in paths}
    yield copy
    for path, text in before.items():
        path.write_text(text)


def python(copy: Path, program: str) -> set[str]:
    """Return the words that a program prints which imports the copy."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        env={**os.environ, "SOFTGEN_CACHE_DIR": str(copy / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


EXHIBITS = "EXHIBITS = (\n"
HARMLESS = [
    ("templates/kernel.cu.j2", "arithmetic in", "computed in"),
    ("templates/functions/logsumexp.cuh.j2", "// The row's result.", "// Reworded.\n\n// It."),
    ("templates/hooks/dropout.cuh.j2", "/*#", "/*# Another remark."),
    ("softgen/problems/hooks/dropout.py", "class Dropout", "# A remark.\nclass Dropout"),
    ("softgen/problems/hooks/known.py", "HOOKS: tuple", "# A remark.\nHOOKS: tuple"),
    ("softgen/source/context.py", "def context", "# A remark.\n\n\ndef context"),
    (
        "softgen/problems/functions/softmax.py",
        EXHIBITS,
        f'{EXHIBITS}    Exhibit("a new one", SOFTMAX, "float32", 8, 1000),\n',
    ),
]


@pytest.mark.parametrize(("part", "line", "instead"), HARMLESS, ids=lambda part: part[:40])
def test_what_changes_no_code_keeps_every_choice(
    part: str, line: str, instead: str, package: Path
) -> None:
    edit(package / part, line, instead)
    assert python(package, LOOK) == NAMES


CHANGES = [
    (
        "templates/functions/logsumexp.cuh.j2",
        "lse[row] = ",
        "lse[row] = 0 + ",
        {LOGSUMEXP},
    ),
    ("templates/strategies/online.cu.j2", "/*% block kernel %*/\n", None, {ONLINE}),
    ("templates/strategies/block.cu.j2", "/*% block kernel %*/\n", None, NAMES - {ONLINE}),
    ("templates/hooks/dropout.cuh.j2", '/*% elif at == "member" %*/\n', None, {DROPOUT}),
]


@pytest.mark.parametrize(("part", "line", "instead", "dropped"), CHANGES)
def test_a_changed_line_of_code_drops_the_choices_whose_texts_have_it(
    part: str, line: str, instead: str | None, dropped: set[str], package: Path
) -> None:
    edit(package / part, line, instead or f"{line}  static_assert(true);\n")
    assert python(package, LOOK) == NAMES - dropped


def edit(path: Path, line: str, instead: str) -> None:
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, instead, 1))


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("int a = 1;\n", True),
        ("// about a\nint a = 1;  // its value\n\n", True),
        ("/* about\n   a */\nint a = 1; /* its value */\n", True),
        ("int  a = 1;\n", False),
        ("int a = 2;  // int a = 1;\n", False),
        ('int a = 1;\nasm("// no comment");\n', False),
    ],
)
def test_code_is_the_text_without_comments_and_blank_lines(text: str, alike: bool) -> None:
    source = render(parse_name(BLOCK))
    code = dataclasses.replace(source, text="int a = 1;\n").code_sha256
    assert (dataclasses.replace(source, text=text).code_sha256 == code) == alike


def test_slashes_in_a_string_are_code() -> None:
    source = render(parse_name(BLOCK))
    texts = [f'asm("a // {word}" : /* {word} */);  // "{word}"\n' for word in ("one", "two")]
    assert len({dataclasses.replace(source, text=text).code_sha256 for text in texts}) == 2


def test_other_options_and_another_launch_are_other_code() -> None:
    source = render(parse_name(BLOCK))
    other = parse_name("softmax_f32_1024_block_p4_c8_g128_b256_m12")
    changed = ({"options": (*source.options, "--use_fast_math")}, {"variant": other})
    found = {dataclasses.replace(source, **each).code_sha256 for each in changed}
    assert len(found | {source.code_sha256}) == 3
