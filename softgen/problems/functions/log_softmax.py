"""log_softmax: (x - max) - log(sum(exp(x - max))), and with it, if asked for, log(sum(exp(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.functions.base import Function
from softgen.problems.functions.exhibit import Exhibit
from softgen.problems.functions.softmax import Normalized
from softgen.problems.operands import Limit, Measure


@dataclass(frozen=True)
class LogSoftmax(Normalized):
    """log_softmax of each row."""

    stem = "log_softmax"
    measure = Measure.LOGARITHM
    limit = Limit.AT_MOST_ZERO

    def of_terms(self, shifted: Any, terms: Any, total: Any) -> Any:
        """Return y."""
        import numpy as np

        return shifted - np.log(total)


LOG_SOFTMAX: Function = LogSoftmax()
FUNCTIONS = (LOG_SOFTMAX, LogSoftmax(lse=True))

EXHIBITS = (
    Exhibit("CIFAR-10 classes", LOG_SOFTMAX, "float32", 65536, 10),
    Exhibit("ImageNet classes, training loss", LOG_SOFTMAX, "float16", 1024, 1000),
    Exhibit("Llama 2 vocabulary", LOG_SOFTMAX, "bfloat16", 4096, 32000),
    Exhibit("GPT-2 vocabulary, an odd width", LOG_SOFTMAX, "float32", 2048, 50257),
    Exhibit("scientific data, log-likelihoods", LOG_SOFTMAX, "float64", 4096, 2000),
)
