"""Emitting into a folder: what is written, what is left alone, what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from softgen.errors import InvalidValueError
from softgen.source.drift import Difference, check
from softgen.source.emit import write
from softgen.source.generate import generate
from softgen.source.manifest import ONE_KERNEL
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe

ONLINE = generate("softmax", "float32", 1000, variant=Online(4, 2, 128))
SAFE = generate("log_softmax", "float16", 64, variant=Safe(256))
ONLINE_FILE = "softmax_f32_1000_online_p4_u2_b128.cu"
SAFE_FILE = "log_softmax_f16_64_safe_b256.cu"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def kinds(differences: list[Difference]) -> list[tuple[str, str]]:
    return [(found.file, found.kind) for found in differences]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds both sources."""
    made = tmp_path / "kernels"
    write(made, [ONLINE, SAFE])
    return made


def test_the_files_are_the_sources(folder: Path) -> None:
    assert files(folder) == [SAFE_FILE, "manifest.json", ONLINE_FILE]
    assert (folder / ONLINE_FILE).read_text() == ONLINE.text
    assert (folder / SAFE_FILE).read_text() == SAFE.text


def test_the_manifest_describes_every_file(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["generator"], manifest["schema"]) == ("softgen", 2)
    assert list(manifest["files"]) == [SAFE_FILE, ONLINE_FILE]
    assert manifest["files"][ONLINE_FILE] == {
        "name": "softmax_f32_1000_online_p4_u2_b128",
        "symbol": ONLINE.name,
        "problem": {
            "function": "softmax",
            "dtype": "float32",
            "out_dtype": "float32",
            "cols": 1000,
            "alignment": 4,
            "fixed_order": False,
        },
        "strategy": "online",
        "parameters": {
            **{"pack_size": 4, "unroll": 2, "block_size": 128},
            **{"parts": 1, "min_blocks": 1, "pdl": 0},
        },
        "arguments": ["const X* x", "Y* y", "long long rows"],
        "operands": [
            {
                "name": name,
                "dtype": "float32",
                "shape": ["rows", 1000],
                "result": name == "y",
                "may_be": "x" if name == "y" else None,
            }
            for name in ("x", "y")
        ],
        "grid": "rows blocks, or fewer: blocks stride over the rows",
        "launch": dataclasses.asdict(ONLINE.variant.launch),
        "options": ["--std=c++17", "-ftz=true"],
        "oldest_arch": "sm_75",
        "sha256": hashlib.sha256((folder / ONLINE_FILE).read_bytes()).hexdigest(),
    }


