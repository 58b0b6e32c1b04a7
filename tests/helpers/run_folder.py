"""The folder that all processes of one test run share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder of the run: xdist gives each of its workers one inside of it."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
