"""What is said beside a compiler's log: whose text it refused, and how to see that text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from softgen.source.render import Source, strategy_template, template_file

MOST = 3  # kernels of one log that are told, and lines of one that somebody edited
# As GCC and Clang have it, and as NVRTC does.
_ERROR = re.compile(r"\.cu(?::(\d+)(?::\d+)?:|\((\d+)\):?) (?:fatal )?error")


def origins(sources: Sequence[Source], log: str) -> str:
    """Return a line for each of `sources` that a compiler's `log` names, or for an only one.

    Of a file that somebody edited it is where to look in that.
    """
    named = [source for source in sources if f"{source.name}.cu" in log] or sources[:1]
    lines = []
    for source in named[:MOST]:
        if source.edited:
            found = dict.fromkeys(line or other for line, other in _ERROR.findall(log))
            places = [f"{source.edited}:{line}" for line in found][:MOST] or [source.edited]
            lines.append(f"the error is in the file that was edited: {', '.join(places)}")
            continue
        name = source.variant.strategy.name
        template = template_file(strategy_template(name))
        lines.append(
            f"{source.name}.cu is of strategy {name}, template {template}; `softgen show "
            f"{source.name}` prints it"
        )
    return "\n".join(lines)
