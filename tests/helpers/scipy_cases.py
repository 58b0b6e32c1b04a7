"""What SciPy's and cupyx's tests of softmax, log_softmax and logsumexp are about, in closed form.

Each case is a function, its arguments, and the result that the definition gives.
"""

from __future__ import annotations

from math import e, exp, inf, log, log1p, nan
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A call and its result; a pair for one with return_sign."""

    name: str
    x: Any
    options: dict[str, Any]
    wanted: Any


EIGHTHS = np.arange(24.0).reshape(2, 3, 4) / 8
_UP, _DOWN = 1 / (1 + exp(-1)), 1 / (1 + e)


def _lse(x: Any, axis: Any, keepdims: bool = False) -> Any:
    return np.log(np.exp(x).sum(axis, keepdims=keepdims))


# Large and small numbers, where exp alone would overflow; axes; numbers; infinities.
KERNEL_CASES = [
    Case("logsumexp", [1000.0, 1000.0], {}, 1000 + log(2)),
    Case("logsumexp", [-1000.0] * 8, {}, -1000 + log(8)),
    Case("logsumexp", [1e10, 0.0], {}, 1e10),
    Case("logsumexp", [0.0, -40.0], {}, log1p(exp(-40))),
    Case("logsumexp", np.log(np.arange(1.0, 101)), {}, log(5050)),
    Case("logsumexp", [[1e10, 1e-10], [-1e10, -inf]], {"axis": -1}, [1e10, -1e10]),
    Case("logsumexp", [[1.0, 1.0], [2.0, 2.0]], {"axis": 0}, [log(e + e * e)] * 2),
    Case("logsumexp", EIGHTHS, {"axis": (0, 2)}, _lse(EIGHTHS, (0, 2))),
    Case("logsumexp", EIGHTHS, {"axis": (1, -1)}, _lse(EIGHTHS, (1, 2))),
    Case("logsumexp", EIGHTHS, {"keepdims": True}, _lse(EIGHTHS, None, True)),
    Case("logsumexp", 5.0, {}, 5.0),
    Case("logsumexp", [7], {}, 7.0),
    Case("logsumexp", [-inf, -inf], {}, -inf),
    Case("logsumexp", [inf, -inf], {}, inf),
    Case("logsumexp", [inf, inf], {}, inf),
    Case("logsumexp", [nan, 1.0], {}, nan),
    Case("logsumexp", [0.0, -inf], {"return_sign": True}, (0.0, 1.0)),
    Case("softmax", [1000.0, 0.0, 0.0, 0.0], {}, [1.0, 0.0, 0.0, 0.0]),
    Case("softmax", [1.0, 1.0], {}, [0.5, 0.5]),
    Case("softmax", [0, 1], {}, [_DOWN, _UP]),
    Case("softmax", [100.0, 101.0], {}, [_DOWN, _UP]),
    Case("softmax", [-1e5, -1e5 + 1], {}, [_DOWN, _UP]),
    Case("softmax", [[1000.0, 0.0], [1000.0, 0.0]], {}, [[0.5, 0.0], [0.5, 0.0]]),
    Case("softmax", [[1000.0, 0.0], [1000.0, 0.0]], {"axis": 1}, [[1.0, 0.0], [1.0, 0.0]]),
    Case("softmax", [[-25.0, 0.0], [-25.0, 0.0]], {"axis": 0}, [[0.5, 0.5], [0.5, 0.5]]),
    Case("softmax", EIGHTHS, {"axis": (1, 2)}, np.exp(EIGHTHS - _lse(EIGHTHS, (1, 2), True))),
    Case("softmax", 1000.0, {}, 1.0),
    Case("softmax", [[3.0]], {"axis": 0}, [[1.0]]),
    Case("log_softmax", [1000.0, 1.0], {}, [0.0, -999.0]),
    Case("log_softmax", [0, 1], {}, [log(_DOWN), log(_UP)]),
    Case("log_softmax", [[1000.0, 1.0], [1.0, 1000.0]], {"axis": 1}, [[0.0, -999], [-999, 0.0]]),
    Case("log_softmax", [[1000.0, 1.0]], {"axis": 0}, [[0.0, 0.0]]),
    Case("log_softmax", EIGHTHS, {"axis": (0, -1)}, EIGHTHS - _lse(EIGHTHS, (0, 2), True)),
    Case("log_softmax", EIGHTHS + 4096, {"axis": 1}, EIGHTHS - _lse(EIGHTHS, 1, True)),
    Case("log_softmax", 1.0, {}, 0.0),
]

# Those that cupyx computes: factors, zeros and signs among them, and complex numbers.
CUPYX_CASES = [
    Case("logsumexp", [1000.0, 1000.0], {"b": [0.25, 0.75]}, 1000.0),
    Case("logsumexp", [0.0, inf], {"b": [2.0, 0.0]}, log(2)),
    Case("logsumexp", [1.0, 2.0], {"b": [1.0, -1.0], "return_sign": True}, (log(e * e - e), -1.0)),
    Case("logsumexp", [[1.0, 1.0]] * 2, {"b": [[1.0], [3.0]], "axis": 0}, [1 + log(4)] * 2),
    Case("logsumexp", [1.0, 1.0], {"b": -1.0}, nan),
    Case("logsumexp", [1j * np.pi, 0.5], {}, log(exp(0.5) - 1)),
]
