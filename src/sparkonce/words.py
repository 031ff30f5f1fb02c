"""Prepares the words of a server or library for a message or a log."""

from __future__ import annotations

MOST_CHARACTERS = 1000


def one_line(said: object) -> str:
    """Returns the text in one line, without control characters, cut at a bounded length.

    A server may quote rows, and a line break or a terminal's control characters in them would forge lines of a log.
    """
    shown = "".join(one if one.isprintable() else " " for one in str(said))
    line = " ".join(shown.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"
