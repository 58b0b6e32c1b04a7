"""The emitted text: complete, clean, and a function of the variant alone."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings

from softgen.call.library import usable_alignment
from softgen.errors import SoftgenError
from softgen.problems.arch import KNOWN, MAX_GRID, Arch, arch_named
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.problem import MAX_INT32_COLS, Problem, natural_alignment
from softgen.source import render as rendering
from softgen.source.context import context
from softgen.source.cpp import constant_lines, spell
from softgen.source.header import aligned_bytes, alignment_rule, flush_rule
from softgen.source.render import COMPILE_OPTIONS, environment, render
from softgen.strategies.cooperative import Cooperative
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.safe import Safe
from softgen.strategies.sliced import Sliced
from softgen.strategies.variants import Variant, best_guess, candidates, parse_name
from softgen.strategies.warp import Warp
from softgen.verify.pairwise import pairwise
from tests.helpers.drawn import archs, problems
from tests.helpers.single import BOTH

ROOT = Path(__file__).parents[3]
H200 = arch_named("sm_90")
THOUSAND = Problem.of("softmax", "float32", 1000)


def firsts_of_strategies(problem: Problem, arch: Arch) -> list[Variant]:
    """Return the first candidate of each strategy that has one."""
    found = [next(candidates(problem, 64, arch, kind.name), None) for kind in all_strategies()]
    return [variant for variant in found if variant is not None]


@functools.cache
def sample() -> list[Variant]:
    """Return a few of everything, by every strategy.

    Every two of an algorithm, a type of x, a type of y and a width are there together.
    """
    widths = ((1, None), (1000, None), (1024, 1), (2**32, None))
    found = []
    for i, dtype in enumerate(DType):
        for j, out in enumerate(DType):
            algorithm, (cols, alignment) = [*BOTH][(i + j // 2) % 2], widths[(i + j) % 4]
            problem = Problem.of(algorithm, dtype, cols, out_dtype=out, alignment=alignment)
            found += firsts_of_strategies(problem, H200)
    return found


def code_of(text: str) -> str:
    """Return `text` without its // comments."""
    return re.sub("//.*", "", text)


def expected_constants(variant: Variant) -> dict[str, int | bool]:
    """Return kCols and the knobs, but for those that only decide which text or grid there is."""
    unnamed = variant.strategy.unnamed
    shown = {
        "k" + field.name.title().replace("_", ""): getattr(variant.strategy, field.name)
        for field in dataclasses.fields(variant.strategy)
        if field.metadata["constant"]
        and field.name not in unnamed
        and getattr(variant.strategy, field.name) != field.default
    }  # pack_size -> kPackSize
    return {"kCols": variant.problem.cols, **shown}


def declared_constants(text: str) -> dict[str, int | bool]:
    """Return the constants that are declared with a literal."""
    words = {"true": True, "false": False}
    found = re.findall(r"^constexpr (Col|int|bool) (k\w+) = (\d+|true|false);", text, re.MULTILINE)
    assert all((kind == "bool") == (value in words) for kind, _, value in found)
    return {name: words[value] if value in words else int(value) for _, name, value in found}


@settings(deadline=None, max_examples=60)
@given(problems, archs)
def test_a_text_is_clean_whatever_is_asked(problem: Problem, arch: Arch) -> None:
    for variant in firsts_of_strategies(problem, arch):
        check_clean(variant)


def test_a_text_is_clean_for_every_type() -> None:
    for variant in sample():
        check_clean(variant)


