"""SVG shapes as plain values; the template draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str, str]
Text = tuple[str, float, float, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes that belong together.

    Attributes:
        title: The tooltip of a part, the label of a whole drawing.
        step: The number of the step that a click leads to; None without one.
        y: The distance of a part from the top of the drawing around it.
        width: The width of a whole drawing, in units of its own.
        height: The height of a whole drawing.
        paths: Class and data of each path; they lie below the texts.
        texts: Class, x, y and words of each text.
        parts: Drawings inside, above the shapes of this one.
    """

    title: str = ""
    step: int | None = None
    y: int = 0
    width: int = 0
    height: int = 0
    paths: Sequence[Path] = ()
    texts: Sequence[Text] = ()
    parts: Sequence[Drawing] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip(Drawing):
    """A drawing of a stretch of time.

    Attributes:
        from_ms: The moment at the left edge.
        to_ms: The moment at the right edge.
    """

    from_ms: int
    to_ms: int
