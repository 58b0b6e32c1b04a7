"""Paths that a user names, where the system refuses something."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from softgen.disk import outputs


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP])
def test_an_owner_that_cannot_be_given_is_left(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL comes of an owner that a user namespace has no number for."""

    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    path.chmod(0o640)
    monkeypatch.setattr(os, "chown", refuse)
    outputs.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_error_names_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "table.csv"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        outputs.write(path, b"new")
    assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.csv"]
