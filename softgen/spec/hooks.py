"""Hooks: what is done to each element on its way in, before the function sees it.

A kernel's text depends on which hooks there are, and their values are arguments of a launch. So
far they are for generated kernels and the emulator: no call takes one.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.spec.dtypes import DType
from softgen.spec.operands import Extent, Operand


@dataclass(frozen=True)
class Hook(abc.ABC):
    """A modifier of elements on their way in: an operand, and what it does to them."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As in names of kernels: lower-case letters."""

    @property
    @abc.abstractmethod
    def formula(self) -> str:
        """What stands for x, for the header of an emitted file."""

    @property
    @abc.abstractmethod
    def accepts(self) -> str:
        """Which values it may have, in words."""

    @abc.abstractmethod
    def operand(self, compute: DType) -> Operand:
        """Return what the kernel takes for it; `compute` is the type of all arithmetic."""

    @property
    @abc.abstractmethod
    def example(self) -> float:
        """A value for tests."""

    @abc.abstractmethod
    def apply(self, x: Any, value: Any) -> Any:
        """Return the modified elements, rounded once in the type of `x` and `value`."""

    @classmethod
    def of(cls, value: Hook | str) -> Hook:
        """Return the hook called `value`; InvalidValueError names the choices."""
        if isinstance(value, Hook):
            return value
        if not isinstance(value, str):
            raise InvalidTypeError(f"a hook is given by its name, got {value!r}")
        known = {hook.name: hook for hook in HOOKS}
        if value not in known:
            raise InvalidValueError(unknown("hook", value, known))
        return known[value]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scale(Hook):
    """Multiply by a number above 0, as 1 / temperature: it moves no maximum, and keeps -inf."""

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "scale"

    @property
    def formula(self) -> str:
        """What stands for x."""
        return "scale * x"

    @property
    def accepts(self) -> str:
        """Which values it may have: others, times the -inf of absent columns, are NaN."""
        return "finite and above 0"

    def operand(self, compute: DType) -> Operand:
        """Return a number of the type of the arithmetic."""
        return Operand("scale", compute, Extent.NUMBER, result=False, cuda="Compute")

    @property
    def example(self) -> float:
        """A number whose products are rounded."""
        return 0.7

    def apply(self, x: Any, value: Any) -> Any:
        """Return the products."""
        return x * value


SCALE = Scale()
HOOKS: tuple[Hook, ...] = (SCALE,)