def check_clean(variant: Variant) -> None:
    source = render(variant)
    text, lines = source.text, source.text.split("\n")
    code = code_of(text)

    assert text.startswith(f"// {variant.name}\n")
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")
    assert not re.search(r"/\*|\*/|\$\{|Undefined|None", text), "what Jinja leaves behind"
    assert "\n\n\n" not in text
    assert "\t" not in text
    assert text.isascii()
    assert [line for line in lines if line != line.rstrip()] == []
    assert [line for line in lines if len(line) > 100] == []
    assert "__restrict__" not in code

    assert text.count('extern "C"') == 1
    assert text.count("__global__") == 1
    assert re.fullmatch(r"[a-z_][a-z0-9_]*", source.symbol)
    workspace = r",\s+unsigned char\* workspace" if source.variant.launch.workspace_bytes(1) else ""
    entry = rf"\n    {source.symbol}\(\s*const X\* x,\s+Y\* y,\s+long long rows{workspace}\) {{\n"
    attributes = r"(__cluster_dims__\(kClusterSize\) )?__launch_bounds__\([^)]*\)"
    assert re.search(rf'extern "C" __global__ void {attributes}{entry}', text)
    assert "\nnamespace {  //" in text
    assert "\n}  // namespace\n" in text

    declared = {**declared_constants(text)}
    if isinstance(variant.strategy, Sliced):
        whole = len(variant.strategy.whole_packs(variant.problem))
        assert declared.pop("kWholePacks", whole) == whole
        declared.pop("kLanes", None)
        assert ("store_inside" in text) == (variant.problem.alignment < variant.strategy.pack_size)
    if isinstance(variant.strategy, Cooperative):
        depth = variant.strategy.depth(variant.problem)
        assert declared.pop("kDepth", depth) == depth
        fits = variant.strategy.fits(variant.problem)
        assert declared.pop("kFirstKept", None) == (0 if fits else None)
    assert declared == expected_constants(variant)

    includes = set(re.findall(r"#include (.*)", text))
    types = {variant.problem.dtype, variant.problem.out_dtype}
    headers: dict[FloatType, str] = {
        DType.FLOAT16: "<cuda_fp16.h>",
        DType.BFLOAT16: "<cuda_bf16.h>",
    }
    assert includes == {headers[dtype] for dtype in types & headers.keys()}
    assert f"using X = {variant.problem.dtype.cuda};" in text
    assert f"using Y = {variant.problem.out_dtype.cuda};" in text
    assert f"using Compute = {variant.problem.compute_dtype.cuda};" in text


def test_the_header_says_what_the_launch_is() -> None:
    for variant in sample():
        head, _, _ = render(variant).text.partition("\n\nnamespace {")
        head, _, _ = head.partition("\n#include")
        launch, problem = variant.launch, variant.problem
        assert all(line.startswith("//") for line in head.strip().splitlines())
        steps = "rows" if launch.rows_per_block == 1 else f"ceil(rows / {launch.rows_per_block})"
        blocks = launch.cluster_size * launch.blocks_per_row
        asked = f"{steps} * {blocks}" if blocks > 1 else steps
        grid = f"{asked} blocks, or fewer" if launch.strides else f"{asked} blocks;"
        if launch.most_blocks < MAX_GRID:
            whole = f", a multiple of {blocks}" if blocks > 1 else ""
            grid = f"{asked} blocks, at most {launch.most_blocks}{whole}: blocks stride"
        sized = launch.multiprocessor_rule
        if launch.cooperative:
            grid = f"a multiple of {blocks} blocks, at most {asked}, all resident;"
            if blocks < launch.multiprocessors:  # else fewer hold no whole row
                sized = f"planned for {launch.multiprocessors}; fewer are correct and slower"
            assert "blocks poll each other, so all must be resident\n" in head
        assert f"grid:    {grid}" in head
        assert f"grid:    {launch.grid_rule}; 1-D, rows >= 1\n" in head
        sized = f"//   SMs:     {sized} (softgen emit --sms"
        assert (sized in head) == ("   SMs:" in head) == (launch.multiprocessors > 0)
        assert ("workspace" in head) == (launch.workspace_bytes(1) > 0)
        assert f"Strategy {variant.strategy.name}: {variant.strategy.describe(problem)}.\n" in head
        assert (
            f"1-D, exactly {launch.block_size} threads, {launch.static_shared_bytes} bytes" in head
        )
        assert f"y = {problem.function.name}(x), row by row, " in head
        assert f"//   {problem.function.non_finite}\n" in head
        alone = problem.dtype is not problem.out_dtype
        assert ("contiguous; no overlap with x\n" in head) == alone
        assert ("contiguous; x itself, or no overlap with it\n" in head) == (not alone)
        assert f"x: {problem.dtype.value} [rows][{problem.cols}]" in head
        assert f"y: {problem.out_dtype.value} [rows][{problem.cols}]" in head
        assert f"arithmetic in {problem.compute_dtype.value}" in head
        assert f"//   aligned: {alignment_rule(problem)}\n" in head
        starts = "(then every row is)" if problem.alignment > 1 else "rows may start anywhere)"
        assert starts in head
        last = ", the workspace last" if launch.workspace_bytes(1) else ""
        assert (
            f"//   rows: int64 number (long long); the arguments come in this order{last}\n" in head
        )
        assert f"nvcc {' '.join(COMPILE_OPTIONS)}" in head
        assert "-ftz=true" in COMPILE_OPTIONS
        assert f"//   ftz:     -ftz=true {flush_rule(problem)}\n" in head