def test_files_are_readable_by_others_as_the_umask_says(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        write(tmp_path, [SAFE])
    finally:
        os.umask(previous)
    assert (tmp_path / SAFE_FILE).stat().st_mode & 0o777 == 0o644


def test_a_second_run_touches_nothing(folder: Path) -> None:
    before = {path.name: path.stat() for path in folder.iterdir()}
    report = write(folder, [SAFE, ONLINE])
    assert report.written == () == report.removed == report.edited
    assert set(report.unchanged) == set(before)
    for path in folder.iterdir():
        after = path.stat()
        assert (after.st_mtime_ns, after.st_ino) == (
            before[path.name].st_mtime_ns,
            before[path.name].st_ino,
        )


def test_only_the_changed_file_is_written_again(folder: Path) -> None:
    (folder / SAFE_FILE).unlink()
    report = write(folder, [ONLINE, SAFE])
    assert report.written == (SAFE_FILE,)
    assert (folder / SAFE_FILE).read_text() == SAFE.text


def test_an_edited_file_is_not_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    before[folder / SAFE_FILE] += b"// mine"
    (folder / SAFE_FILE).write_bytes(before[folder / SAFE_FILE])
    with pytest.raises(InvalidValueError, match=rf"{SAFE_FILE} was edited, or is not softgen's"):
        write(folder, [ONLINE, SAFE])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_of_an_older_version_is_written_again(folder: Path) -> None:
    write(folder, [ONLINE, dataclasses.replace(SAFE, text="// older")])
    assert write(folder, [ONLINE, SAFE]).written == (SAFE_FILE, "manifest.json")


def test_check_accepts_what_was_written(folder: Path) -> None:
    assert check(folder, [SAFE, ONLINE]) == []


def test_one_changed_byte_is_a_diff(folder: Path) -> None:
    path = folder / ONLINE_FILE
    path.write_text(ONLINE.text.replace("kUnroll = 2", "kUnroll = 4"))
    (found,) = check(folder, [ONLINE, SAFE])
    assert (found.file, found.kind) == (ONLINE_FILE, "changed")
    lines = found.diff.splitlines()
    assert lines[0] == f"--- {path}"
    removed = [line for line in lines[2:] if line.startswith("-")]
    added = [line for line in lines[2:] if line.startswith("+")]
    assert [line.split(";")[0] for line in removed] == ["-constexpr int kUnroll = 4"]
    assert [line.split(";")[0] for line in added] == ["+constexpr int kUnroll = 2"]


def test_line_ends_and_bytes_that_are_not_text_are_changes(folder: Path) -> None:
    (folder / ONLINE_FILE).write_bytes(ONLINE.text.replace("\n", "\r\n").encode())
    (folder / SAFE_FILE).write_bytes(b"\xff\xfe")
    by_file = {found.file: found for found in check(folder, [ONLINE, SAFE])}
    assert by_file.keys() == {ONLINE_FILE, SAFE_FILE}
    assert "\r" in by_file[ONLINE_FILE].diff
    assert by_file[SAFE_FILE].diff == f"{folder / SAFE_FILE}: not text\n"


def test_a_missing_final_newline_is_marked(folder: Path) -> None:
    (folder / SAFE_FILE).write_text(SAFE.text[:-1])
    (found,) = check(folder, [ONLINE, SAFE])
    assert found.diff.endswith("-}\n\\ No newline at end of file\n+}\n")


def test_missing_files_are_a_diff_from_nothing(folder: Path) -> None:
    (folder / SAFE_FILE).unlink()
    (found,) = check(folder, [ONLINE, SAFE])
    assert (found.file, found.kind) == (SAFE_FILE, "missing")
    assert found.diff.startswith("--- /dev/null\n")
    assert f"+// {SAFE.name}\n" in found.diff


def test_a_missing_folder_lacks_every_file(tmp_path: Path) -> None:
    found = check(tmp_path / "nowhere", [ONLINE])
    assert kinds(found) == [(ONLINE_FILE, "missing"), ("manifest.json", "missing")]
    assert not (tmp_path / "nowhere").exists()


def test_stale_files_are_found_and_deleted(folder: Path) -> None:
    found = check(folder, [ONLINE])
    assert kinds(found) == [("manifest.json", "changed"), (SAFE_FILE, "stale")]
    assert write(folder, [ONLINE]).removed == (SAFE_FILE,)
    assert files(folder) == ["manifest.json", ONLINE_FILE]
    assert check(folder, [ONLINE]) == []


def test_a_stale_file_that_was_edited_is_kept_and_reported(folder: Path) -> None:
    (folder / SAFE_FILE).write_text("// my own version\n")
    report = write(folder, [ONLINE])
    assert (report.removed, report.edited) == ((), (SAFE_FILE,))
    assert (folder / SAFE_FILE).read_text() == "// my own version\n"


def test_strangers_are_left_alone_and_no_fault(folder: Path) -> None:
    for name in ("mine.cu", "notes.txt", ".hidden"):
        (folder / name).write_text("mine\n")
    (folder / "sub").mkdir()
    assert write(folder, [ONLINE, SAFE]).edited == ()
    assert check(folder, [ONLINE, SAFE]) == []
    assert (folder / "mine.cu").read_text() == "mine\n"
    assert (folder / "sub").is_dir()


def test_added_files_leave_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, [SAFE])
    report = write(tmp_path, [ONLINE], ONE_KERNEL)
    assert report.removed == () == report.edited
    assert files(tmp_path) == [SAFE_FILE, "manifest.json", ONLINE_FILE]
    assert check(tmp_path, [SAFE]) == []
    assert check(tmp_path, [ONLINE], ONE_KERNEL) == []


