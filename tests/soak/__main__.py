"""`python -m tests.soak 1000000`: so many mixed calls, without a wrong value and without growth.

Calls are those that tests/differential draws: functions, types, axes, views, hooks, losses, results
in place. With `--calls torch` they are those of tests/torch_calls.py, with their gradients. A few
hundred are made again and again, in an order of chance; one in ten is of a shape of its own; every
thousandth is drawn anew and compared with what is right. At 10%, 50% and 100% the memory of the
process and of the device is told, without what entries of calls hold, which are bounded.

Without a GPU everything but the driver and its kernels is real; `--device cuda` takes the current
GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import pytest

from tests.soak.run import KINDS, SEED, Place, soak


def main() -> None:
    """Print memory at 10%, 50% and 100%, and what is wrong; exit with 1 if something is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10**6)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--kinds", type=int, default=KINDS, help="calls that are made repeatedly")
    parser.add_argument("--calls", choices=["cupy", "torch"], default="cupy")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTGEN_CACHE_DIR", folder)
        place = _place(arguments.calls, arguments.device == "cuda", patch)
        report = soak(place, arguments.count, arguments.seed, arguments.kinds, say=_say)
    for line in report.wrong:
        print(line)
    print(report)
    sys.exit(bool(report.wrong))


def _place(calls: str, on_gpu: bool, patch: pytest.MonkeyPatch) -> Place:
    if calls == "torch":
        from tests.soak.of_torch import TorchOnGpu, TorchStandIn

        return TorchOnGpu(patch) if on_gpu else TorchStandIn(patch)
    from tests.soak.of_cupy import CupyOnGpu, CupyStandIn

    return CupyOnGpu(patch) if on_gpu else CupyStandIn(patch)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
