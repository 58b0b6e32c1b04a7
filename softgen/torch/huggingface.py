"""Causal language models of Hugging Face that train without logits in memory.

A patched model is of a class of its own, which differs in `forward`: the model's own one runs with
a stand-in for the model, whose last layer hands the hidden states on and whose loss takes those.
What that code does beside is done as ever, whatever model it is of. What it does with logits is
known, or it is an error.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.dtypes import HALVES
from softgen.torch.linear import linear_cross_entropy

# The loss that softgen computes.
LOSS = ("transformers.loss.loss_utils", "ForCausalLMLoss")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def patch_model(model: Any) -> Any:
    """Let a model compute its loss of hidden states, and return it."""
    if not isinstance(model, Patched):
        own: Any = type(model)
        model.__class__ = _patched(own, _head_of(model))
    return model


def unpatch_model(model: Any) -> Any:
    """Give a model its own forward back, and return it."""
    if isinstance(model, Patched):
        if "forward" in model.__dict__ or Patched not in type(model).__bases__:
            raise NotSupportedError(
                f"the forward of this {type(model).__name__} was wrapped after "
                "softgen.torch.patch(model); undo that first"
            )
        model.__class__ = type(model).__bases__[1]
    return model


class Patched:
    """What all classes of patched models have in common."""


@functools.cache
def _patched(own: Any, head: str) -> Any:
    """Return the class of patched models of a class, whose last layer has a name."""
    labels_at = list(inspect.signature(own.forward).parameters).index("labels") - 1

    @functools.wraps(own.forward)
    def forward(self: Any, *args: Any, skip_logits: bool | None = None, **kwargs: Any) -> Any:
        labels = args[labels_at] if len(args) > labels_at else kwargs.get("labels")
        skips = self.training if skip_logits is None else skip_logits
        if labels is None or not skips:
            return own.forward(self, *args, **kwargs)
        found = own.forward(_StandIn(self, head), *args, **kwargs)
        if isinstance(found, tuple):
            return tuple(each for each in found if not isinstance(each, _Logits))
        kept = {key: each for key, each in found.items() if not isinstance(each, _Logits)}
        return type(found)(**kept)

    def reduce(self: Any, protocol: Any) -> Any:
        """Return how a copy is made: by its own class, as this one has no place in a module."""
        return _new, (own, head), own.__reduce_ex__(self, 2)[2]

    names = ("__module__", "__qualname__", "__doc__")
    members = {"forward": forward, "__reduce_ex__": reduce, **{k: getattr(own, k) for k in names}}
    return type(own.__name__, (Patched, own), members)


def _new(own: Any, head: str) -> Any:
    """Return a patched model without a state."""
    kind = _patched(own, head)
    return kind.__new__(kind)


def _head_of(model: Any) -> str:
    """Return the name of a model's last layer; InvalidTypeError where its forward is not known."""
    if not isinstance(model, torch.nn.Module):
        raise _refused(model, "it is no torch.nn.Module")
    if "forward" in model.__dict__:
        raise _refused(model, "its forward was replaced or compiled; patch the model before that")
    layer = getattr(model, "get_output_embeddings", lambda: None)()
    name = next((key for key, each in model.named_children() if each is layer), None)
    code = inspect.unwrap(type(model).forward).__code__
    for each in (name, "loss_function"):
        if each not in code.co_names:
            raise _refused(model, f"its forward does not call self.{each or 'lm_head'}")
    if "labels" not in inspect.signature(type(model).forward).parameters:
        raise _refused(model, "its forward takes no labels")
    _require_loss(model, model.loss_function)
    _linear(model, name)
    return str(name)


def _require_loss(model: Any, loss: Any) -> None:
    if (getattr(loss, "__module__", None), getattr(loss, "__name__", None)) != LOSS:
        raise _refused(model, f"its loss is {loss!r}, and not {LOSS[1]}")


def _linear(model: Any, name: Any) -> Any:
    """Return a model's last layer, whose weight may be taken past its forward."""
    layer = getattr(model, name)
    if type(layer) is not torch.nn.Linear:
        raise _refused(model, f"its {name} is a {type(layer).__qualname__}")
    if "forward" in layer.__dict__ or any(getattr(layer, each) for each in HOOKS):
        raise _refused(model, f"its {name} has hooks, or a forward of its own")
    return layer


