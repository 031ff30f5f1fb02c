"""Validates a user's arguments. Each error names the setting, its value, what it should be, and the next step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any, TypeVar

from sparkonce.errors import ConfigurationError

E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Callable[..., Any])
Word = TypeVar("Word", bound=str)

_SHOWN = re.compile(r"[\w.,:/ -]{0,80}")
"""Strings that may be shown: those without characters that delimit a password."""


def mapping(setting: str, value: object, *, example: str) -> dict[str, Any]:
    """Returns settings by name. The error shows a valid example, and the argument unless it may contain a secret."""
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return dict(value)
    wrong = value
    if isinstance(value, Mapping):
        wrong = next(name for name in value if not isinstance(name, str))
        raise ConfigurationError(
            f"{setting} has the name {wrong!r}, which is not a text.", next_step=f"Give {example}.", setting=setting
        )
    raise ConfigurationError(
        f"{setting}={shown(value)} is not a mapping of names to values.", next_step=f"Give {example}.", setting=setting
    )


def shown(value: object) -> str:
    """Formats a value for an error message: the value itself if it is short and plain, otherwise its type."""
    if isinstance(value, str) and _SHOWN.fullmatch(value):
        return repr(value)
    return f"<class {value.__name__}>" if isinstance(value, type) else f"<{type(value).__name__}>"


def one_of(setting: str, value: Word, allowed: Sequence[Word]) -> Word:
    """Returns the value if it is one of these strings."""
    if isinstance(value, str) and value in allowed:
        return value
    words = ", ".join(map(repr, allowed))
    raise ConfigurationError(f"{setting}={value!r} is not known.", next_step=f"Give one of {words}.", setting=setting)


def member(setting: str, value: Any, kind: type[E]) -> E:
    """Returns the member of an enumeration, given the member or its value."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{one.name} ({one.value!r})" for one in kind)
        raise ConfigurationError(
            f"{setting}={value!r} is not known.", next_step=f"Give one of {members}.", setting=setting
        ) from None


def number(
    setting: str, value: Any, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> float:
    """Returns a number. Rejects strings, booleans and NaN."""
    fits = type(value) is not bool and isinstance(value, Real) and not math.isnan(value)
    return float(_fitting(setting, value, fits, "a number", above, least, most))


def whole_number(setting: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Returns an integer. Rejects strings and booleans."""
    fits = type(value) is not bool and isinstance(value, Integral)
    return int(_fitting(setting, value, fits, "a whole number", None, least, most))


def _fitting(
    setting: str, value: Any, fits: bool, kind: str, above: float | None, least: float | None, most: float | None
) -> Any:
    wanted = kind
    if above is not None:
        wanted += f" above {above:g}"
        fits = fits and value > above
    if least is None and most is not None:
        wanted += f"{' and' if above is not None else ''} of {most:g} at most"
        fits = fits and value <= most
    if least is not None:
        wanted += f" from {least:g} to {most:g}" if most is not None else f" of {least:g} or more"
        fits = fits and value >= least and (most is None or value <= most)
    if not fits:
        raise ConfigurationError(f"{setting}={value!r} is not {wanted}.", next_step=f"Give {wanted}.", setting=setting)
    return value


def flag(setting: str, value: Any) -> bool:
    """Returns True or False. Rejects anything else, since any string would count as true."""
    if isinstance(value, bool):
        return value
    raise ConfigurationError(
        f"{setting}={value!r} is neither True nor False.", next_step="Give True or False.", setting=setting
    )


def nonempty(setting: str, value: Any, *, example: str) -> str:
    """Returns a string that is not empty."""
    if isinstance(value, str) and value:
        return value
    wrong = "is empty" if value == "" else "is not a text"
    raise ConfigurationError(f"{setting}={value!r} {wrong}.", next_step=f"Give {example}.", setting=setting)


def texts(setting: str, value: Any, *, example: str) -> tuple[str, ...]:
    """Returns a tuple of strings. Rejects a single string, whose characters would count as strings."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        found = tuple(value)
        if all(isinstance(one, str) for one in found):
            return found
    wrong, step = ("one text", f"a list: {[value]!r}") if isinstance(value, str) else ("not a list of texts", example)
    raise ConfigurationError(f"{setting}={value!r} is {wrong}.", next_step=f"Give {step}.", setting=setting)


def function(setting: str, value: F, *, example: str) -> F:
    """Returns a function or another callable."""
    if callable(value):
        return value
    raise ConfigurationError(f"{setting}={value!r} is not a function.", next_step=f"Give {example}.", setting=setting)


def need_package(who: str, package: str, module: str, extra: str) -> None:
    """Checks that a client library is installed, without importing it."""
    if find_spec(module) is None:
        raise missing_package(who, package, extra)


def missing_package(who: str, package: str, extra: str) -> ConfigurationError:
    """Returns the error for a package that is not installed, with the extra that installs it."""
    return ConfigurationError(
        f"{who} needs the package {package}, which is not installed.",
        next_step=f"pip install 'sparkonce[{extra}]', on the driver and on the workers.",
    )
