"""How a row is laid over threads: the strategies, their settings, and the choice among them."""

from __future__ import annotations

from softgen.strategies.base import Strategy, knob
from softgen.strategies.launch import Launch

__all__ = ["Launch", "Strategy", "knob"]