def _refused(model: Any, why: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"softgen.torch.patch(model) got {type(model).__module__}.{type(model).__qualname__}: "
        f"{why}. It takes a causal language model of transformers whose forward calls a "
        "torch.nn.Linear for logits and self.loss_function for a loss of them, such as "
        "LlamaForCausalLM; in any other call softgen.torch.linear_cross_entropy"
    )


class _StandIn:
    """A model whose last layer makes no logits, and whose loss needs none."""

    def __init__(self, model: Any, head: str) -> None:
        if (given := model.__dict__.get("_loss_function")) is not None:  # it may be set at any time
            _require_loss(model, given)
        self._model, self._layer = model, _linear(model, head)
        setattr(self, head, _Logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def loss_function(
        self,
        logits: Any,
        labels: Any,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = IGNORE_INDEX,
        shift_labels: Any = None,
        **_: Any,
    ) -> Any:
        """Return what ForCausalLMLoss returns of these arguments; 16 bits give float32 there too.

        Targets are labels one position ahead, and the last position has none.
        """
        if shift_labels is None:
            ahead = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
            shift_labels = ahead[..., 1:]
        hidden = logits.hidden
        if hidden.shape[:-1].numel() != shift_labels.numel():
            raise InvalidValueError(
                f"got {hidden.shape[:-1].numel()} logits and {shift_labels.numel()} labels; with "
                "logits_to_keep pass shift_labels of as many positions"
            )
        bias = self._layer.bias
        if logits.factor != logits.divisor:
            by = logits.factor / logits.divisor
            hidden, bias = hidden * by, None if bias is None else bias * by
        return linear_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),
            self._layer.weight,
            shift_labels.reshape(-1).to(hidden.device),
            linear_bias=bias,
            ignore_index=ignore_index,
            softcap=logits.softcap,
            num_items=num_items_in_batch,
            dtype=torch.float32 if hidden.dtype in HALVES else None,
        )


class _Logits:
    """Logits that nobody made: hidden states, and what a forward did to their logits.

    They are y = logits * factor / divisor, or softcap * tanh(y / softcap). A softcap divides by
    what it multiplies with later: two numbers are kept, as 49 * (1 / 49) is not 1.
    """

    def __init__(self, hidden: Any, factor: Any = 1, divisor: Any = 1, softcap: Any = None) -> None:
        self.hidden, self.softcap = hidden, softcap
        self.factor, self.divisor = factor, divisor

    def __mul__(self, number: Any) -> Any:
        if not isinstance(number, (int, float)):
            return NotImplemented
        softcap = None if self.softcap is None else self.softcap * number
        return _Logits(self.hidden, self.factor * number, self.divisor, softcap)

    def __truediv__(self, number: Any) -> Any:
        if not isinstance(number, (int, float)):
            return NotImplemented
        softcap = None if self.softcap is None else self.softcap / number
        return _Logits(self.hidden, self.factor, self.divisor * number, softcap)

    __rmul__ = __mul__

    def tanh(self) -> Any:
        """Return logits between -1 and 1."""
        if self.softcap is not None:
            raise _unknown("tanh, twice,")
        return _Logits(self.hidden, self.factor, self.divisor, 1.0)

    def float(self) -> Any:
        """Return the logits: the loss is computed in float32 anyway."""
        return self

    contiguous = float

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return what a function of PyTorch returns."""
        if function is torch.tanh and not kwargs:
            return args[0].tanh()
        raise _unknown(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(name)


def _refuses(name: str) -> Any:
    """Return a method that says that logits have no such operator."""

    def method(self: _Logits, *others: Any) -> Any:
        raise _unknown(name)

    return method


# Python looks for these in the class. Without them `logits == 0` would be False, and raise nothing.
OPERATORS = (
    *("add", "radd", "sub", "rsub", "rtruediv", "neg", "pow", "matmul", "eq", "ne", "lt", "le"),
    *("gt", "ge", "bool", "len", "iter", "getitem", "setitem"),
)
for _name in OPERATORS:
    setattr(_Logits, f"__{_name}__", _refuses(_name))
_Logits.__hash__ = object.__hash__  # type: ignore[method-assign]  # which __eq__ takes away


def _unknown(what: str) -> NotSupportedError:
    return NotSupportedError(
        f"this model's forward takes {what} of its logits, which are not made after "
        "softgen.torch.patch(model). Pass skip_logits=False, or call softgen.torch.unpatch(model)"
    )
