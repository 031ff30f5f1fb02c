"""Checks which sink takes the rows that another one refuses, and tells of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sparkonce.arguments import shown
from sparkonce.driver.progress import BatchProgress
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.views import Letters, View

logger = logging.getLogger("sparkonce")


def warn_of_refused(letters: Letters, done: BatchProgress) -> None:
    """Logs how many rows of a batch were refused."""
    for name in dict.fromkeys(to.name for to in letters.values()):
        if refused := done.rows.get(name, 0):
            logger.warning(
                "Batch %d: %d rows were refused, and are in sink %r with the reasons.", done.batch, refused, name
            )


def refused_rows_of(sink: TwoPhaseCommitSink, letters: Letters) -> str:
    """Returns, for people, what becomes of the rows that a sink's system refuses."""
    if (to := letters.get(sink)) is not None:
        return f"a row that its system refuses goes to sink {to.name} with the reason, in the same unit (dead_letters)"
    if senders := [one.name for one in letters if letters[one] is sink]:
        return f"it takes the rows that {', '.join(senders)} refuses, and a row that it refuses itself stops the query"
    if sink.tells_refused:
        return "a row that its system refuses stops the query before its batch is decided: no sink shows any of it"
    return "a row that its system refuses stops the query; if the batch is decided by then, other sinks may show theirs"


def letters_of(views: Mapping[TwoPhaseCommitSink, View | None], given: TwoPhaseCommitSink | Letters | None) -> Letters:
    """Returns the sink of dead letters of each sink that has one.

    Args:
        views: The sinks with their views.
        given: A sink for the rows that any of them refuses, or a mapping from some of them.

    Raises:
        ConfigurationError: if a sink cannot tell what its system refuses, or a sink of dead letters cannot be used.
    """
    if given is None:
        return {}
    found = dict(given) if isinstance(given, Mapping) else {sink: given for sink in views if sink.tells_refused}
    for sink, to in found.items():
        if not isinstance(to, TwoPhaseCommitSink) or sink not in views:
            raise ConfigurationError(
                f"dead_letters={shown(given)} is no sink, and no mapping from sinks of the query to others.",
                next_step="Give a sink, such as FilesSink('/data/refused', name='refused'), or {sink: other}.",
                setting="dead_letters",
            )
        if not sink.tells_refused:
            raise ConfigurationError(
                f"dead_letters names sink {sink.name!r}, a {type(sink).__name__}, which does not tell the rows that "
                "its system refuses.",
                next_step="Leave it out: such a row stops the query.",
                setting="dead_letters",
            )
        if not to.takes_dead_letters:
            raise ConfigurationError(
                f"dead_letters={to.name!r} is a {type(to).__name__}, which may refuse a row after the decision only.",
                next_step="Give a FilesSink, a topic, or a table of a database.",
                setting="dead_letters",
            )
        low = next((one for one in (sink, to) if one.guarantee is not Guarantee.EXACTLY_ONCE), None)
        if low is not None:
            raise ConfigurationError(
                f"dead_letters with sink {low.name!r}, which is {low.guarantee.value}: accepted and refused rows "
                "would not be exactly the input.",
                next_step="Leave its guarantee at EXACTLY_ONCE, or leave dead_letters out.",
                setting="dead_letters",
            )
    if not found:
        raise ConfigurationError(
            f"dead_letters is given, and none of the sinks {[sink.name for sink in views]} tells the rows that its "
            "system refuses.",
            next_step="Leave it out: such a row stops the query.",
            setting="dead_letters",
        )
    _check_letters(views, found)
    return found


def _check_letters(views: Mapping[TwoPhaseCommitSink, View | None], letters: Letters) -> None:
    others = {to.name: to for to in letters.values()}
    used = {sink.name for sink in views}
    if taken := used & others.keys() or ({to.name for to in letters.values() if to is not others[to.name]}):
        raise ConfigurationError(
            f"dead_letters: two sinks are called {sorted(taken)[0]!r}.",
            next_step="Give the sink of dead letters a name of its own, which must stay the same after a restart.",
            setting="dead_letters",
        )
    for name, to in others.items():
        if len({id(views[sink]) for sink, other in letters.items() if other is to}) > 1:
            raise ConfigurationError(
                f"dead_letters: sink {name!r} would take rows of several views, each of which has slots of its own.",
                next_step="Give {sink: other}, with another sink of dead letters for each view.",
                setting="dead_letters",
            )
