"""Models of Hugging Face that are patched: losses and gradients are the unpatched model's."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")
transformers = pytest.importorskip("transformers", reason="models of Hugging Face need it")

import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402
from softgen.torch.dtensor import is_dtensor  # noqa: E402
from tests.helpers.ranks import run_ranks  # noqa: E402
from tests.helpers.torch_calls import World, on_cpu  # noqa: E402

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


@pytest.mark.parametrize("name", ["gemma2", "cohere", "granite"])
def test_a_last_layer_with_a_bias_whose_logits_are_scaled(name: str) -> None:
    model = made(name)
    head = torch.nn.Linear(SIZE["hidden_size"], WORDS)
    head.weight = model.lm_head.weight
    model.lm_head = head
    expected = step(model)
    assert expected[1]["lm_head.bias"].any()
    assert_same(step(mine.patch(model)), expected)


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


@pytest.mark.parametrize(
    "options",
    [
        {"num_items_in_batch": 5},
        {"num_items_in_batch": torch.tensor(5)},
        {"shift_labels": torch.arange(ROWS * POSITIONS).reshape(ROWS, POSITIONS)},
        {"shift_labels": torch.arange(ROWS * 3).reshape(ROWS, 3), "logits_to_keep": 3},
        {"ignore_index": 7},
        {"return_dict": False},
    ],
    ids=str,
)
def test_what_a_forward_takes_beside_labels(options: dict[str, Any]) -> None:
    model = made()
    if options.get("return_dict") is False:
        expected = model(**given(), **options)
        found = mine.patch(model)(**given(), **options)
        torch.testing.assert_close(found[0], expected[0], rtol=EPSILON, atol=0)
        assert len(found) == len(expected) - 1  # no logits
        return
    if "ignore_index" in options:
        options = {**options, "labels": given()["input_ids"] % 8}
    expected = step(model, **options)
    assert_same(step(mine.patch(model), **options), expected)


def test_fewer_logits_than_labels_are_an_error_as_ever() -> None:
    model = made()
    with pytest.raises(ValueError, match="batch_size"):
        model(**given(), logits_to_keep=3)
    said = r"got 6 logits and 18 labels; with logits_to_keep pass shift_labels"
    with pytest.raises(InvalidValueError, match=said):
        mine.patch(model)(**given(), logits_to_keep=3)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    model = made()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    expected = step(model)
    assert_same(step(mine.patch(model)), expected)


def test_a_frozen_last_layer_and_autocast() -> None:
    model = made()
    model.lm_head.requires_grad_(False)
    expected = step(model)
    assert_same(step(mine.patch(model)), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(**given()).loss.dtype is torch.float32


def test_logits_are_there_in_evaluation_and_where_they_are_asked_for(world: World) -> None:
    model = made()
    expected = model(**given())
    mine.patch(model)
    asked = model(**given(), skip_logits=False)
    model.eval()
    without_labels = model(input_ids=given()["input_ids"])
    for each in (asked, model(**given()), without_labels):
        assert torch.equal(each.logits, expected.logits)
    assert not world.launches
    assert model(**given(), skip_logits=True).logits is None


def test_nothing_else_changes_and_unpatch_restores_the_model() -> None:
    model, other = made(), made()
    own, state, attributes = type(model), list(model.state_dict()), set(model.__dict__)
    mine.patch(model)
    assert mine.patch(model) is model
    assert type(other) is own
    assert other(**given()).logits is not None
    assert isinstance(model, own)
    assert type(model).__name__ == own.__name__
    assert inspect.signature(model.forward) == inspect.signature(other.forward)
    assert list(model.state_dict()) == state
    assert mine.unpatch(model) is model
    assert type(model) is own
    assert set(model.__dict__) == attributes
    assert model(**given()).logits is not None
    assert mine.unpatch(model) is model


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        copy.copy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model._replicate_for_data_parallel(),
    ],
    ids=["deepcopy", "copy", "pickle", "replica"],
)
def test_copies_are_patched_and_compute_by_their_own_weights(copied: Callable[..., Any]) -> None:
    model = mine.patch(made())
    expected = model(**given()).loss
    other = copied(model)
    found = other(**given())
    assert found.logits is None
    assert torch.equal(found.loss, expected)
    mine.unpatch(other)
    assert other(**given()).logits is not None
    assert model(**given()).logits is None


class Plain(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any, labels: Any = None) -> Any:
        return x


def wrapped(model: Any) -> Any:
    model.forward = model.forward
    return model


def with_hook(model: Any) -> Any:
    model.lm_head.register_forward_hook(lambda *_: None)
    return model


def with_own_loss(model: Any) -> Any:
    model.loss_function = torch.nn.functional.cross_entropy
    return model


def with_other_layer(model: Any) -> Any:
    class Other(torch.nn.Linear):  # type: ignore[misc, name-defined]
        pass

    model.lm_head = Other(16, WORDS)
    return model


def t5() -> Any:
    size = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    config = transformers.T5Config(**size, num_heads=2, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def bert() -> Any:
    names = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
    size = {name: SIZE[name] for name in names}
    config = transformers.BertConfig(**size, num_hidden_layers=1, num_attention_heads=2)
    return transformers.BertForMaskedLM(config)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: "llama", "no torch.nn.Module"),
        (Plain, "Plain"),
        (lambda: torch.nn.Linear(2, 3), "Linear"),
        (t5, "T5ForConditionalGeneration: its forward does not call self.loss_function"),
        (bert, "BertForMaskedLM"),
        (lambda: wrapped(made()), "its forward was replaced"),
        (lambda: torch.compile(made(), backend="eager"), "patch the model before"),
        (lambda: with_hook(made()), "its lm_head has hooks"),
        (lambda: with_own_loss(made()), "its loss is"),
        (lambda: with_other_layer(made()), "its lm_head is a"),
    ],
)
def test_other_models_are_refused(model: Callable[[], Any], said: str) -> None:
    given_model = model()
    own = type(given_model)
    with pytest.raises(InvalidTypeError, match=r"It takes a causal language model") as raised:
        mine.patch(given_model)
    assert said in str(raised.value)
    assert type(given_model) is own


def test_a_last_layer_that_was_replaced_since_is_an_error() -> None:
    model = with_other_layer(mine.patch(made()))
    with pytest.raises(InvalidTypeError, match="its lm_head is a"):
        model(**given())


def test_a_forward_that_was_wrapped_since_is_not_unpatched() -> None:
    model = wrapped(mine.patch(made()))
    with pytest.raises(NotSupportedError, match="undo that first"):
        mine.unpatch(model)


def test_what_is_done_to_logits_and_not_known_is_an_error() -> None:
    class Odd(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any, labels: Any = None, **_: Any) -> Any:
            logits = self.lm_head(self.model(input_ids)[0])
            z_loss = self.change(logits).mean()
            return self.loss_function(logits, labels, WORDS) + z_loss

    model = mine.patch(Odd(transformers.LlamaConfig(**SIZE)))
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda logits: logits.logsumexp(-1),
        lambda logits: torch.logsumexp(logits, -1),
        lambda logits: logits * torch.ones(WORDS),
        lambda logits: logits.tanh().tanh(),
        lambda logits: logits + 1.0,
        lambda logits: 1.0 - logits,
        lambda logits: -logits,
        lambda logits: logits == 0,
        lambda logits: logits[..., 0],
        lambda logits: torch.ones(()) if logits else torch.zeros(()),
    )
    for each in changes:
        model.change = each
        with pytest.raises(NotSupportedError, match="of its logits, which are not made"):
            model(**given())


def test_a_loss_that_is_set_later_is_refused() -> None:
    model = mine.patch(made())
    model.loss_function = torch.nn.functional.cross_entropy
    with pytest.raises(InvalidTypeError, match=r"its loss is .*cross_entropy.*, and not ForCausal"):
        model(**given())
    model.loss_function = transformers.loss.loss_utils.ForCausalLMLoss
    assert model(**given()).loss.isfinite()


class LowRank(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A frozen layer with a product of two small matrices beside, as LoRA has it."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.a = torch.nn.Parameter(torch.full((2, layer.in_features), 0.1))
        self.b = torch.nn.Parameter(torch.linspace(-1, 1, 2 * layer.out_features).view(-1, 2))

    def forward(self, x: Any) -> Any:
        return self.layer(x) + x @ self.a.T @ self.b.T


@pytest.mark.parametrize("patched_first", [True, False])
def test_adapters_of_a_frozen_model(patched_first: bool, world: World) -> None:
    def adapted(patched: bool) -> Any:
        model = made().requires_grad_(requires_grad=False)
        if patched and patched_first:
            mine.patch(model)
        attention = model.model.layers[0].self_attn
        attention.q_proj = LowRank(attention.q_proj)
        return mine.patch(model) if patched and not patched_first else model

    expected = step(adapted(patched=False))
    found = step(adapted(patched=True))
    assert_same(found, expected)
    assert {name.rpartition(".")[2] for name in found[1]} == {"a", "b"}
    assert found[0].logits is None
    assert "cross_entropy_grad_rows" in world.launches


def micro_batches() -> list[dict[str, Any]]:
    """Return batches of one row, with as many targets as the row has no label of -100."""
    words, labels = given().values()
    return [{"input_ids": words[[i]], "labels": labels[[i]]} for i in range(ROWS)]


def trainers_step(model: Any, smoother: Any = None) -> tuple[list[Any], dict[str, Any]]:
    """Return losses and gradients of a step that Trainer accumulates over several batches.

    By the code of Trainer that computes a loss: all of a Trainer needs the package accelerate.
    """
    trainer = object.__new__(transformers.Trainer)
    trainer.args = SimpleNamespace(average_tokens_across_devices=False, n_gpu=1)
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda each: each)
    trainer.label_smoother, trainer.compute_loss_func = smoother, None
    trainer.model_accepts_loss_kwargs = trainer._loss_shifts_labels = True
    count = trainer._get_num_items_in_batch(micro_batches(), torch.device("cpu"))
    assert int(count) == (given()["labels"][:, 1:] != -100).sum()
    losses = []
    for batch in micro_batches():
        loss = trainer.compute_loss(model, batch, num_items_in_batch=count)
        loss.backward()
        losses.append(loss.detach())
    return losses, {name: each.grad for name, each in model.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_of_trainer(smoothing: float, world: World) -> None:
    """Trainer smooths labels itself, and is given logits for it."""
    label_smoother = importlib.import_module("transformers.trainer_pt_utils").LabelSmoother
    smoother = label_smoother(epsilon=smoothing) if smoothing else None
    expected = trainers_step(made(), smoother)
    found = trainers_step(mine.patch(made()), smoother)
    torch.testing.assert_close(found[0], expected[0], rtol=EPSILON, atol=0)
    for name, each in expected[1].items():
        assert (found[1][name] - each).norm() <= EPSILON * each.norm(), name
    assert bool(world.launches) == (not smoothing)


def trained(model: Any, folder: Path) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of a Trainer in training and of its evaluation, and what it learned."""
    rows = [{k: each[i % ROWS] for k, each in given().items()} for i in range(8)]
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=2,
        learning_rate=0.01,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return [*losses, evaluated], dict(model.named_parameters())


