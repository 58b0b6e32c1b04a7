"""A canvas for the drawings of these pages: boxes, text and arrows, as one SVG for light and dark.

Text is checked while it is drawn: it stays inside its box and the picture, and overlaps no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

# Class: (property, light, dark). Letters a to d tell owners apart, in both schemes and in grey.
COLOURS = {
    "bg": ("fill", "#ffffff", "#0d1117"),
    "ink": ("fill", "#1f2328", "#e6edf3"),
    "dim": ("fill", "#59636e", "#9198a1"),
    "a": ("fill", "#a8cbfb", "#1c4f91"),
    "b": ("fill", "#ffd08f", "#84490b"),
    "c": ("fill", "#a9e5b4", "#1b6334"),
    "d": ("fill", "#dfc1f7", "#5d3690"),
    "idle": ("fill", "#eaeef2", "#272d35"),
    "line": ("stroke", "#59636e", "#9198a1"),
}
OWNERS = ("a", "b", "c", "d")
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
# Of a letter over the size of its font, on average: 0.55 in DejaVu Sans, the widest in use.
LETTER = 0.58

Box = tuple[float, float, float, float]  # left, top, right, bottom


def _style() -> str:
    rules = [f".{name}{{{what}:{light}}}" for name, (what, light, _) in COLOURS.items()]
    dark = [f".{name}{{{what}:{shade}}}" for name, (what, _, shade) in COLOURS.items()]
    rest = (
        f"text{{font-family:{FONT}}}.line{{fill:none;stroke-width:1.2}}"
        ".faint{opacity:.3}.dashed{stroke-dasharray:4 3}"
    )
    return f"{''.join(rules)}{rest}@media (prefers-color-scheme:dark){{{''.join(dark)}}}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """A picture that grows downwards; sizes are in pixels of its own width."""

    def __init__(self, title: str, description: str, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {width} {height}",
                "width": str(width),
                "height": str(height),
                "role": "img",
                "aria-labelledby": "title description",
            },
        )
        self._add("title", {"id": "title"}, title)
        self._add("desc", {"id": "description"}, description)
        self._add("style", {}, _style())
        definitions = self._add("defs", {})
        marker = {"id": "head", "viewBox": "0 0 8 8", "refX": "7", "refY": "4"}
        head = ElementTree.SubElement(
            definitions,
            "marker",
            {**marker, "markerWidth": "7", "markerHeight": "7", "orient": "auto"},
        )
        ElementTree.SubElement(head, "path", {"d": "M0 0 8 4 0 8z", "class": "dim"})
        # A page may be dark where the system is light: the picture brings its own ground.
        self._add("rect", {"class": "bg", "width": str(width), "height": str(height), "rx": "6"})
        self.texts: list[tuple[Box, str]] = []

    def _add(self, tag: str, attributes: dict[str, str], text: str = "") -> ElementTree.Element:
        made = ElementTree.SubElement(self.root, tag, attributes)
        made.text = text or None
        return made

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        label: str = "",
        *,
        size: float = 12,
        faint: bool = False,
    ) -> None:
        """Draw a box of a class, with a text in its middle that must fit it."""
        at = {name: _number(v) for name, v in zip("xy", (x, y), strict=True)}
        shape = {"width": _number(width), "height": _number(height), "rx": "2"}
        self._add("rect", {"class": f"{kind} faint" if faint else kind, **at, **shape})
        if label:
            middle = (x + width / 2, y + height / 2 + size * 0.36)
            self.text(*middle, label, size=size, anchor="middle", room=width)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        kind: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        room: float | None = None,
    ) -> None:
        """Write a line whose base is at `y`; ValueError if it leaves its room or runs into another.

        Args:
            x: its start, middle or end, by `anchor`.
            y: the base of its letters.
            text: what it says.
            size: of the font.
            kind: a class of COLOURS.
            anchor: start, middle or end.
            bold: whether it is a heading.
            room: how wide it may be.
        """
        length = len(text) * size * LETTER * (1.06 if bold else 1)
        if room is not None and length > room + 1:
            raise ValueError(f"{text!r} needs {length:.0f} pixels and has {room:.0f}")
        left = x - {"start": 0.0, "middle": length / 2, "end": length}[anchor]
        box = (left, y - size * 0.8, left + length, y + size * 0.25)
        if box[0] < 0 or box[1] < 0 or box[2] > self.width or box[3] > self.height:
            raise ValueError(f"{text!r} leaves the picture: {box}")
        for other, said in self.texts:
            if box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]:
                raise ValueError(f"{text!r} runs into {said!r}")
        self.texts.append((box, text))
        attributes = {"class": kind, "x": _number(x), "y": _number(y), "font-size": _number(size)}
        if anchor != "start":
            attributes["text-anchor"] = anchor
        if bold:
            attributes["font-weight"] = "600"
        self._add("text", attributes, text)

    def line(self, *points: tuple[float, float], arrow: bool = False, dashed: bool = False) -> None:
        """Draw straight lines from point to point, with a head at the last if it is an arrow."""
        path = "M" + " ".join(f"{_number(x)} {_number(y)}" for x, y in points)
        attributes = {"class": "line dashed" if dashed else "line", "d": path}
        if arrow:
            attributes["marker-end"] = "url(#head)"
        self._add("path", attributes)

    def strip(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        cells: Sequence[tuple[str, str]],
        *,
        gap: float = 2,
        size: float = 12,
    ) -> list[float]:
        """Draw cells of one width in a row, of (class, label); return where they begin."""
        each = (width + gap) / len(cells)
        starts = [x + number * each for number in range(len(cells))]
        for start, (kind, label) in zip(starts, cells, strict=True):
            self.box(start, y, each - gap, height, kind, label, size=size)
        return starts

    def svg(self) -> str:
        """Return the text of the file."""
        ElementTree.indent(self.root)
        return ElementTree.tostring(self.root, encoding="unicode") + "\n"
