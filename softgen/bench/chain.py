"""The warm regime: a kernel writes a competitor's input just before it, another reads its output.

So it is in a model, where a small input is still in L2 from the kernel before. Both are plain
copies, and what is timed is the chain of the three.
"""

from __future__ import annotations

from collections.abc import Callable

from softgen.bench import limit
from softgen.bench.buffers import SharedBuffers
from softgen.devices.gpu.replay import Launch

# One copy for every shape and competitor. Its lines are not marked as the first to leave L2, where
# they are to be found, and it takes one pass, as most kernels that are element by element do.
COPY = limit.Sweep(unroll=4, block_size=256, evict_first=False, waves=0, writes=True)


class Chain:
    """The producer and the consumer of one shape, around whoever is timed.

    Launch i of the chain copies a source into input i, runs launch i of the competitor, and copies
    its output into a sink. Inputs and outputs rotate as they do in the cold regime, so each is
    written to a place that has left L2; source and sink are one buffer each. The input is x, and
    the output is the first result: one number a row, for some functions.
    """

    def __init__(self, buffers: SharedBuffers) -> None:
        self.buffers = buffers
        cupy = buffers.player.cupy
        self.source = cupy.empty(buffers.bytes, "uint8")
        self.sink = cupy.empty(buffers.result_bytes, "uint8")
        self.copy_input = limit.sweeper(COPY, buffers, buffers.bytes)
        self.copy_result = limit.sweeper(COPY, buffers, buffers.result_bytes)
        # The data of input 0, which competitors are checked on, also after a chain has run.
        self.copy_input(buffers.allocated.inputs[0], self.source.data.ptr)

    def around(self, launch: Launch, result: Callable[[int], int] | None = None) -> Launch:
        """Return the chain around a competitor, as a launch.

        Args:
            launch: the competitor's, of input i to output i.
            result: returns the device address of the output of launch i where the competitor has
                chosen its own memory.
        """
        allocated, pairs = self.buffers.allocated, self.buffers.pairs
        source, sink = self.source.data.ptr, self.sink.data.ptr

        def chained(i: int) -> None:
            self.copy_input(source, allocated.inputs[i % pairs])
            launch(i)
            self.copy_result(result(i) if result else allocated.outputs[i % pairs], sink)

        return chained
