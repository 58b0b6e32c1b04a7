"""Models of Hugging Face that are patched: losses and gradients are the unpatched model's."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")
transformers = pytest.importorskip("transformers", reason="models of Hugging Face need it")

import softgen.torch as mine  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS, ROWS, POSITIONS = 67, 2, 9
EPSILON = 1e-5
SIZE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "use_cache": False,
}
GPT2 = {
    **{"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
    **{"bos_token_id": 1, "eos_token_id": 2, "use_cache": False},
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# The name of a model, and what its configuration has beside the size.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "gpt2": ("GPT2", NO_DROPOUT),  # tied to its embedding
    "gemma2": ("Gemma2", {"final_logit_softcapping": 3.0}),  # tied too
    "qwen2": ("Qwen2", {}),
    "phi": ("Phi", {"num_key_value_heads": 2}),  # its last layer has a bias
    "cohere": ("Cohere", {"logit_scale": 0.3}),
    "granite": ("Granite", {"logits_scaling": 3.0}),
    "mixtral": ("Mixtral", {"num_local_experts": 2, "output_router_logits": True}),
}
COMPILED = ("llama", "gpt2", "gemma2")


def made(name: str = "llama") -> Any:
    """Return a model with random weights, the same each time, in training."""
    kind, options = MODELS[name]
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    size = GPT2 if kind == "GPT2" else SIZE
    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**{**size, **options})
    model = getattr(transformers, f"{kind}{head}")(config)
    with torch.no_grad():
        for each in model.parameters():  # losses of weights that are about 0 say little
            each += 0.2 * torch.randn(each.shape)
    return model.train()


def given() -> dict[str, Any]:
    """Return words, of which some are no targets."""
    words = torch.randint(WORDS, (ROWS, POSITIONS), generator=torch.Generator().manual_seed(3))
    labels = words.clone()
    labels[0, :4] = -100
    return {"input_ids": words, "labels": labels}


def step(model: Any, call: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return what a model returns, and the gradients."""
    model.zero_grad(set_to_none=True)
    found = (model if call is None else call)(**{**given(), **options})
    (found["loss"] * 1.5).backward()
    return found, {k: p.grad for k, p in model.named_parameters() if p.grad is not None}


def assert_same(found: Any, expected: Any) -> None:
    """Losses and all gradients of float32 are equal."""
    (output, gradients), (their_output, theirs) = found, expected
    torch.testing.assert_close(output["loss"], their_output["loss"], rtol=EPSILON, atol=0)
    assert gradients.keys() == theirs.keys()
    for name, each in theirs.items():
        assert (gradients[name] - each).norm() <= EPSILON * each.norm(), name


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_learns_the_same_without_logits(name: str, world: World) -> None:
    model = made(name)
    expected = step(model)
    assert not world.launches
    assert mine.patch(model) is model
    found = step(model)
    assert_same(found, expected)
    assert found[0].logits is None
    assert "logits" not in found[0]
    assert type(found[0]) is type(expected[0])
    assert "cross_entropy_grad_rows" in world.launches


@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_16_bits_are_as_near_as_those_of_the_unpatched_model(name: str) -> None:
    model = made(name).bfloat16()
    truth, exact = step(copy.deepcopy(model).float())
    output, theirs = step(model)
    found, gradients = step(mine.patch(model))
    assert found["loss"].dtype is output["loss"].dtype is torch.float32
    torch.testing.assert_close(found["loss"], truth["loss"], rtol=2**-7, atol=0)
    for key, each in exact.items():
        off, theirs_off = ((of[key].float() - each).norm() for of in (gradients, theirs))
        assert off <= 2 * theirs_off + 2**-8 * each.norm(), (key, off, theirs_off)


@pytest.mark.parametrize("name", COMPILED)
def test_a_patched_model_compiles_without_a_graph_break(name: str, world: World) -> None:
    model = made(name)
    expected = step(model)
    mine.patch(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = step(model, compiled)
    assert_same(found, expected)
    assert found[0].logits is None
    assert "cross_entropy_grad_rows" in world.launches
