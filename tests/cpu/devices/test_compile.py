"""Emitted texts become machine code for every GPU, without a GPU; nothing spills.

NVRTC comes with the [test] extra, so nothing here is skipped.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import itertools
import math
import os
import random
import re
import struct
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from softgen.devices.gpu import compile as compiling
from softgen.devices.gpu.compile import Compiled, compile_offline, toolkit_headers
from softgen.errors import CompileError, MissingDependencyError
from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, best_guess, candidates
from tests import spill_grid
from tests.helpers.kept_builds import machine_code_of
from tests.helpers.single import BOTH
from tests.helpers.whole import WHOLE, part

H200 = arch_named("sm_90")
THOUSAND = Problem.of("softmax", "float32", 1000)

# Without what no kernel uses of NVRTC's own headers: the same machine code in 0.92 of the time.
QUICKER = ("--minimal",)

# NVRTC releases the GIL; under pytest-xdist every core has a worker already.
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


def complaint(variant: Variant, arch: Arch) -> str | None:
    """Return what is wrong with the machine code of `variant`, if anything is."""
    source = render(variant)
    try:
        made = machine_code_of(replace(source, options=(*source.options, *QUICKER)), arch)
    except CompileError as error:
        return str(error)
    launch = variant.launch
    problems = {
        f"spills {made.spill_bytes} bytes at {made.registers} registers": made.spill_bytes,
        # Of a row shorter than a pack one element may be inside, which compilers index.
        f"keeps {made.local_bytes} bytes in local memory": (
            made.local_bytes and variant.problem.cols >= variant.problem.dtype.max_pack
        ),
        f"{made.shared_bytes} bytes shared, not {launch.static_shared_bytes}": (
            made.shared_bytes != launch.static_shared_bytes
        ),
        f"{made.registers} registers do not fit {launch.block_size} threads": (
            not 0 < made.registers * launch.block_size <= arch.registers_per_multiprocessor
        ),
        "no machine code": not made.cubin.startswith(b"\x7fELF"),
        f"warned: {made.log}": "warning" in made.log,
    }
    found = [message for message, wrong in problems.items() if wrong]
    return f"{variant.name} for {arch.name}: {'; '.join(found)}" if found else None


def complaints(variants: Iterable[Variant], arch: Arch) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda variant: complaint(variant, arch), variants)
        return [message for message in found if message is not None]


def most_held(variant: Variant) -> tuple[int, int]:
    """Return the elements that a thread holds and the size of the block, to compare variants."""
    knobs = variant.strategy.knobs
    names = ("cols_per_thread", "rows_per_access", "pack_size", "unroll")
    kept = names[:2] if "cols_per_thread" in knobs else names[2:]
    return math.prod(knobs.get(name, 1) for name in kept), knobs["block_size"]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("arch", list(KNOWN))
def test_every_candidate_for_1000_columns(arch: str, dtype: DType) -> None:
    """Compile each candidate for the H200 and for others in turn, softmax and log_softmax in turn.

    Every architecture meets the greediest setting of each strategy, which spills first, with two of
    the four types, and an 18th of the rest. The turns shift by one from one to the next. Where
    tests run whole, all of both functions are compiled for every architecture.
    """
    known, start = KNOWN[arch], list(KNOWN).index(arch)
    shift = start + list(DType).index(dtype)
    by_algorithm: list[list[Variant]] = [
        list(candidates(Problem.of(algorithm, dtype, 1000), 4096, known)) for algorithm in BOTH
    ]
    if WHOLE:
        assert complaints([*itertools.chain(*by_algorithm)], known) == []
        return
    pairs = enumerate(zip(*by_algorithm, strict=True), start)
    turns = {pair[number % len(pair)]: number for number, pair in pairs}
    greediest = {v.strategy.name: v for v in sorted(turns, key=most_held)}
    assert {"online", "safe"} <= set(greediest)
    always = {*turns} if known is H200 else {*[*greediest.values()][shift % 2 :: 2]}
    chosen = [variant for variant, turn in turns.items() if variant in always or turn % 18 == 0]
    assert complaints(chosen, known) == []


WIDTHS = (1, 7, 33, 256, 2048, 4096, 50257, 131072, 3_000_000_000)


@pytest.mark.parametrize("cols", WIDTHS)
def test_first_choices_for_other_widths(cols: int) -> None:
    """Each strategy's. The types take turns, so that each meets every strategy and every width."""
    types, number = list(DType), WIDTHS.index(cols)
    function = list(BOTH)[cols % 2]
    chosen: list[Variant] = []
    for index, kind in enumerate(all_strategies()):
        for dtype in part(types, len(types), (number + index) % len(types)):
            problem = Problem.of(function, dtype, cols)
            chosen += itertools.islice(candidates(problem, 4096, H200, kind.name), 1)
    assert len(chosen) >= 5
    assert complaints(chosen, H200) == []


