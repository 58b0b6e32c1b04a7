"""A function in several processes of one group, over gloo."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

SECONDS = 120

# softgen.distributed and PyTorch import these on first use: in each process that took 4 s.
IMPORTED = (
    *("softgen.distributed.functional", "softgen.distributed.linear"),
    *("torch.distributed.tensor", "torch.fx.experimental.symbolic_shapes", "torch._dynamo"),
)


def run_ranks(
    size: int, body: Callable[..., None], folder: Path, *arguments: Any, dying: Sequence[int] = ()
) -> None:
    """Run body(rank, size, *arguments) in `size` processes; raise what the first of them raised.

    Those that are `dying` may end without a word, and the others do not wait for them behind. The
    processes are forked from one that has imported what they need, which takes 4 s.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED, __name__, body.__module__])
    started = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        request = (theirs, rank, size, str(folder / "store"), body, arguments, bool(dying))
        process = context.Process(target=_rank, args=request)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        waiting = {ours: rank for rank, (_, ours) in enumerate(started)}
        while waiting:
            ready: list[Any] = wait([*waiting], SECONDS)
            assert ready, f"ranks {[*waiting.values()]} did not end within {SECONDS} s"
            for each in ready:
                rank = waiting.pop(each)
                try:
                    fault = each.recv()
                except EOFError:
                    fault = "" if rank in dying else "it died"
                assert not fault, f"rank {rank} of {size}:\n{fault}"
    finally:
        for process, ours in started:
            if process.is_alive():
                process.join(0.2 if process.exitcode is None else 0)
                process.kill()
            process.join()
            ours.close()


def _rank(
    answer: Any, rank: int, size: int, store: str, body: Any, arguments: Any, dying: bool
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        body(rank, size, *arguments)
        if not dying:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        answer.send(traceback.format_exc())
    else:
        answer.send("")
