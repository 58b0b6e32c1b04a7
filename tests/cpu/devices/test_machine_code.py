"""Machine code kept on disk: what NVRTC made, or makes again, whatever has happened to the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.call.means import losses_of
from softgen.devices.gpu import compile as compiling
from softgen.disk import folders, owned
from softgen.errors import CompileError
from softgen.problems.arch import Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.source.render import Source, render
from softgen.strategies.variants import parse_name

HALF = render(parse_name("softmax_f16_512_warp_p8_c16_g32_r1_b128"))
FLOAT = render(parse_name("softmax_f32_512_warp_p4_c16_g32_r1_b128"))
H200 = arch_named("sm_90")
NAME = "softmax_f16_512_warp_p8_c16_g32_r1_b128-sm_90.cubin"


class Refusal(Exception):
    """Stands for CuPy's CompileException."""


class FakeGpu:
    """A device whose NVRTC makes other code of each text, and whose driver tells what was loaded.

    Attributes:
        arch: of the device.
        version: of NVRTC.
        compiled: the texts that NVRTC was given, and the options.
        loaded: the code that the driver was given.
    """

    def __init__(self) -> None:
        self.arch: Arch = arch_named("sm_90")
        self.version = (13, 0)
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.loaded: list[bytes] = []
        gpu = self

        class Module:
            def load(self, code: bytes) -> None:
                gpu.loaded.append(code)

            def get_function(self, name: str) -> Any:
                return SimpleNamespace(ptr=7, name=name)

        self.cuda = SimpleNamespace(
            Module=Module,
            runtime=SimpleNamespace(getDevice=lambda: 0, setDevice=lambda device: None),
            driver=SimpleNamespace(
                ctxGetCurrent=lambda: 1,
                funcGetAttribute=lambda which, function: {3: 16, 4: 40}[which],
            ),
            compiler=SimpleNamespace(compile_using_nvrtc=self.compile, CompileException=Refusal),
        )

    def compile(
        self, text: str, options: tuple[str, ...], *, cache_in_memory: bool
    ) -> tuple[bytes, None]:
        assert cache_in_memory  # else CuPy writes the text to a folder of its own
        if "@" in text:
            raise Refusal("line 3: what is @")
        self.compiled.append((text, options))
        return f"\x7fELF of {len(text)} by {self.version}\n and more".encode(), None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    device = SimpleNamespace(cuda=fake.cuda)
    monkeypatch.setattr(compiling, "require_device", lambda: device)
    monkeypatch.setattr("softgen.devices.gpu.driver.require_device", lambda: device)
    monkeypatch.setattr(compiling, "arch_of", lambda device: fake.arch)
    nvrtc = SimpleNamespace(getVersion=lambda: fake.version)
    monkeypatch.setattr(compiling, "_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(compiling, "toolkit_headers", lambda: Path("/headers"))
    return fake


def changed(source: Source) -> Source:
    return dataclasses.replace(source, text=source.text + "// and a line\n")


def test_what_was_compiled_before_is_loaded_from_disk(gpu: FakeGpu, own_cache: Path) -> None:
    first, second = (compiling.compile_source(HALF) for _ in range(2))
    assert len(gpu.compiled) == 1
    assert gpu.loaded[0] == gpu.loaded[1] == gpu.compile(HALF.text, (), cache_in_memory=True)[0]
    assert (first.registers, first.local_bytes, first.handle.name) == (40, 16, HALF.symbol)
    assert second.source == HALF
    assert sorted(path.name for path in (own_cache / "code").iterdir()) == [owned.MARKER, NAME]


def test_text_that_is_no_variants_is_kept_too(gpu: FakeGpu, own_cache: Path) -> None:
    for each in (HALF, losses_of(DType.BFLOAT16)):
        for _ in range(2):
            compiling.load(each)
    assert len(gpu.compiled) == 2
    kept = [path.name for path in owned.files("code", own_cache / "code")]
    assert sorted(kept) == ["losses_bf16_1024-sm_90.cubin", NAME]


@pytest.mark.parametrize(("version", "less"), [((12, 9), ()), ((13, 0), ("--minimal",))])
def test_nvrtc_gets_the_options_and_headers_of_the_text(
    version: tuple[int, int], less: tuple[str, ...], gpu: FakeGpu
) -> None:
    gpu.version = version
    for source in (HALF, FLOAT):
        compiling.compile_source(source)
    assert gpu.compiled == [
        (HALF.text, (*HALF.options, "-I/headers", *less)),
        (FLOAT.text, (*FLOAT.options, *less)),  # it includes nothing, so needs no headers
    ]


@pytest.mark.parametrize("source", [HALF, FLOAT], ids=["half", "float"])
def test_what_nvrtc_leaves_out_is_in_no_kernel(source: Source) -> None:
    options = (*source.options, compiling.MINIMAL)
    minimal = compiling.compile_offline(dataclasses.replace(source, options=options), H200)
    assert minimal.cubin == compiling.compile_offline(source, H200).cubin


def other_text(gpu: FakeGpu) -> Source:
    return changed(HALF)


def other_options(gpu: FakeGpu) -> Source:
    return dataclasses.replace(HALF, options=("--std=c++20",))


def other_nvrtc(gpu: FakeGpu) -> Source:
    gpu.version = (13, 1)
    return HALF


def other_arch(gpu: FakeGpu) -> Source:
    gpu.arch = arch_named("sm_100")
    return HALF


@pytest.mark.parametrize("change", [other_text, other_options, other_nvrtc, other_arch])
def test_what_decides_the_code_has_it_compiled_anew(
    change: Callable[[FakeGpu], Source], gpu: FakeGpu, own_cache: Path
) -> None:
    compiling.compile_source(HALF)
    other = change(gpu)
    for _ in range(2):
        compiling.compile_source(other)
    assert len(gpu.compiled) == 2
    assert gpu.loaded[1] == gpu.loaded[2]
    kept = {path.name for path in (own_cache / "code").glob("*.cubin")}
    assert kept == ({NAME, NAME.replace("90", "100")} if change is other_arch else {NAME})


def truncate(data: bytes) -> bytes:
    return data[:-3]


def change_the_code(data: bytes) -> bytes:
    return data[:-1] + b"!"


def no_digest(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncate, change_the_code, no_digest, nothing])
def test_damaged_code_is_compiled_anew(
    damage: Callable[[bytes], bytes], gpu: FakeGpu, own_cache: Path
) -> None:
    compiling.compile_source(HALF)
    path = own_cache / "code" / NAME
    good = path.read_bytes()
    path.write_bytes(damage(good))
    compiling.compile_source(HALF)
    assert gpu.loaded[1] == gpu.loaded[0]
    assert path.read_bytes() == good