def fits(variant: Variant, arch: Arch) -> bool:
    """Whether a device of `arch` that has the SMs of the grid has room for it."""
    sms = max(arch.multiprocessors, variant.launch.multiprocessors)
    return variant.strategy.is_legal(variant.problem, arch.with_multiprocessors(sms))


def test_the_header_names_the_oldest_architecture_with_room() -> None:
    """An sm_75 has 64 KB of shared memory and 1024 threads an SM."""
    for variant in sample():
        oldest = arch_named(variant.oldest_arch)
        variant.check(oldest)
        older = [a for a in KNOWN.values() if a.compute_capability < oldest.compute_capability]
        assert not any(variant.strategy.is_legal(variant.problem, arch) for arch in older)
        head, *_ = render(variant).text.partition("   ftz:")
        words = f"-arch={oldest.name} -c {variant.name}.cu # {variant.arch_rule} //"
        assert words in " ".join(head.replace("\n//     ", " ").split())
        named, *without = re.findall(r"sm_\d+", variant.arch_rule)
        assert variant.arch_rule.startswith(f"any architecture from {oldest.name} ")
        assert named == oldest.name
        newer = [a for a in KNOWN.values() if a.compute_capability > oldest.compute_capability]
        assert without == [a.name for a in newer if not fits(variant, a)]
    wide = "softmax_bf16_50257_shared_p8_b512_y0_s1_n0"
    full = "softmax_f32_1000_block_p4_c8_g128_b128_m12"
    assert [parse_name(name).oldest_arch for name in (wide, full)] == ["sm_80", "sm_80"]
    wider = parse_name("softmax_bf16_60000_shared_p8_b512_y0_s1_n0")
    assert wider.arch_rule == "any architecture from sm_80 on, except sm_86, sm_89, sm_120"


def test_the_compile_line_names_the_architecture_that_is_asked_for() -> None:
    """And nothing else depends on it: what runs is rendered without one."""
    for variant in sample():
        text = render(variant).text
        asked = render(variant, H200).text
        assert "-arch=sm_90 -c" in asked
        assert asked.replace("-arch=sm_90", f"-arch={variant.oldest_arch}") == text
        assert render(variant, H200.with_multiprocessors(78)).text == asked


@pytest.mark.parametrize(
    ("dtype", "out", "alignment", "said"),
    [
        ("float32", "float32", 4, "x and y to 16 bytes (then every row is)\n"),
        ("float16", "float64", 4, "x to 8 and y to 16 bytes (then every row is)\n"),
        ("bfloat16", "float32", 2, "x to 4 and y to 8 bytes (then every row is)\n"),
        (
            "float64",
            "bfloat16",
            1,
            "x to 8 and y to 2 bytes (an element: rows may start anywhere",
        ),
    ],
)
def test_the_header_says_what_addresses_are_multiples_of(
    dtype: str, out: str, alignment: int, said: str
) -> None:
    """Of what a Kernel accepts, too: see `usable_alignment`."""
    problem = Problem.of("softmax", dtype, 1000, out_dtype=out, alignment=alignment)
    assert f"//   aligned: {said}" in render(Variant(problem, Safe(256))).text
    x, y = (aligned_bytes(problem, kind) for kind in (problem.dtype, problem.out_dtype))
    natural = natural_alignment(problem.dtype, 1000)
    assert usable_alignment(natural, problem.operands, (x, y)) == alignment


@pytest.mark.parametrize(
    ("cols", "hooks", "said"),
    [
        (1000, ["mask"], "lines of mask to 4 bytes (base and distances)"),
        (1000, ["biasf64", "mask"], "lines of bias to 16 and lines of mask to 4 bytes (base and"),
        (1000, ["biasbf16any", "maskany"], "Strategy "),
        (1001, ["biasf32", "mask"], "Strategy "),
    ],
)
def test_the_header_says_where_lines_that_are_loaded_in_packs_start(
    cols: int, hooks: list[str], said: str
) -> None:
    problem = Problem.of("softmax", "float32", cols, hooks=hooks)
    _, _, behind = render(Variant(problem, Safe(256))).text.partition("//   aligned: ")
    assert behind.splitlines()[1].removeprefix("//").strip().startswith(said)