def test_the_order_of_the_sources_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path / "a", [ONLINE, SAFE])
    write(tmp_path / "b", [SAFE, ONLINE, SAFE])
    for name in files(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", [ONLINE_FILE, "manifest.json"])
def test_linked_files_are_refused_before_anything_is_written(folder: Path, name: str) -> None:
    target = folder.parent / "precious"
    target.write_text("keep me\n")
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    (folder / SAFE_FILE).unlink()
    with pytest.raises(InvalidValueError, match=f"{name} is a symbolic link"):
        write(folder, [ONLINE, SAFE])
    assert target.read_text() == "keep me\n"
    assert not (folder / SAFE_FILE).exists()
    assert (name, "changed") in kinds(check(folder, [ONLINE, SAFE]))


def test_a_stale_link_is_refused_too(folder: Path) -> None:
    target = folder.parent / "precious"
    target.write_text(SAFE.text)
    (folder / SAFE_FILE).unlink()
    (folder / SAFE_FILE).symlink_to(target)
    with pytest.raises(InvalidValueError, match="is a symbolic link"):
        write(folder, [ONLINE])
    assert target.read_text() == SAFE.text


@pytest.mark.parametrize("inner", ["", "sub", "sub/deeper"])
def test_a_linked_folder_is_refused(tmp_path: Path, inner: str) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real, target_is_directory=True)
    with pytest.raises(InvalidValueError, match=f"link is a symbolic link.*{real}"):
        write(tmp_path / "link" / inner, [ONLINE])
    with pytest.raises(InvalidValueError, match="is a symbolic link"):
        check(tmp_path / "link" / inner, [ONLINE])
    assert files(real) == []


def test_dots_behind_a_link_are_refused(tmp_path: Path) -> None:
    """The system goes through the link first, so they lead out of the folder before it."""
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    out = tmp_path / "here" / "link" / ".." / "x"
    for look in (lambda: write(out, [SAFE]), lambda: check(out, [SAFE])):
        with pytest.raises(InvalidValueError, match="link is a symbolic link"):
            look()
    assert files(tmp_path / "elsewhere") == ["inner"]
    write(tmp_path / "here" / ".." / "x", [SAFE])  # no link, no harm
    assert files(tmp_path / "x") == [SAFE_FILE, "manifest.json"]


@pytest.mark.parametrize("part", ["problem", "sha256", "sets"])
@pytest.mark.parametrize("value", [5, None, [5], True])
def test_a_manifest_with_an_entry_of_another_type_is_no_manifest(
    part: str, value: object, folder: Path
) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][SAFE_FILE][part] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidValueError, match=f"not a manifest that softgen wrote.*{SAFE_FILE}"):
        write(folder, [ONLINE])
    assert ("manifest.json", "changed") in kinds(check(folder, [ONLINE]))


def test_a_fifo_in_place_of_the_manifest_is_a_difference(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    assert kinds(check(folder, [ONLINE, SAFE])) == [("manifest.json", "changed")]


@pytest.mark.parametrize(
    "name", ["../escape", "/tmp/escape", "a/b", "..", "", "a.b", "UPPER", "a b", "a\n", "x" * 300]
)
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    source = dataclasses.replace(ONLINE, name=name)
    with pytest.raises(InvalidValueError, match="cannot name a file"):
        write(tmp_path / "kernels", [source])
    assert files(tmp_path) == []


def test_a_manifest_cannot_name_files_outside_to_be_deleted(folder: Path) -> None:
    victim = folder.parent / "victim.cu"
    victim.write_text("keep me\n")
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(victim.read_bytes()).hexdigest()
    manifest["files"]["../victim.cu"] = {"sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidValueError, match="not a manifest that softgen wrote"):
        write(folder, [ONLINE])
    assert victim.read_text() == "keep me\n"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"name": "a web app"}', '{"generator": "softgen", "schema": 99}'],
)
def test_a_manifest_of_somebody_else_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InvalidValueError, match="choose another folder"):
        write(tmp_path, [ONLINE])
    assert files(tmp_path) == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_text() == text
    assert ("manifest.json", "changed") in kinds(check(tmp_path, [ONLINE]))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("")
    with pytest.raises(InvalidValueError, match="is a file; give a folder"):
        write(tmp_path / "kernels", [ONLINE])


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / ONLINE_FILE).mkdir()
    with pytest.raises(InvalidValueError, match="is not a regular file"):
        write(tmp_path, [ONLINE])


def test_two_texts_of_one_name_are_refused(tmp_path: Path) -> None:
    other = dataclasses.replace(ONLINE, text="// another\n")
    with pytest.raises(InvalidValueError, match=f"two different sources are called {ONLINE.name}"):
        write(tmp_path, [ONLINE, other])


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    write(folder, [ONLINE, dataclasses.replace(SAFE, text="old\n")])
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(folder, [ONLINE, SAFE])
    assert files(folder) == [SAFE_FILE, "manifest.json", ONLINE_FILE]
    assert (folder / SAFE_FILE).read_text() == "old\n"


def test_nothing_over_a_manifest_of_nothing_writes_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, []).written == ("manifest.json",)
    again = write(tmp_path, [])
    assert again.written == ()
    assert again.unchanged == ("manifest.json",)