def test_trainer(tmp_path: Path, world: World) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs it")
    expected, found = (trained(each, tmp_path) for each in (made(), mine.patch(made())))
    torch.testing.assert_close(found[0], expected[0], rtol=EPSILON, atol=0)
    for name, each in expected[1].items():
        assert (found[1][name] - each).norm() <= EPSILON * each.norm(), name
    assert world.launches.count("cross_entropy_grad_rows") == 4  # evaluation makes logits


def sharded(model: Any, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for each in (model.model if hasattr(model, "model") else model.transformer).children():
        if isinstance(each, torch.nn.ModuleList):
            for layer in each:
                fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(rank: int, size: int) -> None:
    """Compare a patched model that is trained in each way with an unpatched one, in one process."""
    world = on_cpu(pytest.MonkeyPatch())

    def step_of(model: Any, which: int) -> Any:
        words = (given()["input_ids"] + which) % WORDS
        return step(model, input_ids=words, labels=words)

    for name in ("llama", "gpt2"):
        alone = [step_of(made(name), each) for each in range(size)]
        wanted = {k: sum(g[k] for _, g in alone) / size for k in alone[0][1]}
        ddp = torch.nn.parallel.DistributedDataParallel(mine.patch(made(name)))
        for model in (ddp, sharded(mine.patch(made(name)), size)):
            world.launches.clear()
            output, found = step_of(model, rank)
            whole = {
                key.removeprefix("module."): each.full_tensor() if is_dtensor(each) else each
                for key, each in found.items()
            }
            assert_same((output, whole), (alone[rank][0], wanted))
            assert "logits" not in output
            assert "cross_entropy_grad_rows" in world.launches


def test_ddp_and_fsdp2_in_two_processes(tmp_path: Path) -> None:
    run_ranks(2, train, tmp_path)
