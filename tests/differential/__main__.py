"""`python -m tests.differential 4000`: so many drawn results, none of which may be wrong.

With `--device cuda` the same kernels run on the current GPU, and behind them a public call for
every tenth result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from softgen.problems.arch import DEFAULT_ARCH, arch_named
from tests.differential.cases import Kernel, kernel
from tests.differential.emulated import Emulator
from tests.differential.run import Report, Runner, differential, public_calls

SEED = 32


def main() -> None:
    """Print what is wrong, what was covered, and how many results are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=int, nargs="?", default=4000, help="at least so many")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--only",
        help="kernel 17 of the seed, or its input 3 as 17.3; call5 is a public call, on a GPU",
    )
    arguments = parser.parse_args()
    report = _run(arguments)
    print(report)
    sys.exit(bool(report.wrong or (report.missing and not arguments.only)))


def _run(arguments: argparse.Namespace) -> Report:
    seed, only = arguments.seed, arguments.only or ""
    arch = arch_named(DEFAULT_ARCH)
    runner: Callable[[Sequence[Kernel]], Runner] = Emulator
    if arguments.device == "cuda":
        from softgen.devices.gpu.device import arch_of, require_device
        from tests.differential.on_gpu import Gpu

        arch, runner = arch_of(int(require_device().cuda.runtime.getDevice())), Gpu
    report = Report()
    if only.startswith("call"):
        numbers = [int(only.removeprefix("call"))]
    elif only:
        number, _, one = only.partition(".")
        drawn = [kernel(seed, int(number), arch)]
        which = int(one) if one else None
        differential(report, 0, seed, arch, runner=runner, drawn=drawn, only=which, say=_say)
        numbers = []
    else:
        differential(report, arguments.results, seed, arch, runner=runner, say=_say)
        numbers = list(range(arguments.results // 10))
    if arguments.device == "cuda":
        from tests.differential.calls import Cupy

        public_calls(report, numbers, seed, Cupy(), say=_say)
    return report


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
