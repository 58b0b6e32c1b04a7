"""What is said beside a compiler's log: whose text it refused, and how to see that text."""

from __future__ import annotations

from collections.abc import Sequence

from softgen.source.render import Source, strategy_template, template_directory

MOST = 3  # kernels of one log that are told


def whence(sources: Sequence[Source], log: str) -> str:
    """Return a line for each of `sources` that a compiler's `log` names, or for an only one."""
    named = [source for source in sources if f"{source.name}.cu" in log] or sources[:1]
    lines = []
    for source in named[:MOST]:
        name = source.variant.strategy.name
        template = template_directory() / strategy_template(name)
        lines.append(
            f"{source.name}.cu is of strategy {name}, template {template}; `softgen show "
            f"{source.name}` prints it"
        )
    return "\n".join(lines)
