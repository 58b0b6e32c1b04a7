"""The tag `paste`, by which templates include another one with parameters."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class Paste(Extension):
    """`paste FILE with a = 1, b = 2`: `include FILE`, in a `with` of its own."""

    tags = {"paste"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the nodes of the `with` and the `include`."""
        line = next(parser.stream).lineno
        file = parser.parse_expression()
        parser.stream.expect("name:with")
        targets: list[nodes.Expr] = []
        values: list[nodes.Expr] = []
        while not targets or parser.stream.skip_if("comma"):
            target = parser.parse_assign_target()
            target.set_ctx("param")
            targets.append(target)
            parser.stream.expect("assign")
            values.append(parser.parse_expression())
        include = nodes.Include(file, True, False, lineno=line)
        return nodes.With(targets, values, [include], lineno=line)
