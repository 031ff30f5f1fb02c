"""Elements of a page. Text becomes part of it only escaped, unless an element was made of it here."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"meta", "br", "hr", "wbr"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def join(*parts: object) -> Html:
    """Parts one after the other: what is not `Html` is escaped, None is left out."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        tag: Its name.
        children: What is in it, see `join`.
        attributes: ``class_`` is ``class``, any other ``_`` is a hyphen; None and False are left out,
            True has no value.
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        written.append(f" {name}" if value is True else f' {name}="{escape(str(value))}"')
    start = f"<{tag}{''.join(written)}>"
    return Html(start if tag in _VOID else f"{start}{join(*children)}</{tag}>")
