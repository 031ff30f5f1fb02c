"""Refusals of a start: which setting, its value, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sparkonce.errors import PreflightError
from sparkonce.sink import Facts


def refusal(setting: str, value: object, why: str, next_step: str) -> PreflightError:
    """Returns the refusal of a setting: of the sink, or of the server.

    Args:
        setting: Its name.
        value: Its value as it is shown; a text of the user's as its ``repr``.
        why: Why it is refused, as the rest of the sentence.
        next_step: What the user can do.
    """
    return PreflightError(f"{setting}={value}: {why.rstrip('.')}.", next_step=next_step, setting=setting)


def check_same(setting: str, now: str, recorded: Facts | None, fact: str, why: str, next_step: str) -> None:
    """Sees that a fact is the same as in the run before.

    Args:
        setting: The setting that leads to the fact.
        now: The fact now.
        recorded: The facts of the newest run; None at the first start.
        fact: Its name among the facts.
        why: Why it must not change, as the rest of the sentence; ``{before}`` is its value before.
        next_step: What the user can do; ``{before}`` is its value before.

    Raises:
        PreflightError: If it has changed.
    """
    before = (recorded or {}).get(fact, now)
    if before != now:
        shown = repr(before)
        raise refusal(setting, repr(now), why.format(before=shown), next_step.format(before=shown))


_OF_NEWER_VERSIONS = "sparkonce_"
"""Begins the columns that a newer version adds. Others are of somebody who may add what he likes."""


def check_columns(setting: str, table: str, found: Iterable[str], known: frozenset[str]) -> None:
    """Sees that one of the sink's own tables has no columns of a newer version, which may mean what nobody here knows.

    Args:
        setting: The setting that leads to the table.
        table: Its name.
        found: The columns that it has.
        known: Those that this version knows.

    Raises:
        PreflightError: If it has more.
    """
    if strange := sorted(one for one in set(found) - known if one.startswith(_OF_NEWER_VERSIONS)):
        raise PreflightError(
            f"{table} has columns that this version of sparkonce does not know: {', '.join(strange)}.",
            next_step="Run the newer version of sparkonce again, which has added them, or upgrade this one.",
            setting=setting,
        )


class Attempts:
    """Tries things on a server, whose errors become refusals.

    Args:
        errors: The exceptions that the client library raises.
        server_message: Returns the server's own words.
    """

    def __init__(self, errors: tuple[type[Exception], ...], server_message: Callable[[Exception], str]) -> None:
        self._errors = errors
        self._server_message = server_message

    @contextmanager
    def of(self, what: str, next_step: str, setting: str = "") -> Iterator[None]:
        """Tries something.

        Args:
            what: Its name, the beginning of the sentence "… failed: <the server's words>".
            next_step: What the user can do where it fails.
            setting: The setting that it is about.

        Raises:
            PreflightError: instead of an error of the server.
        """
        try:
            yield
        except self._errors as error:
            details = {"setting": setting} if setting else {}
            raise PreflightError(
                f"{what} failed: {self._server_message(error).rstrip('.')}.", next_step=next_step, **details
            ) from error
