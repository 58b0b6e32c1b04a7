"""Which folders are used: nobody else could have changed what they hold, or where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from softgen.cli.run_report import keep_source
from softgen.disk import folders, owned
from softgen.problems.arch import arch_named
from softgen.source.generate import generate
from softgen.strategies.safe import Safe
from softgen.tuning import cache
from tests.cpu.tuning.test_cache import ENTRY
from tests.helpers.cli_helpers import document, ok
from tests.helpers.entries import H200

NONE = {"tuned": 0, "texts": 0, "code": 0, "emulator": 0, "sources": 0}


@pytest.fixture(autouse=True)
def forget(own_cache: Path) -> None:
    cache._memory.clear()
    cache._warn_once.cache_clear()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Return a folder of somebody's own, with a file of a name that softgen gives."""
    folder = tmp_path / "documents"
    folder.mkdir(mode=0o700)
    (folder / "softmax_f32_8_safe_b32-0123456789abcdef.txt").write_text("mine")
    return folder


@pytest.mark.parametrize("kind", owned.KINDS)
def test_a_linked_folder_is_not_followed(kind: str, own_cache: Path, documents: Path) -> None:
    """In a folder that others can write to, it may be anybody's link."""
    (own_cache / kind).symlink_to(documents)
    for look in (folders.found, folders.made):
        with pytest.raises(PermissionError, match="it is a symbolic link"):
            look(kind)
    assert cache.clear() == cache.Cleared(NONE, {kind: "it is a symbolic link"})
    assert len(list(documents.iterdir())) == 1


@pytest.mark.usefixtures("host_built")
def test_a_source_is_not_kept_behind_a_link(own_cache: Path, documents: Path) -> None:
    (own_cache / "sources").symlink_to(documents)
    result = ok("run", "--device", "cpu", "--rows", 1, "--cols", 8, "--json")
    assert f"folder {own_cache}/sources cannot be written (it is a symbolic link)" in result.stderr
    assert document(result)["source"] is None
    assert len(list(documents.iterdir())) == 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folder_that_others_can_replace_is_not_used(
    depth: int, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sticky ones belong to the way, and the way is followed up to where nobody else can write."""
    chain = [own_cache, own_cache / "a", own_cache / "a" / "b"]
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(chain[2]))
    assert cache.store(ENTRY) is not None
    for folder in chain[2 - depth + 1 :]:
        folder.chmod(0o1777)
    assert cache.load(ENTRY.key, H200) == ENTRY
    chain[2 - depth].chmod(0o777)
    assert cache.load(ENTRY.key, H200) is None
    assert cache.store(ENTRY) is None
    assert f"others can write to {chain[2 - depth]}" in caplog.text
    chain[2 - depth].chmod(0o1777)  # as /tmp is
    cache._memory.clear()
    assert cache.load(ENTRY.key, H200) == ENTRY


def test_a_folder_below_another_users_is_not_used(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever a folder belongs to can rename what it holds."""
    folder = folders.made("tuned")
    lstat = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        info = lstat(path)
        if path != own_cache:
            return info
        return os.stat_result((*info[:4], info.st_uid + 1, *info[5:10]))

    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(PermissionError, match=f"{own_cache} belongs to another user"):
        folders.found("tuned")
    assert folder.is_dir()


@pytest.mark.parametrize("cache_folder", ["", "new/cache"])
def test_nothing_is_made_below_a_folder_that_is_unsafe(
    cache_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / cache_folder))
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match=f"others can write to {tmp_path}"):
        folders.made("tuned")
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o1777)  # as /tmp is: nobody else can rename what we make
    assert folders.made("tuned").is_dir()


