"""softgen run --input with files that nobody should trust, and --output that is whole or not."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from softgen.cli import group, npy
from softgen.cli.npy import read_npy
from softgen.cli.run_input import save_npy
from softgen.errors import InvalidTypeError, InvalidValueError
from tests.helpers.cli_helpers import refused

CPU = ("run", "--device", "cpu")


def npy_bytes(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """Return a .npy file with any header text."""
    text = header.encode("latin-1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def described(shape: object, descr: object = "<f4", fortran_order: object = False) -> str:
    return repr({"descr": descr, "fortran_order": fortran_order, "shape": shape})


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"junk")
    return file.getvalue()


HOSTILE = {
    "elements": (npy_bytes(described((10**5, 10**5))), "holds 10000000000 elements"),
    "lengths": (npy_bytes(described((2**62, 2**62))), "elements, which are too many"),
    "no elements": (npy_bytes(described((2**62, 0, 2**62))), "elements, which are too many"),
    "long lengths": (npy_bytes(described((10**40, 4))), "not a tuple of lengths"),
    "true": (npy_bytes(described((True, 4)), bytes(16)), "not a tuple of lengths"),
    "negative": (npy_bytes(described((-4, -4)), bytes(64)), "not a tuple of lengths"),
    "a list": (npy_bytes(described([4]), bytes(16)), "not a tuple of lengths"),
    "floats": (npy_bytes(described((4.0,)), bytes(16)), "not a tuple of lengths"),
    "axes": (npy_bytes(described((1,) * 33), bytes(4)), "33 axes"),
    "order": (npy_bytes(described((4,), "<f4", 0), bytes(16)), "fortran_order"),
    "zip": (zipped(), "archive of several arrays"),
    "zip junk": (b"PK\x03\x04" + bytes(range(200)), "archive of several arrays"),
    "half a zip": (zipped()[:30], "archive of several arrays"),
    "brackets": (npy_bytes("(" * 9000), "no Python literal"),
    "signs": (npy_bytes("-" * 9000 + "1"), "no Python literal"),
    "nested": (npy_bytes("[" * 80 + "]" * 80), "is not a dict"),
    "unhashable": (npy_bytes("{[]: 1}"), "no Python literal"),
    "half a header": (npy_bytes(described((4,)))[:40], "ends after"),
    "a long header": (npy_bytes(" " * 20000, version=(2, 0)), "claims 20000 bytes"),
    "a version": (npy_bytes(described((4,)), version=(9, 0)), "version 9.0"),
    "more keys": (npy_bytes("{'descr': '<f4', 'shape': (4,)}"), "is not a dict"),
    "nothing": (b"", "it begins with b''"),
    "objects": (npy_bytes(described((1,), "|O"), b"\x80\x04N."), "holds pickled Python objects"),
    "a pickle": (b"\x80\x04cos\nsystem\n(S'exit'\ntR.", "it begins with"),
    "records": (npy_bytes(described((1,), [("a", "<f4")]), bytes(4)), "no array of one plain type"),
    "no type": (npy_bytes(described((1,), "<f3"), bytes(4)), "no array of one plain type"),
    "commas": (npy_bytes(described((1,), "f4,O"), bytes(4)), "no array of one plain type"),
    "half the data": (npy_bytes(described((8, 4)), bytes(60)), "after 60 of the 128 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE[name]
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    error = refused(group.USAGE, *CPU, "--input", path)
    assert re.search(message, error), error
    assert str(path) in error
    assert "\n" not in error


def test_a_header_takes_no_memory(tmp_path: Path) -> None:
    """Both what is over the limit, and what the file does not hold."""
    path = tmp_path / "x.npy"
    for shape, limit in (((10**5, 10**5), 2**26), ((10**5, 10**4), 2**40)):
        path.write_bytes(npy_bytes(described(shape), bytes(64)))
        tracemalloc.start()
        with pytest.raises(InvalidValueError, match=r"elements, which|bytes of its"):
            read_npy(path, limit)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


def test_a_sparse_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    """It really has 40 GB, so that its size proves nothing."""
    path = tmp_path / "x.npy"
    header = npy_bytes(described((10**5, 10**5)))
    path.write_bytes(header)
    os.truncate(path, len(header) + 4 * 10**10)
    assert "too many for the CPU emulator" in refused(group.USAGE, *CPU, "--input", path)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_saves_is_read(
    dtype: str, shape: tuple[int, ...], order: Any, tmp_path: Path
) -> None:
    x = np.asarray(np.arange(np.prod(shape)).reshape(shape), dtype, order)
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "x.npy").open("wb") as file:
            np.lib.format.write_array(file, x, version)
        read = read_npy(tmp_path / "x.npy")
        assert (read.dtype, read.shape) == (x.dtype.newbyteorder("="), x.shape)
        assert read.flags.c_contiguous
        assert np.array_equal(read, x)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    data = io.BytesIO()
    np.save(data, x)
    os.write(writer, data.getvalue())
    os.close(writer)
    assert np.array_equal(read_npy(Path(f"/dev/fd/{reader}")), x)
    os.close(reader)


def test_two_hundred_files_of_a_seeded_generator(tmp_path: Path) -> None:
    """Whole files, of which bytes are changed, left out or repeated: read or refused, no more."""
    random = Random(0)
    path = tmp_path / "x.npy"
    read = 0
    for _ in range(200):
        shape = tuple(random.choice((0, 1, 3, 8, 2**20, 2**40)) for _ in range(random.randrange(4)))
        descr = random.choice(("<f4", ">f8", "|O", "<f2", "|V2", "<i4", "", "<M8[ns]", ["<f4"]))
        version = random.choice(((1, 0), (1, 0), (2, 0), (3, 0), (0, 0)))
        order = random.choice((True, False, False, None))
        text = described(shape, descr, order) + random.choice(("", "\n", " " * 40 + "\n"))
        data = bytearray(npy_bytes(text, random.randbytes(random.choice((0, 4, 64, 512))), version))
        for _ in range(random.choice((0, 0, 1, 3))):
            at = random.randrange(len(data))
            match random.randrange(3):
                case 0:
                    data[at] = random.randrange(256)
                case 1:
                    del data[at : at + random.randrange(20)]
                case 2:
                    data[at:at] = data[at : at + random.randrange(200)]
        path.write_bytes(data)
        with contextlib.suppress(InvalidValueError, InvalidTypeError):
            assert read_npy(path, 2**26).size <= 2**26
            read += 1
    assert read >= 10  # else nothing but the first checks was tried


def test_a_result_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "y.npy"
    save_npy(path, np.zeros(4))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_npy(path, np.ones(4))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link.npy").symlink_to(tmp_path / "target.npy")
    save_npy(tmp_path / "link.npy", np.ones(4))
    assert (tmp_path / "link.npy").is_symlink()
    assert np.array_equal(np.load(tmp_path / "target.npy"), np.ones(4))
    reader, writer = os.pipe()
    save_npy(Path(f"/dev/fd/{writer}"), np.ones(4))
    assert np.array_equal(np.load(io.BytesIO(os.read(reader, 4096))), np.ones(4))
    os.close(reader)
    os.close(writer)


def test_numbers_of_rows_that_no_machine_holds() -> None:
    digits = "1" + "0" * 400
    for words in (
        ("run", "--device", "cpu", "--rows", 10**20, "--cols", 0),
        ("run", "--device", "cpu", "--rows", 8, "--cols", digits),
        ("list", "--rows", digits),
        ("show", "--cols", 8, "--rows", digits),
        ("emit", "--cols", 8, "--stdout", "--rows", digits),
        ("list", "--rows", "1" * 5000),
    ):
        error = refused(group.USAGE, *words)
        assert re.search("1099511627776|not a valid int|exceeded maximum size", error), error


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr("softgen.cli.run.compute", none)
    error = refused(group.USAGE, *CPU, "--rows", 2, "--cols", 8)
    assert "8.00 TiB" in error
    assert "fewer rows or columns" in error


def test_the_limits() -> None:
    assert "too many for the CPU emulator" in str(npy.too_many((2**20, 2**7), 2**26))
    assert "the most are 1099511627776" in str(npy.too_many((2**41,), npy.MAX_ELEMENTS))
    assert npy.too_many((2**20, 2**6), 2**26) is None
    assert npy.too_many((2**40, 0), 2**26) is None