def test_the_header_says_what_the_host_has_to_ask_for() -> None:
    for name, wanted in (
        ("softmax_bf16_128256_cluster_p8_c64_b128_k16_m6", "NonPortableClusterSizeAllowed"),
        ("softmax_bf16_50257_shared_p8_b512_y0_s1_n0", "MaxDynamicSharedMemorySize"),
    ):
        assert f"(first set cudaFuncAttribute{wanted})" in render(parse_name(name)).text
    modest = render(parse_name("softmax_bf16_32000_cluster_p8_c64_b128_k4_m6")).text
    assert "cluster: 4 blocks, compiled in\n" in modest


def test_only_the_algorithm_that_is_asked_for_is_pasted() -> None:
    for dtype in DType:
        softmax = Problem.of("softmax", dtype, 1000)
        log_softmax = Problem.of("log_softmax", dtype, 1000)
        for problem, inside, outside in (
            (softmax, ["// softmax: exp(x"], ["log_softmax", "log(", "logf(", "kept -"]),
            (
                log_softmax,
                ["// log_softmax: (x", "return kept - factor;"],
                ["kept *", "quotient", "// softmax"],
            ),
        ):
            for variant in firsts_of_strategies(problem, H200):
                text = render(variant).text
                assert all(words in text for words in inside)
                assert not any(words in text for words in outside)
                assert text.count("Compute finish(") == 1


@pytest.mark.parametrize(
    ("cols", "index"),
    [(1000, "int"), (MAX_INT32_COLS, "int"), (MAX_INT32_COLS + 1, "long long")],
)
def test_columns_are_counted_in_64_bits_only_where_they_must(cols: int, index: str) -> None:
    for name in ("online", "safe"):
        variant = best_guess(Problem.of("softmax", "float32", cols), 1, H200, name)
        assert f"using Col = {index};\n" in render(variant).text


def test_constants_are_lined_up_with_their_meaning() -> None:
    assert constant_lines(Variant(THOUSAND, Warp(4, 32, 32, 1, True, 128))) == [
        "constexpr Col kCols = 1000;            // elements in a row",
        "constexpr int kPackSize = 4;           // elements moved by one load or store",
        "constexpr int kColsPerThread = 32;     // elements of a row held by one thread",
        "constexpr int kThreadGroupWidth = 32;  // lanes that share a row",
        "constexpr int kBlockSize = 128;        // threads in a block",
    ]


def test_one_variant_one_text() -> None:
    texts: dict[str, str] = {}
    for variant in sample():
        texts[variant.name] = render(variant).text
    render.cache_clear()
    environment.cache_clear()
    assert {variant.name: render(variant).text for variant in sample()} == texts
    assert len(set(texts.values())) == len(texts)


IN_ANOTHER_PLACE = """
import hashlib, os, softgen
os.environ.clear()
names = ("softmax", "float16", 1000), ("log_softmax", "float64", 5000)
for name in names:
    print(hashlib.sha256(softgen.generate(*name).text.encode()).hexdigest())
"""


def test_the_text_does_not_depend_on_place_or_environment(tmp_path: Path) -> None:
    elsewhere = tmp_path / "somewhere" / "else"
    for folder in ("softgen", "templates"):
        shutil.copytree(
            ROOT / folder, elsewhere / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    digests = []
    for root, seed in ((ROOT, "1"), (elsewhere, "2")):
        ran = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PLACE],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(ran.stdout.split())
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2


def test_the_text_names_no_path_date_or_person() -> None:
    for variant in sample():
        text = render(variant).text
        assert not re.search(r"\b20\d\d-\d\d|\b\d\d:\d\d\b", text)
        assert not re.search(r"/(home|root|tmp|usr|work|Users|opt|var)\b", text)
        assert str(ROOT) not in text


