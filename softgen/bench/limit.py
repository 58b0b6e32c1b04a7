"""The limit: the fastest of several copy kernels that move as many bytes as softmax has to.

A copy reads every element once and writes every element once, as softmax does at best. Which copy
is the fastest depends on the size, so several are tried at every shape, in the same run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from softgen.bench.arena import Arena
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.replay import Launch
from softgen.spec.arch import Arch

PACK_BYTES = 16
UNROLLS = (1, 2, 4, 8)  # few in flight win where there are few bytes, many where there are many
STRIDED_UNROLLS = (4, 8)
BLOCK_SIZES = (128, 256, 512, 1024)

# A step is kUnroll packs a thread, all of whose loads come before its stores, so that many are in
# flight; only the last step of the grid has to look where the data ends.
_SOURCE = """
constexpr int kUnroll = {unroll};

__device__ uint4 load(const uint4* from) {{
  uint4 p;
  asm("ld.global{hint}.v4.b32 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(p.x), "=r"(p.y), "=r"(p.z), "=r"(p.w)
      : "l"(from));
  return p;
}}

__device__ void store(uint4* to, uint4 p) {{
  asm volatile("st.global{hint}.v4.b32 [%0], {{%1, %2, %3, %4}};"
               :
               : "l"(to), "r"(p.x), "r"(p.y), "r"(p.z), "r"(p.w)
               : "memory");
}}

template <bool kWhole>
__device__ void step(const uint4* from, uint4* to, long long left) {{
  uint4 p[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {{
    const int at = i * blockDim.x;
    if (kWhole || at < left) p[i] = load(from + at);
  }}
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {{
    const int at = i * blockDim.x;
    if (kWhole || at < left) store(to + at, p[i]);
  }}
}}

extern "C" __global__ void copy(const char* x, char* y, long long bytes) {{
  const uint4* from = reinterpret_cast<const uint4*>(x);
  uint4* to = reinterpret_cast<uint4*>(y);
  const long long packs = bytes / 16;
  const long long tile = static_cast<long long>(blockDim.x) * kUnroll;
  for (long long first = blockIdx.x * tile; first < packs; first += gridDim.x * tile) {{
    const long long mine = first + threadIdx.x;
    if (first + tile <= packs) {{
      step<true>(from + mine, to + mine, 0);
    }} else {{
      step<false>(from + mine, to + mine, packs - mine);
    }}
  }}
  const long long rest = packs * 16 + threadIdx.x;
  if (blockIdx.x == 0 && rest < bytes) y[rest] = x[rest];
}}
"""


@dataclass(frozen=True)
class Copy:
    """One setting of the copy kernel.

    Attributes:
        unroll: 16-byte accesses of a thread in flight.
        block_size: threads in a block.
        evict_first: whether lines are marked as the first to leave the caches.
        waves: grids that fill the GPU so many times stride over the data; 0 for one pass.
    """

    unroll: int
    block_size: int
    evict_first: bool
    waves: int

    @property
    def label(self) -> str:
        """The setting in short."""
        walk = f"stride{self.waves}" if self.waves else "once"
        return f"u{self.unroll} b{self.block_size} {walk}{' ef' if self.evict_first else ''}"

    def grid(self, size: int, arch: Arch) -> int:
        """Return the blocks to launch for `size` bytes."""
        each = self.unroll * self.block_size * PACK_BYTES
        blocks = max(1, -(-size // each))
        resident = arch.multiprocessors * (arch.threads_per_multiprocessor // self.block_size)
        return min(blocks, self.waves * resident) if self.waves else blocks


def settings() -> Iterator[Copy]:
    """Yield every setting that is tried."""
    for unroll in UNROLLS:
        for block_size in BLOCK_SIZES:
            for evict_first in (False, True):
                yield Copy(unroll, block_size, evict_first, waves=0)
                if unroll in STRIDED_UNROLLS:
                    yield Copy(unroll, block_size, evict_first, waves=1)


def source(unroll: int, evict_first: bool) -> str:
    """Return the CUDA text of a copy kernel."""
    return _SOURCE.format(unroll=unroll, hint=".cs" if evict_first else "")


@functools.cache
def _function(unroll: int, evict_first: bool, device: int) -> Any:
    cupy = require_device()
    module = cupy.RawModule(code=source(unroll, evict_first), backend="nvrtc")
    return module.get_function("copy").kernel


def copier(copy: Copy, arena: Arena) -> Callable[[int, int], None]:
    """Return enqueue(x, y) on device addresses: an input's or output's bytes go from x to y."""
    device = int(arena.player.cupy.cuda.runtime.getDevice())
    function = _function(copy.unroll, copy.evict_first, device)
    grid, size = copy.grid(arena.bytes, arena.arch), arena.bytes

    def enqueue(x: int, y: int) -> None:
        function((grid,), (copy.block_size,), (x, y, size), 0, arena.player.stream)

    return enqueue


def launch_of(copy: Copy, arena: Arena) -> Launch:
    """Return the copy as a competitor: it copies input i to output i."""
    enqueue, pairs = copier(copy, arena), arena.pairs

    def launch(i: int) -> None:
        enqueue(arena.buffers.inputs[i % pairs], arena.buffers.outputs[i % pairs])

    return launch