def test_a_folder_that_others_can_write_to_is_not_read(gpu: FakeGpu, own_cache: Path) -> None:
    compiling.compile_source(HALF)
    (own_cache / "code").chmod(0o777)
    compiling.compile_source(HALF)
    assert len(gpu.compiled) == 2


def test_a_folder_that_cannot_be_made_costs_the_time_alone(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", "/proc/softgen")
    for _ in range(2):
        assert compiling.compile_source(HALF).registers == 40
    assert len(gpu.compiled) == 2


def test_a_text_that_nvrtc_refuses_is_a_compile_error_and_nothing_is_kept(
    gpu: FakeGpu, own_cache: Path
) -> None:
    broken = dataclasses.replace(HALF, text="@")
    with pytest.raises(CompileError) as caught:
        compiling.compile_source(broken)
    told = str(caught.value)
    assert told.startswith(f"NVRTC refused {HALF.name}: line 3: what is @\n{HALF.name}.cu is of ")
    assert told.endswith(f"`softgen show {HALF.name}` prints it")
    losses = losses_of(DType.BFLOAT16)._replace(text="@")  # no strategy's, and not to be shown
    with pytest.raises(CompileError, match=r"NVRTC refused losses_bf16_1024: line 3: what is @$"):
        compiling.load(losses)
    assert gpu.loaded == []
    assert not (own_cache / "code").exists()


def test_kept_code_is_softgens_to_delete(gpu: FakeGpu) -> None:
    compiling.compile_source(HALF)
    narrow = render(parse_name("softmax_bf16_to_e4m3_512_warp_p8_c16_g32_r1_b128"))
    compiling.compile_source(narrow)
    assert len(owned.files("code", folders.made("code"))) == 2
