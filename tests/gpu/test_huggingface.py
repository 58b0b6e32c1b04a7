"""Models of Hugging Face that are patched, on a GPU: eager, and compiled by inductor."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="models of Hugging Face need it")

import softgen.torch as mine  # noqa: E402
from tests.cpu.torch.test_huggingface import COMPILED, given, made  # noqa: E402

# Of PyTorch's own code.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

INPUTS = {name: each.cuda() for name, each in given().items()} if torch.cuda.is_available() else {}


def learned(model: Any, *, compiled: bool) -> tuple[float, dict[str, Any]]:
    """Return the loss of a step, and the gradients."""

    def loss_of(inputs: dict[str, Any]) -> Any:
        return model(**inputs).loss

    call = torch.compile(loss_of, fullgraph=True) if compiled else loss_of
    model.zero_grad(set_to_none=True)
    loss = call(INPUTS)
    loss.backward()
    return loss.item(), {name: each.grad for name, each in model.named_parameters()}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", COMPILED)
def test_a_patched_model_learns_the_same(name: str, compiled: bool) -> None:
    torch._dynamo.reset()
    model = made(name).cuda()
    loss, gradients = learned(model, compiled=False)
    kept = {key: each.clone() for key, each in gradients.items()}
    ours, found = learned(mine.patch(model), compiled=compiled)
    assert ours == pytest.approx(loss, rel=1e-5)
    for key, each in kept.items():
        assert (found[key] - each).norm() <= 1e-4 * each.norm(), key