@pytest.mark.parametrize("value", [None, float("inf"), float("-inf"), float("nan")])
def test_values_without_a_spelling_are_refused(value: object) -> None:
    with pytest.raises(SoftgenError, match=f"a template tried to print {value!r}"):
        spell(value)
    with pytest.raises(SoftgenError, match="a template tried to print"):
        environment().from_string("${ value }").render(value=value)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(True, "true"), (False, "false"), (0.5, "0.5f"), (-2.0, "-2.0f"), (7, "7"), ("X", "X")],
)
def test_values_are_spelled_as_in_cpp(value: object, spelled: str) -> None:
    assert environment().from_string("${ value }").render(value=value) == spelled


def test_cpp_that_looks_like_jinja_is_left_alone() -> None:
    text = 'float2 a[1] = {{0, 0}};\n{#pragma unroll\nasm("{%0, %1}" :: "r"(a[0]));  // {% x %}\n'
    assert environment().from_string(text).render() == text


def test_each_name_that_templates_are_given_is_explained_and_used() -> None:
    folder = ROOT / "templates"
    explained, _, frame = (folder / "kernel.cu.j2").read_text().partition("#*/")
    texts = [path.read_text() for path in folder.rglob("*.j2") if path.name != "kernel.cu.j2"]
    tags = " ".join(re.findall(r"/\*%.*?%\*/|\$\{.*?\}", frame + " ".join(texts)))
    given = set().union(*(context(variant, None) for variant in sample()))
    assert len(given) > 50
    assert [name for name in given if not re.search(rf"\b{name}\b", explained)] == []
    assert [name for name in given if not re.search(rf"\b{name}\b", tags)] == []


@pytest.mark.parametrize(
    "template", ["${ cosl }", "${ problem.colums }", "/*% if pairs %*/x/*% endif %*/"]
)
def test_an_undefined_name_fails(template: str) -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string(template).render(problem=THOUSAND)


@pytest.fixture
def own_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a copy of the templates the ones in use."""
    folder = tmp_path / "templates"
    shutil.copytree(rendering.template_directory(), folder)
    caches = (environment, render)
    monkeypatch.setattr(rendering, "template_directory", lambda: folder)
    for cache in caches:
        cache.cache_clear()
    yield folder
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def test_a_misspelt_name_in_a_template_fails(own_templates: Path) -> None:
    variant = Variant(THOUSAND, Safe(256))
    frame = own_templates / "kernel.cu.j2"
    text = frame.read_text()
    assert "${ signature(name) }" in text
    frame.write_text(text.replace("${ signature(name) }", "${ signature(nmae) }"))
    with pytest.raises(jinja2.UndefinedError, match="nmae"):
        render(variant)


def test_missing_templates_say_where_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "PACKAGE", tmp_path / "softgen")
    with pytest.raises(SoftgenError, match=r"no templates in .*softgen/templates nor .*install"):
        rendering.template_directory()


def test_templates_of_an_installed_package_come_before_a_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "PACKAGE", tmp_path / "softgen")
    for folder in (tmp_path / "templates", tmp_path / "softgen" / "templates"):
        folder.mkdir(parents=True)
        (folder / "kernel.cu.j2").touch()
        assert rendering.template_directory() == folder


def test_sources_are_values_with_a_digest_of_their_text() -> None:
    one = render(Variant(THOUSAND, Online(4, 2, 128)))
    other = render(Variant(THOUSAND, Online(4, 2, 256)))
    assert one.options == ("--std=c++17", "-ftz=true")
    assert one.sha256 != other.sha256
    assert re.fullmatch("[0-9a-f]{64}", one.sha256)
    assert one.symbol == one.name != other.symbol == other.name
    assert one.name == one.variant.name


def test_headers_say_what_else_a_caller_has_to_know() -> None:
    told = 0
    for variant in pairwise():
        head = render(variant).text.partition("#include")[0]
        remarks = variant.problem.function.remarks
        assert all(f"//   {remark}\n" in head for remark in remarks), variant.name
        told += len(remarks)
    assert told > 100


def test_each_helper_is_called_or_marked_as_one_that_may_not_be() -> None:
    """nvcc warns of others where people compile an emitted file. It does not of templates."""
    for variant in pairwise():
        text = re.sub("//.*", "", render(variant).text)
        helpers = re.findall(r"^(?<!>\n)__device__ [^;{}()]*?(\w+)\(", text, re.MULTILINE)
        words = Counter(re.findall(r"\w+", text))
        uncalled = [name for name in {*helpers} if words[name] <= helpers.count(name)]
        assert uncalled == [], variant.name
