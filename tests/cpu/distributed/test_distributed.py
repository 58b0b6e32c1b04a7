"""softgen.distributed in 2 and 4 processes, against float64 of whole rows."""

from __future__ import annotations

import ast
import importlib
import math
import re
from pathlib import Path
from typing import Any

import pytest

from softgen.call.kernels import INVARIANT
from softgen.distributed import local
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from tests.helpers.ranks import run_ranks
from tests.helpers.run_folder import run_folder

CASES: dict[str, tuple[str, ...]] = {
    "softmax": ("columns", "softmax"),
    "log_softmax": ("columns", "log_softmax"),
    "logsumexp": ("logsumexp",),
    "cross_entropy": ("cross_entropy",),
    "overwritten logits": ("overwritten",),
    "tokens": ("tokens",),
    "entropies": ("entropies",),
    "what is sent": ("counted",),
    "dtensors": ("dtensors",),
}


@pytest.fixture
def bodies() -> Any:
    """What processes do, in a module that needs PyTorch."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return importlib.import_module("tests.cpu.distributed.bodies")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_in_processes(case: str, size: int, bodies: Any, tmp_path: Path) -> None:
    body, *arguments = CASES[case]
    run_ranks(size, getattr(bodies, body), tmp_path, *arguments)


@pytest.mark.parametrize("size", [2, 4])
def test_a_process_that_is_killed(size: int, bodies: Any, tmp_path: Path) -> None:
    run_ranks(size, bodies.killed, tmp_path, dying=[1])


def test_a_process_that_does_not_come(bodies: Any, tmp_path: Path) -> None:
    run_ranks(2, bodies.absent, tmp_path)


def test_by_the_texts_of_the_kernels(
    bodies: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = run_folder(tmp_path_factory) / "programs"
    programs.mkdir(exist_ok=True)
    run_ranks(2, bodies.emulated, tmp_path, programs)
    hidden = importlib.import_module("tests.cpu.distributed.hidden")
    (tmp_path / "hidden").mkdir()
    run_ranks(2, hidden.emulated, tmp_path / "hidden", programs)


def test_the_page(bodies: Any, tmp_path: Path) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = "".join((docs / f"{name}.md").read_text() for name in ("distributed", "tensor_parallel"))
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    train, of_dtensor, of_cupy, step, of_hidden = programs
    ast.parse(of_cupy)  # it runs on GPUs alone
    run_ranks(2, bodies.page, tmp_path, train, of_dtensor, step, of_hidden)


def test_the_page_for_users_of_megatron(bodies: Any, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "megatron.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    function, step, of_megatron, without_logits = programs
    ast.parse(of_megatron)  # which is not there
    run_ranks(2, bodies.megatron, tmp_path, function, step, without_logits)


def test_compiled_and_wrapped(bodies: Any, tmp_path: Path) -> None:
    """No graph breaks, autocast, and tensors that have no memory, or not yet."""
    recorded = importlib.import_module("tests.cpu.distributed.recorded")
    run_ranks(2, recorded.all_of_it, tmp_path)


@pytest.mark.parametrize("size", [2, 4])
def test_losses_of_hidden_states(size: int, bodies: Any, tmp_path: Path) -> None:
    hidden = importlib.import_module("tests.cpu.distributed.hidden")
    run_ranks(size, hidden.all_of_it, tmp_path)


@pytest.mark.parametrize("size", [2, 3])
def test_what_losses_of_hidden_states_take_beside(size: int, bodies: Any, tmp_path: Path) -> None:
    hidden = importlib.import_module("tests.cpu.distributed.hidden")
    run_ranks(size, hidden.taken, tmp_path)


def test_dtensors_and_models_of_softgen_torch(bodies: Any, tmp_path: Path) -> None:
    placed = importlib.import_module("tests.cpu.distributed.placed")
    run_ranks(2, placed.all_of_it, tmp_path)


@pytest.mark.parametrize(
    ("rows", "cols", "pieces"),
    [
        (4096, 64128, 1),
        (64, 64128, 24),
        (16, 2097152, 128),
        (1, 64128, 167),
        (64, 64127, 1),
        (8, 500, 1),
        (0, 1000, 1),
    ],
)
def test_few_rows_are_cut_where_packs_start(rows: int, cols: int, pieces: int) -> None:
    assert local.pieces_of(rows, cols) == pieces


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shard_without_columns_changes_nothing(dtype: str, bodies: Any) -> None:
    """Its pair is (-inf, 0): a maximum of 0 would stand above that of rows far below it."""
    torch = bodies.torch
    x, target = torch.zeros(2, 0, dtype=getattr(torch, dtype)), torch.zeros(2, dtype=torch.int64)
    none, zeros, any_other = ([number] * 2 for number in (-math.inf, 0.0, math.inf))
    for found, wanted in (
        (local.pair(x, None), (none, zeros)),
        (local.entropy_of(x, None), (zeros, none)),
        ((local.lse_of(x),), (none,)),
        (local.targets_of(x, target, 0, -100), (none, zeros, any_other)),
    ):
        assert [each.tolist() for each in found] == list(wanted)
        assert {each.dtype for each in found} == {x.dtype}


def test_what_merges_parts_is_one_kernel_that_nobody_times(
    bodies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that timed each their own might add up in different orders."""
    torch = bodies.torch
    world = importlib.import_module("tests.helpers.torch_calls").on_cpu(monkeypatch)
    monkeypatch.setenv("SOFTGEN_TUNE", "force")
    parts, target = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    local.merge(parts, parts)
    local.merge_lse(parts)
    local.merge_losses(parts, parts, parts[:, 0].contiguous(), target, -100, 0.0)
    assert world.launches == ["merge", "logsumexp", "merge_losses"]
    assert world.modes == [INVARIANT] * 3
    local.logsumexp(parts)  # of a process's own columns
    assert world.modes[3:] == ["force"]