@functools.cache
def cases_of_grid() -> list[spill_grid.Case]:
    """Return all cases in an order of chance, the same in each process."""
    cases = spill_grid.cases()
    return random.Random(0).sample(cases, len(cases))


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("arch", list(KNOWN))
def test_best_guesses_of_a_part_of_the_grid(arch: str, dtype: DType) -> None:
    """docs/lab/spills.md has all of the grid."""
    mine = (case for case in cases_of_grid() if case.arch == arch and case.dtype is dtype)
    chosen = [case.guess for case in itertools.islice(mine, 3)]
    assert len(chosen) == 3
    assert complaints(chosen, KNOWN[arch]) == []


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("arch", list(KNOWN))
def test_every_way_to_load_a_row_into_shared_memory(arch: str, dtype: DType) -> None:
    known = KNOWN[arch]
    found = list(candidates(Problem.of("softmax", dtype, 6000), 4096, known, "shared"))
    ways = {variant.strategy.knobs["copy"]: variant for variant in reversed(found)}
    assert len(ways) == min(known.compute_capability[0] - 6, 3)
    assert complaints(found if known is H200 or WHOLE else ways.values(), known) == []


@pytest.mark.parametrize("dtype", list(DType))
def test_chunks_in_registers_do_not_spill(dtype: DType) -> None:
    """Rows that no ring holds: registers are nearly full. Types take turns, as functions do."""
    problems = [Problem.of(algorithm, dtype, 2**26 // dtype.itemsize) for algorithm in BOTH]
    by_algorithm = [list(candidates(problem, 4, H200, "cooperative")) for problem in problems]
    turns = [pair[number // 2 % 2] for number, pair in enumerate(zip(*by_algorithm, strict=True))]
    chosen = part(turns, 2, [*DType].index(dtype) % 2)
    assert len(chosen) >= 2
    assert chosen[0].strategy.knobs["held"] > 0
    spills = {v.name: machine_code_of(render(v), H200).spill_bytes for v in chosen}
    assert not any(spills.values()), spills


@pytest.mark.parametrize("out", list(DType))
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("strategy", "cols"), [("warp", 512), ("online", 50257), ("safe", 50257)])
def test_the_greediest_choice_for_all_pairs_of_types(
    strategy: str, cols: int, dtype: DType, out: DType
) -> None:
    found = list(candidates(Problem.of("softmax", dtype, cols, out_dtype=out), 64, H200, strategy))
    assert complaints([max(found, key=most_held)], H200) == []


@pytest.mark.parametrize("ids", [17, 64])
def test_gradients_of_more_ids_than_threads_hold_do_not_spill(ids: int) -> None:
    """By two settings of each strategy: in a warp's registers a loop over ids did, unrolled."""
    chosen: list[Variant] = []
    for more, dtype in (("", "bfloat16"), ("_entropy", "float32"), ("_entropy", "float64")):
        problem = Problem.of(f"token_log_probs_backward{more}_k{ids}", dtype, 1000)
        for kind in all_strategies():
            chosen += itertools.islice(candidates(problem, 4096, H200, kind.name), 2)
    assert len(chosen) >= 12
    local = {v.name: machine_code_of(render(v), H200).local_bytes for v in chosen}
    assert not any(local.values()), local


def test_what_the_log_says_is_read() -> None:
    source = render(best_guess(THOUSAND, 4096, H200, "online"))
    made = compile_offline(source, H200)
    assert isinstance(made, Compiled)
    assert f"Used {made.registers} registers" in made.log
    assert f"{made.shared_bytes} bytes smem" in made.log
    assert made.shared_bytes == 32
    assert source.symbol.encode() in made.cubin
    without = compile_offline(render(best_guess(THOUSAND, 4096, H200, "warp")), H200)
    assert without.shared_bytes == 0
    assert "bytes smem" not in without.log


@pytest.mark.parametrize("arch", list(KNOWN))
def test_the_machine_code_is_whole(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare it with what NVRTC itself says, past CuPy, and with the sizes in the ELF header."""
    nvrtc = compiling._nvrtc()
    from_nvrtc = []

    def get_cubin(program: int) -> bytes:
        maps = Path("/proc/self/maps").read_text()
        library = ctypes.CDLL(re.findall(r"/.*/libnvrtc\.so\S*", maps)[0])
        size = ctypes.c_size_t()
        assert library.nvrtcGetCUBINSize(ctypes.c_void_p(program), ctypes.byref(size)) == 0
        cubin = ctypes.create_string_buffer(size.value)
        assert library.nvrtcGetCUBIN(ctypes.c_void_p(program), cubin) == 0
        from_nvrtc.append(cubin.raw)
        return bytes(nvrtc.getCUBIN(program))

    spy = ModuleType("nvrtc")
    vars(spy).update({**vars(nvrtc), "getCUBIN": get_cubin})
    monkeypatch.setattr(compiling, "_nvrtc", lambda: spy)
    made = compile_offline(render(Variant(THOUSAND, Safe(256))), KNOWN[arch])
    assert [made.cubin] == from_nvrtc
    header = struct.unpack_from("<16s2HI3QI6H", made.cubin)
    segments, sections = header[5:7]
    ends = segments + header[9] * header[10], sections + header[11] * header[12]
    assert max(ends) == len(made.cubin)
    assert compiling._whole(made.cubin) == made.cubin
    assert compiling._whole(made.cubin[:-1]) == made.cubin
    assert compiling._whole(b"") == b""


def machine_code(cubin: bytes) -> bytes:
    """Return the .text section of the one kernel: the rest holds the compiler's options too."""
    (sections,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<2I4Q", cubin, sections + size * i) for i in range(count)]
    start = headers[names][4]
    (code,) = (
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in headers
        if cubin[start + name :].startswith(b".text.")
    )
    return code


def code_bytes(source: Source, *options: str) -> int:
    return len(machine_code(compile_offline(replace(source, options=options), H200).cubin))


@pytest.mark.parametrize("out", list(DType))
def test_what_the_header_says_of_ftz_in_float64(out: DType) -> None:
    """Only the conversion to float32 flushes, which takes instructions of its own.

    In exp and log a comparison changes its bit of -ftz=true, of the high word with a large number.
    """
    source = render(Variant(Problem.of("softmax", "float64", 1000, out_dtype=out), Safe(256)))
    alike = code_bytes(source, *source.options) == code_bytes(source, "--std=c++17")
    assert ("-ftz=true changes no result\n" in source.text) is alike is (out != DType.FLOAT32)


@pytest.mark.parametrize("out", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
def test_ftz_saves_instructions_in_float32(out: DType) -> None:
    source = render(Variant(Problem.of("softmax", "float32", 1000, out_dtype=out), Safe(256)))
    assert code_bytes(source, *source.options) < code_bytes(source, "--std=c++17")
    assert ", and saves instructions\n" in source.text


def test_spilled_registers_are_counted() -> None:
    """Ask for 4 blocks of 512 threads at once, which leaves 32 registers: the kernel must spill."""
    source = render(Variant(THOUSAND, Online(4, 4, 512)))
    assert compile_offline(source, H200).spill_bytes == 0
    bounds = "__launch_bounds__(kBlockSize, 1)"
    assert bounds in source.text
    squeezed = source.text.replace(bounds, "__launch_bounds__(kBlockSize, 4)")
    made = compile_offline(replace(source, text=squeezed), H200)
    assert made.registers <= 32
    stores, loads = (
        int(re.findall(rf"(\d+) bytes spill {kind}", made.log)[0]) for kind in ("stores", "loads")
    )
    assert stores > 0
    assert made.spill_bytes == stores + loads


def test_constants_that_do_not_cover_the_row_are_refused() -> None:
    source = render(next(candidates(THOUSAND, 4096, H200, "warp")))
    for good, bad, message in (
        ("kPackSize = 4", "kPackSize = 3", "packs cover a row"),
        ("kThreadGroupWidth = 32", "kThreadGroupWidth = 16", "packs cover a row"),
        ("kCols = 1000", "kCols = 1028", "packs cover a row"),
    ):
        assert good in source.text
        with pytest.raises(CompileError, match=message):
            compile_offline(replace(source, text=source.text.replace(good, bad)), H200)


def test_an_error_carries_nvrtcs_log() -> None:
    source = render(Variant(THOUSAND, Safe(256)))
    broken = replace(source, text=source.text.replace("using X = float;", "using X = flaot;"))
    with pytest.raises(CompileError) as caught:
        compile_offline(broken, H200)
    message = str(caught.value)
    assert message.startswith("NVRTC refused softmax_f32_1000_safe_b256 for sm_90:\n")
    assert "softmax_f32_1000_safe_b256.cu(" in message
    assert 'identifier "flaot" is undefined' in message
    assert isinstance(caught.value, RuntimeError)


def test_an_architecture_that_nvrtc_does_not_know() -> None:
    strange = replace(H200, compute_capability=(1, 0))
    with pytest.raises(CompileError, match=r"for sm_10:\n.*invalid value.*gpu-architecture"):
        compile_offline(render(Variant(THOUSAND, Safe(256))), strange)


def test_a_log_without_the_figures_is_an_error() -> None:
    source = render(Variant(THOUSAND, Safe(256)))
    nothing = Source(source.variant, source.name, source.symbol, "__device__ int unused;\n")
    with pytest.raises(CompileError, match="NVRTC's log does not say"):
        compile_offline(nothing, H200)


@pytest.fixture
def fresh_look(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Let compile look for NVRTC and the headers again, and forget what it found."""
    caches = (compiling._nvrtc, toolkit_headers)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def without_imports(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make the import of `packages` fail."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> ModuleType:
        if name.split(".")[0] in packages:
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)


PIP = re.escape("pip install '.[cuda13]'")


@pytest.mark.usefixtures("fresh_look")
def test_without_cupy_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = render(Variant(THOUSAND, Safe(256)))
    without_imports(monkeypatch, "cupy", "cupy_backends")
    with pytest.raises(MissingDependencyError, match=rf"NVRTC cannot be loaded .*cupy.*{PIP}"):
        compile_offline(source, H200)


@pytest.mark.usefixtures("fresh_look")
def test_without_the_nvrtc_library_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cupy_backends.cuda.libs import nvrtc

    def fail() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.13")

    fake = ModuleType("nvrtc")
    vars(fake).update({**vars(nvrtc), "getVersion": fail})
    import cupy_backends.cuda.libs as libs

    monkeypatch.setattr(libs, "nvrtc", fake)
    with pytest.raises(MissingDependencyError, match=rf"libnvrtc\.so\.13\); .*{PIP}"):
        compile_offline(render(Variant(THOUSAND, Safe(256))), H200)


def hide_headers(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    without_imports(monkeypatch, "nvidia")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr("cupy.cuda.get_cuda_path", lambda: None)


@pytest.mark.usefixtures("fresh_look")
def test_without_headers_the_message_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_headers(monkeypatch, tmp_path)
    with pytest.raises(MissingDependencyError, match=rf"cuda_fp16\.h\) were not found; .*{PIP}"):
        toolkit_headers()


@pytest.mark.usefixtures("fresh_look")
@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_headers_of_an_installed_toolkit(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_headers(monkeypatch, tmp_path)
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    assert toolkit_headers() == tmp_path / "include"


@pytest.mark.usefixtures("fresh_look")
@pytest.mark.parametrize(
    ("folders", "chosen"),
    [
        (["cu12/include", "cu13/include"], "cu13/include"),
        (["cuda_runtime/include"], "cuda_runtime/include"),
    ],
)
def test_headers_of_the_toolkit_wheels(
    folders: Sequence[str], chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake: Any = ModuleType("nvidia")
    fake.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "nvidia", fake)
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "cuda_fp16.h").touch()
    assert toolkit_headers() == tmp_path / chosen
