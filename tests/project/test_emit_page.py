"""docs/emit.md: its C++ declares and launches a kernel of the gallery as that kernel is."""

from __future__ import annotations

import re
from pathlib import Path

from softgen.problems.dtypes import DType
from softgen.source.render import Source
from softgen.strategies.variants import parse_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "emit.md").read_text()
(CODE,) = re.findall(r"^```cuda\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(NAME,) = re.findall(r'extern "C" __global__ void (\w+)\(', CODE)
KERNEL = Source.of(parse_name(NAME), (ROOT / "generated" / f"{NAME}.cu").read_text())


def test_it_declares_the_kernel_as_the_file_defines_it() -> None:
    (declared,) = re.findall(rf"void {NAME}\((.*?)\);", CODE, re.DOTALL)
    (defined,) = re.findall(rf"{NAME}\((.*?)\) {{", KERNEL.text, re.DOTALL)
    types = dict(re.findall(r"^using (\w+) = ([\w ]+);", KERNEL.text, re.MULTILINE))
    spelled = re.sub(r"\w+", lambda word: types.get(word[0], word[0]), defined)
    assert declared.split() == spelled.split()


def test_it_launches_the_kernel_as_the_header_says() -> None:
    launch = KERNEL.variant.launch
    assert launch.grid(1000) == 1000
    assert launch.dependent
    assert not launch.dynamic_shared_bytes
    assert f"{NAME}<<<rows, {launch.block_size}, 0, stream>>>(x, y, rows)" in CODE
    assert "gridDim = dim3(rows);" in CODE
    assert f"blockDim = dim3({launch.block_size});" in CODE
    assert f"cudaLaunchKernelEx(&config, {NAME}, x, y, rows)" in CODE


def test_it_compiles_as_the_header_says() -> None:
    command = re.search(r"^nvcc .* (-c .*\.cu)$", PAGE, re.MULTILINE)
    assert command
    assert " ".join(command[0].split()) in " ".join(KERNEL.text.replace("//", "").split())


def test_it_names_the_types_of_cuda() -> None:
    spelled = dict(re.findall(r"\| (\w+) \| `([\w ]+)` ", PAGE))
    assert {kind.value: kind.cuda for kind in DType}.items() <= spelled.items()
