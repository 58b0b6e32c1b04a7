"""Arrays of another library than NumPy, as CuPy's are: NumPy's functions hand them over to it.

It computes by NumPy, and takes none of NumPy's arrays beside its own, as CuPy refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of that library."""

    def __init__(self, held: Any) -> None:
        self.held = np.asarray(held)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "at":
            return NotImplemented
        given = [_held(each) for each in inputs]
        return _own(getattr(ufunc, method)(*given, **{k: _held(v) for k, v in options.items()}))

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, options: dict[str, Any]
    ) -> Any:
        if function is np.asarray:  # the one that takes NumPy's
            return Array(getattr(arguments[0], "held", arguments[0]))
        options.pop("like", None)
        given = [_held(each) for each in arguments]
        return _own(function(*given, **{k: _held(v) for k, v in options.items()}))

    def __array__(self, *_: Any) -> Any:
        raise TypeError("no array becomes one of NumPy's unasked")

    def __getitem__(self, place: Any) -> Any:
        return _own(self.held[_held(place)])

    def __setitem__(self, place: Any, value: Any) -> None:
        self.held[_held(place)] = _held(value)

    def __len__(self) -> int:
        return len(self.held)

    def __int__(self) -> int:
        return int(self.held)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.held, name)
        return _calling(found) if callable(found) else _own(found)


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        given = [_held(each) for each in arguments]
        return _own(method(*given, **{k: _held(v) for k, v in options.items()}))

    return call


def _held(value: Any) -> Any:
    """Return what NumPy computes with; TypeError for an array that is NumPy's."""
    if isinstance(value, Array):
        return value.held
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(value)(map(_held, value)) if isinstance(value, (tuple, list)) else value


def _own(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_own, value))
    return Array(value) if isinstance(value, (np.ndarray, np.generic)) else value
