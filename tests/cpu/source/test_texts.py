"""Texts kept on disk: what was emitted, or emitted again, whatever has happened to the file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softgen.disk import owned
from softgen.source import store as texts
from softgen.source.render import Source, render
from softgen.source.store import source_of, state
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, parse_name
from softgen.tuning import cache

VARIANT = parse_name("log_softmax_bf16_4096_block_p8_c32_g128_b128_m8")


def names(folder: Path) -> list[str]:
    """Return what lies in a folder beside the marker of softgen's own."""
    return sorted(path.name for path in folder.iterdir() if path.name != owned.MARKER)


@pytest.fixture
def kept(own_cache: Path) -> Path:
    """Return the file of VARIANT's text, which is there."""
    source_of(VARIANT)
    (path,) = (own_cache / "texts").glob("*.txt")
    return path


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Return a list to which every variant is added that is emitted from now on."""
    found = []

    def emit(variant: Variant) -> Source:
        found.append(variant)
        return render(variant)

    monkeypatch.setattr(texts, "render", emit)
    return found


def test_a_kept_text_is_the_emitted_one(kept: Path, emitted: list[Variant]) -> None:
    assert source_of(VARIANT) == render(VARIANT)
    assert emitted == []
    assert kept.name == f"{VARIANT.name}-{state()}.txt"


def test_another_process_with_kept_texts_loads_no_jinja(kept: Path) -> None:
    program = (
        "import sys\n"
        "from softgen.source.store import source_of\n"
        "from softgen.strategies.variants import parse_name\n"
        f"print(source_of(parse_name({VARIANT.name!r})).sha256, 'jinja2' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [render(VARIANT).sha256, "False"]


def truncate(data: bytes) -> bytes:
    return data[:-20]


def change_the_kernel(data: bytes) -> bytes:
    assert b"kCols = 4096" in data
    return data.replace(b"kCols = 4096", b"kCols = 4095")


def change_the_digest(data: bytes) -> bytes:
    return b"0" + data[1:] if data[:1] != b"0" else b"1" + data[1:]


def not_text(data: bytes) -> bytes:
    return b"\xff\n\xff"


@pytest.mark.parametrize(
    "damage", [truncate, change_the_kernel, change_the_digest, not_text, lambda data: b""]
)
def test_a_damaged_text_is_emitted_and_kept_anew(
    kept: Path, emitted: list[Variant], damage: Callable[[bytes], bytes]
) -> None:
    good = kept.read_bytes()
    kept.write_bytes(damage(good))
    assert source_of(VARIANT) == render(VARIANT)
    assert emitted == [VARIANT]
    assert kept.read_bytes() == good


def test_texts_of_other_templates_are_deleted(kept: Path) -> None:
    old = kept.with_name(f"{VARIANT.name}-0123456789abcdef.txt")
    kept.rename(old)
    other = Variant(VARIANT.problem, Safe(128))
    source_of(other)
    assert names(kept.parent) == [f"{other.name}-{state()}.txt"]


def test_a_folder_that_others_can_write_to_is_not_read(kept: Path, emitted: list[Variant]) -> None:
    kept.parent.chmod(0o777)
    before = kept.read_bytes()
    assert source_of(VARIANT) == render(VARIANT)
    assert emitted == [VARIANT]
    assert kept.read_bytes() == before


@pytest.mark.parametrize("place", ["/dev/null/cache", "~nobody_of_this_name/cache"])
def test_without_a_folder_the_text_is_emitted(
    place: str, emitted: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", place)
    assert source_of(VARIANT) == render(VARIANT)
    assert emitted == [VARIANT]


def test_a_full_disk_loses_nothing(
    own_cache: Path, emitted: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("softgen.disk.checked.write_whole", full)
    assert source_of(VARIANT) == source_of(VARIANT) == render(VARIANT)
    assert emitted == [VARIANT] * 2
    assert names(own_cache / "texts") == []


def test_clearing_the_cache_deletes_the_texts(kept: Path) -> None:
    (kept.parent / "chapter1.md").write_text("mine")
    assert cache.clear().deleted == {
        **{"tuned": 0, "texts": 1, "code": 0},
        **{"emulator": 0, "sources": 0},
    }
    assert names(kept.parent) == ["chapter1.md"]


def signed(text: bytes, name: str = VARIANT.name, templates: str | None = None) -> bytes:
    """Return a file of `text` as softgen would write it."""
    head = f"{name}\0{templates or state()}\0".encode()
    return hashlib.sha256(head + text).hexdigest().encode() + b"\n" + text


@pytest.mark.parametrize(
    "data",
    [
        signed(b"\xff\xfe, which is not UTF-8"),
        signed(b"// a text without the kernel\n"),
        signed(render(VARIANT).text.encode(), name="softmax_f32_1000_safe_b256"),
        signed(render(VARIANT).text.encode(), templates="0123456789abcdef"),
        render(VARIANT).sha256.encode() + b"\n" + render(VARIANT).text.encode(),
    ],
    ids=["binary", "no kernel", "another variant's", "other templates'", "of the text alone"],
)
def test_a_digest_is_of_the_text_its_variant_and_its_templates(
    data: bytes, kept: Path, emitted: list[Variant]
) -> None:
    good = kept.read_bytes()
    assert good == signed(render(VARIANT).text.encode())
    kept.write_bytes(data)
    assert source_of(VARIANT) == render(VARIANT)
    assert emitted == [VARIANT]
    assert kept.read_bytes() == good


def test_a_fifo_in_place_of_a_text_is_replaced(kept: Path, emitted: list[Variant]) -> None:
    good = kept.read_bytes()
    kept.unlink()
    os.mkfifo(kept)
    assert source_of(VARIANT) == render(VARIANT)
    assert kept.read_bytes() == good


def test_a_folder_among_the_texts_does_not_stop_keeping(kept: Path) -> None:
    for name in ("notes", f"{VARIANT.name}-0123456789abcdef.txt"):
        (kept.parent / name).mkdir()
    other = Variant(VARIANT.problem, Safe(128))
    source_of(other)
    assert (kept.parent / f"{other.name}-{state()}.txt").is_file()
    assert kept.is_file()


def test_what_was_there_before_softgen_is_not_deleted(own_cache: Path) -> None:
    folder = own_cache / "texts"
    folder.mkdir(mode=0o700)
    mine = folder / "chapter1.md"
    mine.write_text("mine")
    source_of(VARIANT)
    old = folder / f"{VARIANT.name}-0123456789abcdef.txt"
    old.write_text("a name of softgen's in a folder that is not")
    source_of(Variant(VARIANT.problem, Safe(128)))
    cleared = cache.clear()
    assert cleared.deleted["texts"] == 0
    assert "softgen did not make it" in cleared.left["texts"]
    assert mine.read_text() == "mine"
    assert old.exists()
    assert not (folder / owned.MARKER).exists()
