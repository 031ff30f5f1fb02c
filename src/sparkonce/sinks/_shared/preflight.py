"""Builds the errors that refuse a start, with the setting, its value, the reason and the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sparkonce.errors import PreflightError
from sparkonce.sink import Facts


def refusal(setting: str, value: object, why: str, next_step: str) -> PreflightError:
    """Returns the error for a rejected setting of the sink or the server.

    Args:
        setting: The setting's name.
        value: Its value as the message shows it. For a string from the user, pass its ``repr``.
        why: The reason, as the rest of the sentence.
        next_step: What the user can do.
    """
    return PreflightError(f"{setting}={value}: {why.rstrip('.')}.", next_step=next_step, setting=setting)


def check_same(setting: str, now: str, recorded: Facts | None, fact: str, why: str, next_step: str) -> None:
    """Checks that a fact is the same as in the previous run.

    Args:
        setting: The setting that determines the fact.
        now: The current fact.
        recorded: The facts of the latest run; None at the first start.
        fact: The fact's name.
        why: Why it must not change, as the rest of the sentence; ``{before}`` is its previous value.
        next_step: What the user can do; ``{before}`` is its previous value.
    """
    before = (recorded or {}).get(fact, now)
    if before != now:
        shown = repr(before)
        raise refusal(setting, repr(now), why.format(before=shown), next_step.format(before=shown))


_OF_NEWER_VERSIONS = "sparkonce_"
"""The prefix of columns that a newer version of sparkonce adds. Users may add other columns as they like."""


def check_columns(setting: str, table: str, found: Iterable[str], known: frozenset[str]) -> None:
    """Checks that a table of the sink itself has no columns of a newer version, whose meaning is unknown."""
    if strange := sorted(one for one in set(found) - known if one.startswith(_OF_NEWER_VERSIONS)):
        raise PreflightError(
            f"{table} has columns that this version of sparkonce does not know: {', '.join(strange)}.",
            next_step="Run the newer version of sparkonce again, which has added them, or upgrade this one.",
            setting=setting,
        )


class Attempts:
    """Tries actions on a server, and turns the client library's errors into refusals with the server's own message."""

    def __init__(self, errors: tuple[type[Exception], ...], server_message: Callable[[Exception], str]) -> None:
        self._errors = errors
        self._server_message = server_message

    @contextmanager
    def of(self, what: str, next_step: str, setting: str = "") -> Iterator[None]:
        """Tries an action.

        Args:
            what: The action, as the start of the sentence "… failed: <the server's message>".
            next_step: What the user can do if it fails.
            setting: The setting that the error names; empty if it names none.
        """
        try:
            yield
        except self._errors as error:
            details = {"setting": setting} if setting else {}
            raise PreflightError(
                f"{what} failed: {self._server_message(error).rstrip('.')}.", next_step=next_step, **details
            ) from error
