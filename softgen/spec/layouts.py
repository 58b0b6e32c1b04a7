"""Layouts: where the elements of a row lie in memory.

A row is what is reduced. `rows` numbers them in the order of the row results, whatever the layout.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout(abc.ABC):
    """Where the elements of a row lie. A subclass is frozen; its fields are compile-time."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """As in names of kernels, behind the columns; empty for the usual layout."""

    @property
    @abc.abstractmethod
    def shape_rule(self) -> str:
        """The shape of an array of elements, for the header of an emitted file; {cols} stands."""

    @abc.abstractmethod
    def in_memory(self, rows: Any) -> Any:
        """Return an array of (rows, cols) as it lies in memory, in C order."""

    @abc.abstractmethod
    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return what lies in memory so as (rows, cols): the inverse of `in_memory`."""


@dataclass(frozen=True)
class Rows(Layout):
    """The last axis of a contiguous array: rows of contiguous elements, one after another."""

    @property
    def label(self) -> str:
        """Nothing: names of kernels are for this layout."""
        return ""

    @property
    def shape_rule(self) -> str:
        """The shape."""
        return "[rows][{cols}], contiguous"

    def in_memory(self, rows: Any) -> Any:
        """Return the array."""
        return rows

    def from_memory(self, array: Any, rows: int, cols: int) -> Any:
        """Return the array of that shape."""
        return array.reshape(rows, cols)


ROWS: Layout = Rows()
