"""How fast rows over several GPUs should be: bytes over memory and links, and the exchange.

docs/scale.md compares it with what was measured, and says what it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """What a call moves, in reads and writes of the shard and bytes a row.

    Attributes:
        direct: how often the shard is read or written where GPUs exchange in the kernel.
        gathered: the same around a collective.
        sent: bytes a row that each process sends to a collective.
        launches: kernels of the direct exchange, with what reduces losses.
        holds: whether rows stay in registers while other GPUs are waited for.
    """

    direct: int
    gathered: int
    sent: int
    launches: int
    holds: bool = False


WORK: Mapping[str, Work] = {
    "softmax": Work(2, 3, 8, 1, holds=True),
    "logsumexp": Work(1, 1, 4, 2),
    "cross_entropy": Work(3, 3, 12, 7),  # forward and backward
}


@dataclass(frozen=True)
class Machine:
    """GPUs, and what is between them.

    Attributes:
        memory: GB/s of a kernel that reads, or reads and writes.
        launch: microseconds of a launch that has nothing to do, in a graph.
        exchange: microseconds that parts of rows are under way between GPUs of a host.
        held: bytes of rows that the registers hold at once.
        stall: microseconds that each such wave of rows but the first adds while it waits.
        links: GB/s into a GPU from the others of its host.
        hosted: GPUs of a host.
        gather: microseconds of an all-gather of nothing in a host, and of each doubling of hosts.
        network: GB/s into a GPU from other hosts.
    """

    memory: float
    launch: float
    exchange: float
    held: float
    stall: float
    links: float
    hosted: int
    gather: tuple[float, float]
    network: float


# Measured on two (docs/scale.md); gather's second number and the network are assumed.
H200 = Machine(
    memory=4200,
    launch=3,
    exchange=1.5,
    held=19.5e6,
    stall=1.0,
    links=380,
    hosted=8,
    gather=(8, 5),
    network=45,
)


@dataclass(frozen=True)
class Prediction:
    """Microseconds of a call.

    Attributes:
        shard: for the memory of one GPU.
        launches: for launches beside it.
        exchange: for the exchange, beyond what it hides behind.
    """

    shard: float
    launches: float
    exchange: float
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.shard + self.launches + self.exchange)


def predict(
    function: str, rows: int, columns: int, gpus: int, machine: Machine, itemsize: int = 2
) -> Prediction:
    """Return what a call should take on `gpus`, each with as many of the columns.

    Up to the GPUs of a host exchange directly. More gather all pairs on every GPU, in a ring.
    """
    work = WORK[function]
    direct = gpus <= machine.hosted
    passes = work.direct if direct else work.gathered
    shard = passes * rows * math.ceil(columns / gpus) * itemsize / machine.memory / 1e3
    launches = (work.launches - 1) * machine.launch
    if gpus == 1:  # which sends no parts, so that softmax and logsumexp have one launch
        return Prediction(shard, max(0.0, launches - machine.launch), 0.0)
    if direct:
        # A message of 8 bytes has 4 of a part.
        wire = 2 * max(8, work.sent) * rows * (gpus - 1) / machine.links / 1e3
        waves = rows * math.ceil(columns / gpus) * itemsize / machine.held
        stalled = machine.stall * max(0.0, waves - 1) if work.holds else 0.0
        late = machine.exchange + stalled + max(0.0, wire - shard)
        return Prediction(shard, launches, late)
    first, more = machine.gather
    every = work.sent * rows * (gpus - 1)
    wire = every / machine.network / 1e3
    merged = 2 * every / machine.memory / 1e3
    hosts = math.log2(gpus / machine.hosted)
    gather = first + more * hosts + wire + merged
    return Prediction(shard, launches + 2 * machine.launch, gather)
