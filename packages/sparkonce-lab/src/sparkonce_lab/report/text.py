"""Numbers, times and lists in a form for readers; the template's filters."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float | None) -> str:
    """Returns a number with thousands separators; a dash for None."""
    return "—" if value is None else f"{value:,}"


def times(count: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: ``1 batch``, ``2 batches``.

    Args:
        count: The number.
        one: The singular.
        many: The plural; the singular with an s by default.
    """
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def duration(ms: float | None) -> str:
    """Returns a length of time in the unit that suits it; a dash for None."""
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
    """Returns a moment of the run as minutes and seconds since its beginning, with hours from the first one on."""
    units = round(ms / 100) if tenths else round(ms / 1_000) * 10
    seconds, tenth = divmod(units, 10)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02d}:{seconds:02d}" + (f".{tenth}" if tenths else "")
    return f"{hours}:{text}" if hours else text


def listed(words: Sequence[object], last: str = "and") -> str:
    """Returns words as a list in a sentence: ``a, b and c``."""
    named = [str(word) for word in words]
    if len(named) < 2:
        return "".join(named)
    return f"{', '.join(named[:-1])} {last} {named[-1]}"
