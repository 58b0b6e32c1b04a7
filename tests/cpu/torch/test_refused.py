"""What softgen.torch cannot compute is an error that says what was given and what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen  # noqa: E402
import softgen.torch as mine  # noqa: E402
from softgen.call.eager import OLDEST  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402
from tests.helpers.torch_functions import (  # noqa: E402
    COLS,
    FUNCTIONS,
    ROWS,
    columns,
    drawn,
)

ROOT = Path(__file__).parents[3]

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

functions = pytest.mark.parametrize("name", FUNCTIONS)
OLD = "import torch; torch.__version__ = torch.torch_version.TorchVersion('2.6.0'); "
MOVE = r"tensor on cpu.*x\.cuda\(\)"


@pytest.fixture(autouse=True)
def nothing_is_launched(world: World) -> Any:
    yield
    assert not world.launches


@functions
@pytest.mark.parametrize("tracked", [False, True])
def test_tensors_on_the_cpu(name: str, tracked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the stand-in, which takes them."""
    monkeypatch.undo()
    x = drawn(ROWS, COLS).requires_grad_(tracked)
    for _ in range(2):
        with pytest.raises(InvalidTypeError, match=MOVE):
            FUNCTIONS[name].ours(x, columns(ROWS))


@functions
@pytest.mark.parametrize("around", ["vmap", "grad", "compile", "trace", "dual"])
def test_tensors_on_the_cpu_under_a_transform(
    name: str, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    ours, x, ids = FUNCTIONS[name].ours, drawn(ROWS, COLS), columns(ROWS)
    torch._dynamo.reset()
    runs: dict[str, Callable[[], Any]] = {
        "vmap": lambda: torch.func.vmap(ours)(x[None], ids[None]),
        "grad": lambda: torch.func.grad(lambda x: ours(x, ids).sum())(x),
        "compile": lambda: torch.compile(ours, backend="aot_eager")(x, ids),
        "trace": lambda: torch.jit.trace(lambda x: ours(x, ids), (x,)),
        "dual": lambda: torch.func.jvp(lambda x: ours(x, ids), (x,), (x,)),
    }
    # Of forward-mode AD some have no rule, which may be said first.
    kinds = (InvalidTypeError, *([NotSupportedError] if around == "dual" else []))
    with pytest.raises(kinds, match=MOVE if around != "dual" else f"{MOVE}|{name}"):
        runs[around]()


@functions
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
@pytest.mark.parametrize("tracked", [False, True])
def test_layouts_that_are_not_strided(name: str, layout: str, tracked: bool) -> None:
    x = getattr(drawn(ROWS, COLS), layout)()
    if tracked and layout != "to_mkldnn":
        x.requires_grad_()
    with pytest.raises(InvalidTypeError, match=r"layout.*to_dense\(\)"):
        FUNCTIONS[name].ours(x, columns(ROWS))


DTYPES = (
    *(torch.complex64, torch.complex128, torch.int64, torch.int32, torch.uint8, torch.bool),
    torch.float8_e4m3fn,
)


@functions
@pytest.mark.parametrize("dtype", DTYPES)
def test_types_that_are_not_floats(name: str, dtype: Any) -> None:
    """The text says which types there are."""
    for tracked in {False, dtype.is_complex}:
        x = drawn(ROWS, COLS).to(dtype).requires_grad_(tracked)
        with pytest.raises(InvalidTypeError, match=r"(?s)(?=.*float16)(?=.*bfloat16)(?=.*float64)"):
            FUNCTIONS[name].ours(x, columns(ROWS))


class Closed(torch.Tensor):  # type: ignore[misc, name-defined]
    """A wrapper that has no rule for any operator of softgen."""

    @staticmethod
    def __new__(cls, inner: Any, tracked: bool) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=tracked
        )

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator.namespace == "softgen":
            return NotImplemented
        if operator is torch.ops.aten.detach.default:
            return args[0]
        raise AssertionError(f"{operator} was called of memory that is not there")


@functions
@pytest.mark.parametrize("tracked", [False, True])
def test_a_wrapper_without_a_rule(name: str, tracked: bool) -> None:
    """PyTorch's own error names the operator and the class; softgen's says what to pass."""
    x = Closed(drawn(ROWS, COLS), tracked)
    with pytest.raises((TypeError, NotSupportedError), match="Closed") as caught:
        FUNCTIONS[name].ours(x, columns(ROWS))
    assert "softgen" in str(caught.value)


@functions
def test_a_nested_tensor(name: str) -> None:
    x = torch.nested.nested_tensor([drawn(2, COLS), drawn(3, COLS)], layout=torch.jagged)
    kinds = (InvalidTypeError, InvalidValueError, NotSupportedError)
    with pytest.raises(kinds, match=r"(?i)nested|one dimension more"):
        FUNCTIONS[name].ours(x, columns(5))


WITHOUT = [name for name, pair in FUNCTIONS.items() if not pair.again]


@pytest.fixture
def launches_are_fine(world: World) -> Any:
    """A gradient is computed before its own is asked for."""
    yield
    world.launches.clear()


@pytest.mark.parametrize("name", WITHOUT)
def test_second_derivatives_without_a_rule(name: str, launches_are_fine: None) -> None:
    pair = FUNCTIONS[name]
    x = drawn(ROWS, COLS).requires_grad_()
    (dx,) = torch.autograd.grad(pair.ours(x, columns(ROWS)).sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match=rf"(?s){name}.*(PyTorch's own|create_graph)"):
        dx.square().sum().backward()