@pytest.mark.parametrize("by_row", [False, True])
def test_entropies_of_a_shard_are_of_what_it_is_times(
    by_row: bool, bodies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = bodies.torch
    world = importlib.import_module("tests.helpers.torch_calls").on_cpu(monkeypatch)
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    scale: Any = torch.tensor([0.5, 1.0, 2.0, 3.0]) if by_row else 0.25
    exact_x = x.double().requires_grad_()
    log_p = torch.log_softmax(exact_x * (scale[:, None] if by_row else scale), -1)
    exact, up = bodies.entropy_of(log_p), torch.tensor([1.0, -2.0, 0.5, 4.0])
    (dx,) = torch.autograd.grad(exact, exact_x, up.double())
    entropy, lse = local.entropy(x, scale)
    bodies.close(entropy, exact.detach(), 3e-6)
    bodies.close(local.entropy_backward(x, lse, entropy, up, scale), dx, 3e-6)
    assert world.launches == ["entropy_lse", "entropy_backward"]
    assert local.entropy_of(x[:, :0], scale)[1].tolist() == [-math.inf] * 4


@pytest.mark.parametrize("width", [12, 9])
def test_a_gradient_of_a_shard_takes_the_place_of_its_logits(
    width: int, bodies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that follow each other, and of such that are padded."""
    torch = bodies.torch
    world = importlib.import_module("tests.helpers.torch_calls").on_cpu(monkeypatch)
    full = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([3, 15, -100, 19])
    rows, dx, lse = bodies.exact_losses(full, target, -100, 1e-3, 0.25)
    x = torch.zeros(4, width)[:, :9].copy_(full[:, 2:11])
    up = torch.tensor([1.0, -2.0, 3.0, 0.5])
    more = (lse.float(), up, 0.25, 1e-3, rows.float(), 2, 20)
    got = local.cross_entropy_backward(x, target, -100, *more, x)
    assert got is x
    bodies.close(x, (dx * up[:, None])[:, 2:11], 3e-6)
    assert world.launches == ["cross_entropy_backward_shard"]


def test_bad_input_is_told_what_to_do(bodies: Any) -> None:
    torch, distributed = bodies.torch, bodies.sd
    x, ids = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(NotSupportedError, match="start the program with torchrun"):
        distributed.softmax(x)
    with pytest.raises(InvalidTypeError, match="takes tensors, got list"):
        distributed.logsumexp([1.0])
    with pytest.raises(InvalidTypeError, match=r"float of 16 to 64 bits, got torch\.int64"):
        distributed.log_softmax(ids)
    for run in (
        *(distributed.softmax, distributed.log_softmax, distributed.logsumexp, distributed.entropy),
    ):
        for dtype in ("float8_e4m3fn", torch.float8_e5m2):
            with pytest.raises(NotSupportedError, match="no 8-bit results, got dtype float8_e"):
                run(x, dtype=dtype)
        with pytest.raises(InvalidTypeError, match="dtype 'int64' is not supported"):
            run(x, dtype=torch.int64)
    with pytest.raises(InvalidValueError, match="columns along its last dimension"):
        distributed.softmax(x[0, 0])
    with pytest.raises(InvalidTypeError, match=r"target must be .* got torch\.float32"):
        distributed.cross_entropy(x, x[:, 0])
    with pytest.raises(InvalidValueError, match=r"shape of x's rows, \(2,\), got \(1,\)"):
        distributed.cross_entropy(x, ids[:1])
    with pytest.raises(InvalidValueError, match="did you mean"):
        distributed.cross_entropy(x, ids, reduction="means")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ignore_index": 1.5}, InvalidTypeError, r"ignore_index must be an int, got 1\.5"),
        ({"ignore_index": True}, InvalidTypeError, "ignore_index must be an int, got True"),
        ({"ignore_index": "1"}, InvalidTypeError, "ignore_index must be an int, got '1'"),
        ({"label_smoothing": 1.5}, InvalidValueError, r"must be from 0 to 1, got 1\.5"),
        ({"dtype": "int64"}, InvalidTypeError, "dtype 'int64' is not supported"),
        ({"z_loss": "a"}, InvalidTypeError, "z_loss must be a number, got 'a'"),
        ({"z_loss": float("nan")}, InvalidValueError, "z_loss must be finite, got nan"),
        ({"z_loss": float("inf")}, InvalidValueError, "z_loss must be finite, got inf"),
    ]
    for options, error, told in wrong:
        with pytest.raises(error, match=told):
            distributed.cross_entropy(x, ids, **options)
    for function in (distributed.cross_entropy, distributed.token_log_probs):
        for offset in ("0", 6.7, True):
            with pytest.raises(InvalidTypeError, match=f"offset must be an int, got {offset!r}"):
                function(x, ids, offset=offset)
        with pytest.raises(InvalidValueError, match="first column, 0 or above, got -1"):
            function(x, ids, offset=-1)
    with pytest.raises(InvalidValueError, match="or one axis more"):
        distributed.token_log_probs(x, ids[:1])
    with pytest.raises(InvalidValueError, match="1 to 64 ids, got 65"):
        distributed.token_log_probs(x, ids[:, None].expand(2, 65))
    with pytest.raises(InvalidValueError, match=r"above 0, got 0\.0"):
        distributed.token_log_probs(x, ids, temperature=0.0)
    for shape in ((3,), (2, 1), (2, 2)):
        told = f"temperature must broadcast to (2,), got shape {shape}"
        with pytest.raises(InvalidValueError, match=f"^{re.escape(told)}$"):
            distributed.token_log_probs(x, ids, temperature=torch.ones(shape))
    for temperature in ("1", True, [1.0, 2.0]):
        told = f"temperature must be a number or a tensor, got {temperature!r}"
        with pytest.raises(InvalidTypeError, match=f"^{re.escape(told)}$"):
            distributed.token_log_probs(x, ids, temperature=temperature)
    with pytest.raises(InvalidValueError, match=r"above 0, got -1\.0"):
        distributed.entropy(x, temperature=-1.0)
    with pytest.raises(InvalidValueError, match="no gradient here"):
        distributed.token_log_probs(x, ids, temperature=torch.ones(2).requires_grad_())
