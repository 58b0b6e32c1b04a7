"""Peers that are settings of softgen's by name: variants, FastSoftmax's steps, packs, articles."""

from __future__ import annotations

from softgen.bench.buffers import SharedBuffers
from softgen.bench.knobs import around
from softgen.bench.peers import (
    Entrant,
    Field,
    Peer,
    Prepare,
    field_of,
    softgen_entrant,
)
from softgen.strategies.lessons.ladder import LADDER, step
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import NAMED
from softgen.strategies.variants import Variant, is_full_name, parse_label, parse_name
from softgen.strategies.warp import Warp

BEST = "-best"  # behind the name of a step whose fastest setting counts

PACKS = (1, 2, 4, 8)
ROWS_PER_ACCESS = (1, 2)
GROUP_WIDTHS = (1, 2, 4, 8, 16, 32)
PACK_BLOCKS = (128, 256)

# The threads of a row in the article's kernels; the benchmark of the paper, which the names
# `article_safe` and `article_online` stand for, has 256.
ARTICLE_THREADS = 512


def variant_peer(name: str) -> Peer | None:
    """Return the peer that runs the variant called `name`, or None if nothing is called like it.

    Raises InvalidValueError for a setting or a full name with a slip in it. Whether it is legal for
    a shape, or of its problem at all, shows when it is prepared.
    """
    if is_full_name(name):
        parse_name(name)
    elif name not in NAMED:
        strategy, _, knobs = name.partition("_")
        if strategy not in {kind.name for kind in all_strategies()}:
            return None
        if knobs:
            parse_label(name)
    return _running(name, name)


def _running(name: str, variant: str) -> Peer:
    def prepare(buffers: SharedBuffers) -> Entrant:
        return softgen_entrant(buffers, variant=variant)

    return Peer(name, prepare)


def ladder_peers() -> list[Peer]:
    """Return the steps of FastSoftmax's ladder, each the setting that its name stands for."""
    return [_running(name, name) for name in LADDER]


def searched_ladder() -> list[Peer]:
    """Return the steps of the ladder, each at the fastest of its block sizes and unrolls."""
    return [Peer(name + BEST, _searched(name)) for name in LADDER]


def _searched(name: str) -> Prepare:
    def prepare(buffers: SharedBuffers) -> Field:
        problem, rows = buffers.problem, buffers.shape.rows
        found = around(step(name, problem), problem, rows, buffers.arch)
        return field_of(buffers, [Variant(problem, setting) for setting in found])

    return prepare


def article_peers() -> list[Peer]:
    """Return the three-pass and the online kernel with the articles' 512 threads a row."""
    settings = {"article_safe": "safe", "article_online": "recurrence"}
    return [
        _running(f"{name}_b{ARTICLE_THREADS}", f"{strategy}_b{ARTICLE_THREADS}")
        for name, strategy in settings.items()
    ]


def pack_peers() -> list[Peer]:
    """Return a peer a pack size and rows per access: the fastest such setting of `warp`."""
    return [
        Peer(pack_name(pack, rows), _packed(pack, rows))
        for rows in ROWS_PER_ACCESS
        for pack in PACKS
    ]


def pack_name(pack: int, rows: int) -> str:
    """Return the name of the peer with packs of `pack` elements and `rows` rows per access."""
    return f"pack{pack}" if rows == 1 else f"pack{pack}-rows{rows}"


def _packed(pack: int, rows: int) -> Prepare:
    def prepare(buffers: SharedBuffers) -> Field:
        problem = buffers.problem
        found = [
            Warp.covering(problem, pack, width, rows, block)
            for width in GROUP_WIDTHS
            for block in PACK_BLOCKS
        ]
        return field_of(buffers, [Variant(problem, setting) for setting in found])

    return prepare