def test_folders_on_the_way_are_for_the_owner_whatever_the_umask(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With umask 002 they were 775, and then refused as others can write to them."""
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(own_cache / "a" / "b"))
    previous = os.umask(0o002)
    try:
        assert folders.made("tuned").is_dir()
    finally:
        os.umask(previous)
    assert (own_cache / "a").stat().st_mode & 0o777 == 0o700


def test_a_link_on_the_way_is_followed_where_only_we_could_change_it(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = tmp_path / "place", tmp_path / "real"
    place.mkdir(mode=0o700)
    real.mkdir(mode=0o700)
    (place / "link").symlink_to(real)
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(place / "link" / "cache"))
    assert folders.made("tuned").samefile(real / "cache" / "tuned")
    place.chmod(0o777)
    with pytest.raises(PermissionError, match=f"others can write to {place}"):
        folders.found("tuned")
    (own_cache / "way").symlink_to(place / "link")  # a link to a link
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(own_cache / "way" / "cache"))
    with pytest.raises(PermissionError, match=f"others can write to {place}"):
        folders.found("tuned")
    place.chmod(0o700)
    assert folders.found("tuned") == own_cache / "way" / "cache" / "tuned"


def test_dots_behind_a_link_lead_where_the_system_says(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there" / "inner").mkdir(parents=True, mode=0o700)
    (own_cache / "link").symlink_to(tmp_path / "there" / "inner")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(own_cache / "link" / ".." / "c"))
    assert folders.directory() == tmp_path / "there" / "c"
    assert cache.store(ENTRY) == tmp_path / "there" / "c" / "tuned" / ENTRY.key.file_name
    assert cache.load(ENTRY.key, H200) == ENTRY
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(own_cache / "missing" / ".." / "c"))
    assert cache.store(ENTRY) == own_cache / "c" / "tuned" / ENTRY.key.file_name


def test_a_relative_folder_whose_place_is_gone_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", "here")
    gone.rmdir()
    assert cache.load(ENTRY.key, H200) is None
    assert cache.store(ENTRY) is None
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert cache.clear().deleted == NONE
    (record,) = caplog.records
    assert "the current folder was deleted" in record.getMessage()


def test_a_home_of_no_name_is_no_home(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """HOME= made /.cache/softgen."""
    for name in ("SOFTGEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "")
    assert not folders.directory().is_absolute()
    assert cache.store(ENTRY) is None
    assert cache.load(ENTRY.key, H200) == ENTRY
    (record,) = caplog.records
    assert "there is no home folder" in record.getMessage()


# What is softgen's own


@pytest.mark.parametrize("kind", owned.KINDS)
def test_a_folder_that_softgen_makes_is_marked(kind: str) -> None:
    folder = folders.made(kind)
    text = (folder / owned.MARKER).read_text()
    assert text.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert "softgen" in text
    assert owned.mark(kind, folder)


def test_a_folder_of_an_earlier_version_is_marked_when_it_is_written(own_cache: Path) -> None:
    folder = own_cache / "emulator"
    folder.mkdir(mode=0o700)
    (folder / f"unit-{'0' * 32}").write_bytes(b"\x7fELF, an earlier version's")
    (folder / f"host-{'0' * 32}.o").write_bytes(b"\x7fELF, an earlier version's")
    (folder / "tmpabcd_123").mkdir()
    (folder / "tmpabcd_123" / "unit.cpp").write_text("half of a text")
    assert owned.files("emulator", folder) == []
    folders.made("emulator")
    assert len(owned.files("emulator", folder)) == 2
    assert cache.clear() == cache.Cleared({**NONE, "emulator": 2}, {})


def test_clearing_leaves_nothing_in_a_folder_that_was_not_marked(own_cache: Path) -> None:
    for kind in owned.KINDS:
        (own_cache / kind).mkdir(mode=0o700)
    (own_cache / "emulator" / f"unit-{'0' * 32}").write_bytes(b"\x7fELF, an earlier version's")
    assert cache.clear() == cache.Cleared({**NONE, "emulator": 1}, {})
    assert {kind: list((own_cache / kind).iterdir()) for kind in owned.KINDS} == {
        kind: [] for kind in owned.KINDS
    }


@pytest.mark.parametrize("name", ["chapter1.md", "tmpabcd_123", owned.MARKER])
def test_a_folder_with_a_file_of_others_is_not_marked(name: str, own_cache: Path) -> None:
    folder = own_cache / "tuned"
    folder.mkdir(mode=0o700)
    (folder / name).write_text("mine")
    (folder / ENTRY.key.file_name).write_text("mine too")
    folders.made("tuned")
    assert not owned.mark("tuned", folder)
    assert owned.files("tuned", folder) == []
    assert "tuned" in cache.clear().left
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, ENTRY.key.file_name])
    assert (folder / name).read_text() == "mine"


SOURCE = generate("softmax", "float32", 8, variant=Safe(256))
SM_90 = arch_named("sm_90")
# Names that softgen gives, of files that a user may well have, and what they hold.
OF_A_USER = [
    ("tuned", ENTRY.key.file_name, "{}"),
    ("texts", f"{SOURCE.name}-0123456789abcdef.txt", SOURCE.text),
    ("code", f"{SOURCE.name}-sm_90.cubin", "mine"),
    ("emulator", f"unit-{'0' * 32}", "mine"),
    ("emulator", f"host-{'0' * 32}-{'0' * 32}.o", "mine"),
    ("emulator", "tmpabcd_123/chapter1.md", "mine"),
    ("emulator", "build-abcd_123/chapter1.md", "mine"),
    ("sources", f"{SOURCE.name}.cu", "// my kernel"),
    ("sources", f"{SOURCE.name}.cu", SOURCE.text),
    ("sources", f".{SOURCE.name}.cu.abcdefgh.tmp", "mine"),
    ("tuned", f".{owned.MARKER}.abcdefgh.tmp", "mine"),
]


@pytest.mark.parametrize(("kind", "name", "text"), OF_A_USER)
def test_a_name_alone_makes_no_file_softgens(
    kind: str, name: str, text: str, own_cache: Path
) -> None:
    """It was the only file in its folder, which softgen then took for an earlier version's."""
    file = own_cache / kind / name
    file.parent.mkdir(mode=0o700, parents=True)
    file.write_text(text)
    os.utime(file.parent, (0, 0))
    os.utime(file, (0, 0))
    folders.made(kind)
    assert not (own_cache / kind / owned.MARKER).exists()
    cleared = cache.clear()
    assert cleared.left == {kind: "softgen did not make it, or not all that it holds"}
    assert file.read_text() == text


def test_a_kept_source_is_the_text_and_a_line_that_proves_it(own_cache: Path) -> None:
    path = own_cache / "sources" / f"{SOURCE.name}.cu"
    assert keep_source(SOURCE.variant, SM_90) == str(path)
    text, _, last = path.read_text().rpartition("\n// Kept by softgen")
    assert f"{text}\n" == SOURCE.text
    assert last.count("\n") == 1
    assert cache.clear() == cache.Cleared({**NONE, "sources": 1}, {})
    assert not path.exists()


@pytest.mark.parametrize("edited", ["// mine\n", "{}// more\n", "// before\n{}", ""])
def test_a_source_that_was_edited_is_neither_deleted_nor_replaced(
    edited: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own_cache / "sources" / f"{SOURCE.name}.cu"
    keep_source(SOURCE.variant, SM_90)
    text = edited.format(path.read_text())
    path.write_text(text)
    assert keep_source(SOURCE.variant, SM_90) is None
    assert f"{path} was edited, or is not softgen's; the source is not kept" in " ".join(
        capsys.readouterr().err.split()
    )
    assert cache.clear() == cache.Cleared(NONE, {})
    assert path.read_text() == text


def test_a_source_that_an_earlier_version_kept_is_not_deleted(own_cache: Path) -> None:
    """It has no seal: it is sealed where it is as today's, and is the user's where it is not."""
    path = folders.made("sources") / f"{SOURCE.name}.cu"
    path.write_text(SOURCE.text)
    assert cache.clear() == cache.Cleared(NONE, {})
    assert keep_source(SOURCE.variant, SM_90) == str(path)
    assert path.read_bytes() == owned.sealed(SOURCE.text.encode())
    for edited in (SOURCE.text.replace("kBlockSize", "kThreads"), SOURCE.text + "// my own work\n"):
        path.write_text(edited)
        assert keep_source(SOURCE.variant, SM_90) is None
        assert cache.clear() == cache.Cleared(NONE, {})
        assert path.read_text() == edited
