"""Checks settings that several sinks share, so that each is rejected with one message. See `sparkonce.arguments`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkonce.arguments import nonempty, number, texts
from sparkonce.errors import ConfigurationError

_PREFIX_EXAMPLE = "a text, such as 'sparkonce'"


def seconds(setting: str, value: Any, *, least: float = 0.1) -> float:
    """Returns a duration in seconds, after checking that it is between ``least`` and one day."""
    return number(setting, value, least=least, most=86_400)


def columns(setting: str, value: Any) -> tuple[str, ...]:
    """Returns column names as a tuple, after checking that they are a string or a list of strings."""
    return texts(setting, (value,) if isinstance(value, str) else value, example="a list of columns' names: ['id']")


def name_prefix(prefix: Any, name: str, *, most_bytes: int) -> str:
    """Returns the prefix of a sink's transaction names: the user's prefix and the sink's name, joined by a period."""
    checked = nonempty("prefix", prefix, example=_PREFIX_EXAMPLE)
    whole = f"{checked}.{name}"
    _refuse_unusable(f"prefix={prefix!r} with name={name!r}: together {whole!r}, which", whole, most_bytes, "")
    return whole


def own_prefix(prefix: Any, *, most_bytes: int, without: str = "") -> str:
    """Returns the prefix of a sink whose transaction names do not include the sink's name."""
    checked = nonempty("prefix", prefix, example=_PREFIX_EXAMPLE)
    _refuse_unusable(f"prefix={prefix!r}", checked, most_bytes, without)
    return checked


def _refuse_unusable(shown: str, text: str, most_bytes: int, without: str) -> None:
    size = len(text.encode())
    if size > most_bytes or not text.isprintable() or set(text) & set(without):
        barred = f" without any of {without}" if without else ""
        raise ConfigurationError(
            f"{shown} has {size} bytes, and cannot be used.",
            next_step=f"Choose {most_bytes} printable bytes or less{barred}: they are a part of the transactions' "
            "names on the server.",
            setting="prefix",
        )


def see_files(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Opens each file that a setting names. The OSError for an unreadable file names the setting."""
    for name in names:
        if path := settings.get(name):
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise type(error)(error.errno, f"{name}={str(path)!r}: {error.strerror}") from None
