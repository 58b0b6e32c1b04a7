"""What the header and the comments of an emitted file claim, against what NVRTC makes of it."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import replace

import pytest

from softgen.devices.gpu.compile import Compiled
from softgen.problems.arch import DEFAULT_ARCH, KNOWN, arch_named
from softgen.problems.problem import Problem
from softgen.source.gallery import gallery
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant, best_guess, candidates
from tests.helpers.chosen import best_guesses
from tests.helpers.kept_builds import machine_code_of

H200 = arch_named(DEFAULT_ARCH)
COMPILE = re.compile(
    r"^//   compile: nvcc (.*) -arch=(sm_\d+) -c(?:\n//    )? (\w+)\.cu\s", re.MULTILINE
)
SHARED = re.compile(r"^//   block: .* (\d+) bytes of static shared memory$", re.MULTILINE)


@functools.cache
def shown() -> dict[str, Source]:
    """The gallery as it is rendered now, by name."""
    return {source.name: source for source in gallery()}


def made_of(source: Source) -> Compiled:
    """Compile a file with what its own header says and nothing else."""
    (line,) = COMPILE.findall(source.text)
    options, arch, name = line
    assert (arch, name) == (DEFAULT_ARCH, source.name)
    return machine_code_of(replace(source, options=tuple(options.split())), arch_named(arch))


@pytest.mark.parametrize("name", sorted(shown()))
def test_the_gallery_compiles_as_its_headers_say(name: str) -> None:
    """Without a warning, a spill or a byte of shared memory that the header does not tell."""
    source = shown()[name]
    made = made_of(source)
    assert made.spill_bytes == 0
    assert "warning" not in made.log
    assert [int(told) for told in SHARED.findall(source.text)] == [made.shared_bytes]


@functools.cache
def kinds_of_launch() -> list[Variant]:
    """A kernel of the verified ones for each strategy and way to end a row, drawn with a seed."""
    every = best_guesses()
    drawn = random.Random(32).sample(every, len(every))
    kinds: dict[tuple[object, ...], Variant] = {}
    for variant in drawn:
        problem, launch = variant.problem, variant.launch
        function = problem.function
        ways = (function.reduces, problem.writes_elements, bool(problem.row_results))
        more = (launch.cluster_size > 1, launch.dynamic_shared_bytes > 0, problem.sharded)
        kinds.setdefault((variant.strategy.name, *ways, *more), variant)
    return sorted(kinds.values(), key=lambda variant: variant.name)


@pytest.mark.parametrize("turn", range(4))
def test_every_kind_of_launch_tells_its_shared_memory(turn: int) -> None:
    kinds = kinds_of_launch()
    assert len(kinds) > 50
    told = {v.name: v.launch.static_shared_bytes for v in kinds[turn::4]}
    made = {v.name: machine_code_of(render(v), H200).shared_bytes for v in kinds[turn::4]}
    assert told == made


ELEMENT = r"[\w.]+(?:\[\w+\])?"
FUSED = re.compile(rf"{ELEMENT} \* {ELEMENT} [-+] {ELEMENT};|-= ")


def test_what_is_said_to_be_no_fma_is_none() -> None:
    """Where hooks are said to round before what follows, no product of theirs is bare."""
    variants = [source.variant for source in gallery()]
    variants += [v for v in best_guesses() if v.strategy.name in ("online", "warp", "block")]
    distinct = {  # as far as the struct of hooks goes
        (v.strategy.name, v.problem.modifiers, v.problem.dtype, type(v.problem.layout)): v
        for v in variants
        if v.problem.modifiers
    }
    claims = 0
    for text in (render(variant).text for variant in distinct.values()):
        _, _, behind = text.partition("// What ")
        said, _, body = behind.partition("struct Row {")
        if "no FMA joins it" in said.replace("\n// ", " "):
            claims += 1
            assert not FUSED.search(body.partition("\n};")[0]), text[:200]
    assert claims > 20


def test_what_is_found_of_no_row_is_not_told() -> None:
    """Kernels that are given what a row's elements are finished by exchange nothing of it."""
    for source in shown().values():
        if not source.variant.problem.function.reduces:
            head = source.text.partition("namespace {")[0]
            assert "pairs" not in head, source.name
            assert "__shared__" not in source.text


READ_ONLY = ("entropy", "logsumexp", "cross_entropy", "partial_target", "token_log_probs_entropy")


def spills_of_guesses(arch: str, *, every: bool) -> dict[str, int]:
    """Return the bytes that best guesses spill; without `every` each type in one width."""
    variants = [
        best_guess(Problem.of(function, dtype, cols), 8192, KNOWN[arch])
        for i, function in enumerate(READ_ONLY)
        for j, dtype in enumerate(("bfloat16", "float16"))
        for k, cols in enumerate((50257, 151936))
        if every or (i + j + k) % 2
    ]
    return {v.name: machine_code_of(render(v), KNOWN[arch]).spill_bytes for v in variants}


@pytest.mark.parametrize("arch", list(KNOWN))
def test_best_guesses_that_only_read_do_not_spill(arch: str) -> None:
    """Packs that stay packed, where blocks on an SM cap the registers.

    All of them for the H200; `python -m tests.cpu.devices.test_headers` has all for each.
    """
    spills = spills_of_guesses(arch, every=arch == DEFAULT_ARCH)
    assert not any(spills.values()), spills


@pytest.mark.parametrize("arch", ["sm_75", "sm_100", "sm_120"])
def test_capped_settings_do_not_spill(arch: str) -> None:
    """Of each number of packs on their way, a setting that is legal."""
    chosen = {}
    for function in ("entropy", "token_log_probs_entropy", "cross_entropy"):
        for dtype in ("bfloat16", "float16"):
            problem = Problem.of(function, dtype, 50257)
            for variant in candidates(problem, 8192, KNOWN[arch], "online"):
                knobs = variant.strategy.knobs
                if knobs["min_blocks"] > 1:
                    chosen[function, dtype, knobs["unroll"]] = variant
    assert chosen
    spills = {v.name: machine_code_of(render(v), KNOWN[arch]).spill_bytes for v in chosen.values()}
    assert not any(spills.values()), spills


def test_capped_gradients_from_a_given_lse_do_not_spill() -> None:
    """Of float32 rows with a target, two packs at a time: the roots of terms need registers too."""
    problem = Problem.of("cross_entropy_backward", "float32", 128256)
    capped = [
        variant
        for variant in candidates(problem, 8192, H200, "online")
        if variant.strategy.knobs["min_blocks"] > 1 and variant.strategy.knobs["unroll"] == 2
    ]
    assert {variant.strategy.knobs["pack_size"] for variant in capped} >= {2, 4}
    spills = {v.name: machine_code_of(render(v), H200).spill_bytes for v in capped}
    assert not any(spills.values()), spills


if __name__ == "__main__":
    for each in KNOWN:
        print(
            each,
            {k: spilled for k, spilled in spills_of_guesses(each, every=True).items() if spilled},
        )