@pytest.mark.parametrize("name", WITHOUT)
def test_second_derivatives_of_torch_func_without_a_rule(
    name: str, launches_are_fine: None
) -> None:
    def slope(x: Any) -> Any:
        ours = FUNCTIONS[name].ours
        return torch.func.grad(lambda x: ours(x, columns(ROWS)).sum())(x).square().sum()

    with pytest.raises(NotSupportedError, match=rf"(?s){name}.*(PyTorch's own|create_graph)"):
        torch.func.grad(slope)(drawn(ROWS, COLS))


@pytest.mark.parametrize("name", [n for n, pair in FUNCTIONS.items() if not pair.tangents])
@pytest.mark.parametrize("tracked", [False, True])
def test_tangents_without_a_rule(name: str, tracked: bool) -> None:
    x, t = drawn(ROWS, COLS).requires_grad_(tracked), drawn(ROWS, COLS, seed=1)
    forward_ad = torch.autograd.forward_ad
    with (
        forward_ad.dual_level(),
        pytest.raises(NotSupportedError, match=rf"(?s){name}.*(PyTorch's own|torch\.func)"),
    ):
        FUNCTIONS[name].ours(forward_ad.make_dual(x, t), columns(ROWS))


FLOAT, INT = torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.int64)
LOGITS, META = torch.zeros(2, 5, 9), {"device": "meta"}
HELPFUL: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *(
        (call, InvalidTypeError, r"float32 in the shape of class indices, \(2,\); convert it")
        for call in (
            lambda: mine.cross_entropy(FLOAT, torch.zeros(2)),
            lambda: softgen.cross_entropy(FLOAT, torch.zeros(2)),
            lambda: softgen.cross_entropy_grad(FLOAT, torch.zeros(2)),
        )
    ),
    (
        lambda: mine.cross_entropy(LOGITS, FLOAT),
        InvalidTypeError,
        r"float32 in the shape of class indices, \(2, 5\); convert it",
    ),
    (
        lambda: mine.cross_entropy(LOGITS, INT),
        InvalidValueError,
        r"classes are dimension 1, as in PyTorch; .*input\.flatten\(0, -2\) and target\.flatten\(",
    ),
    (lambda: mine.softmax(INT, -1), InvalidTypeError, r"for example x\.to\(torch\.float32\)"),
    (lambda: softgen.softmax(INT), InvalidTypeError, r"for example x\.to\(torch\.float32\)"),
    (
        lambda: mine.cross_entropy(FLOAT, INT[:, 0], **{"labelsmoothing": 0.1}),  # type: ignore[arg-type]
        InvalidTypeError,
        "unknown argument 'labelsmoothing'; did you mean 'label_smoothing'",
    ),
    (
        lambda: mine.token_log_probs(FLOAT, INT[:, 0], **{"temprature": 1}),  # type: ignore[arg-type]
        InvalidTypeError,
        r"did you mean 'temperature'.*softgen knows: input, ids, temperature.*scale, softcap",
    ),
    (
        lambda: mine.linear_cross_entropy(torch.zeros(2, 8), torch.zeros(8, 9), INT[:, 0]),
        InvalidValueError,
        r"got \(2, 8\) and \(8, 9\); pass linear_weight\.T",
    ),
    *(
        (call, InvalidTypeError, rf"tensor on meta as {name}; .*Move it with {name}\.cuda\(\)")
        for name, call in (
            ("target", lambda: softgen.cross_entropy(FLOAT, torch.zeros(2, dtype=int, **META))),
            ("weight", lambda: softgen.cross_entropy(FLOAT, INT[:, 0], torch.zeros(5, **META))),
            ("ids", lambda: softgen.token_log_probs(FLOAT, torch.zeros(2, dtype=int, **META))),
            ("y", lambda: softgen.softmax_backward(FLOAT, torch.zeros(2, 5, **META))),
            ("mask", lambda: softgen.softmax(FLOAT, mask=torch.zeros(2, 5, dtype=bool, **META))),
            ("out", lambda: softgen.softmax(FLOAT, out=torch.zeros(2, 5, **META))),
        )
    ),
]


@pytest.mark.parametrize(("call", "error_type", "text"), HELPFUL)
def test_errors_say_what_to_do(
    call: Callable[[], Any], error_type: type[Exception], text: str
) -> None:
    with pytest.raises(error_type, match=text):
        call()


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
@pytest.mark.parametrize("tracked", [False, True])
def test_types_of_entropies_that_are_not_floats(dtype: Any, tracked: bool) -> None:
    x = drawn(ROWS, COLS).requires_grad_(tracked)
    for run in (mine.entropy, torch.func.vmap(mine.entropy, in_dims=(0, None))):
        with pytest.raises(InvalidTypeError, match=rf"dtype.*{str(dtype).removeprefix('torch.')}"):
            run(x, -1, dtype=dtype)


@pytest.mark.parametrize(
    "program", ["import softgen.torch", "import softgen; softgen.softmax(torch.zeros(2, 3))"]
)
def test_an_older_pytorch_is_an_error_that_says_which_is_needed(program: str) -> None:
    command = [sys.executable, "-c", OLD + program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    wanted = "softgen takes tensors of PyTorch 2.7 or later, 2.6.0 is installed"
    assert ended.stderr.endswith(f"MissingDependencyError: {wanted}\n")
    oldest = re.search(r'torch = \["torch>=([\d.]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    assert oldest[1] == OLDEST
