"""Numbers, times and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float | None) -> str:
    """With thousands separators; a dash for what is not known."""
    return "—" if value is None else f"{value:,}"


def times(count: int, one: str, many: str = "") -> str:
    """``1 batch``, ``2 batches``.

    Args:
        count: How many.
        one: The word for one.
        many: The word for any other number; ``one`` with an s by default.
    """
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def duration(ms: float | None) -> str:
    """In the unit in which it is best read; a dash for what is not known."""
    if ms is None:
        return "—"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 100_000:
        return f"{ms / 1_000:.1f} s"
    minutes, seconds = divmod(round(ms / 1_000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clock(ms: float, *, tenths: bool = True) -> str:
    """A moment of the run: minutes and seconds since it began, with hours where there are any."""
    units = round(ms / 100) if tenths else round(ms / 1_000) * 10
    seconds, tenth = divmod(units, 10)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02d}:{seconds:02d}" + (f".{tenth}" if tenths else "")
    return f"{hours}:{text}" if hours else text


def listed(words: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
