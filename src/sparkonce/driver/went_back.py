"""Checks that each server still has the newest batch that was finished there: one that went back has not.

A backup that was restored, a fail-over to a replica that lagged, a disk that lost what it had confirmed: nothing on
such a server is wrong, but rows that readers have seen are gone, and Spark does not repeat them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sparkonce import errors
from sparkonce.driver.outage import Outage, never
from sparkonce.protocol import effects as do
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome
from sparkonce.protocol.view import Decision, LogView
from sparkonce.sink import SinkCommitter

logger = logging.getLogger("sparkonce")


def check_accepted(accepted: Mapping[str, int], batch: int) -> None:
    """Refuses to do without more batches than can be missing.

    Args:
        accepted: Of each sink the newest batch that may be missing.
        batch: The next batch; all before it are finished.

    Raises:
        ConfigurationError: if one of them is not before it.
    """
    if any(newest >= batch for newest in accepted.values()):
        raise errors.ConfigurationError(
            f"accept_lost_batches={dict(accepted)!r}: batch {batch} is next, and only those before are finished.",
            next_step="Give what StaleServerError named, or leave it out.",
        )


def check_servers(
    effect: do.CheckServers,
    committer: Callable[[str], SinkCommitter],
    accepted: Mapping[str, int],
    patience_s: float,
    is_stopped: Callable[[], bool] = never,
) -> None:
    """Checks that no server went back behind the newest batch that is surely finished there.

    What is missing and still prepared is committed again: after a fail-over that lost the commit alone nothing is lost.

    Args:
        effect: Names the sinks, and the batch before which all are finished.
        committer: Gives a sink's driver half.
        accepted: Of each sink the newest batch that may be missing.
        patience_s: How long servers that cannot be asked are waited for in all.
        is_stopped: Returns True once the query is stopped, which ends the wait.

    Raises:
        ConfigurationError: if more is accepted than can be missing.
        StaleServerError: if a server went back.
        UnknownOutcomeError: if a server could not be asked.
    """
    check_accepted(accepted, effect.batch)
    outage = Outage(patience_s, is_stopped=is_stopped)
    missing: dict[str, list[int]] = {}
    for name in effect.sinks:
        finished = _finished(effect.view, effect.batch, name, accepted.get(name, -1))
        doing = f"sink {name} is asked whether it still has what was committed"
        if not finished:
            continue
        if outage.retry(partial(_is_gone, committer(name), finished[-1], name), doing):
            missing[name] = [
                one.batch for one in finished if outage.retry(partial(committer(name).missing, _own(one, name)), doing)
            ]
    if missing:
        raise errors.StaleServerError(
            "; ".join(f"sink {name!r} does not have {_words(batches)} any more" for name, batches in missing.items())
            + ". They were committed there: the server went back to an older state (a restored backup, a fail-over to "
            "a replica that lagged, a disk that lost what it had confirmed).",
            next_step="bring the newer state back, if there is one, and start again. Or else look there for the rows "
            "of these batches (sparkonce checkpoint batch CHECKPOINT NUMBER says how many each slot has, and in "
            "which transaction), write by hand those that are missing, and go on with "
            f"ExactlyOnce(..., accept_lost_batches={ {name: batches[-1] for name, batches in missing.items()} }).",
            missing=missing,
        )


def _finished(view: LogView, batch: int, sink: str, accepted: int) -> list[Decision]:
    """Lists the finished batches with rows in a sink, oldest first, since which its facts are what they are now.

    Where they have changed, another prefix, place or setting may be why a transaction is not found.
    """
    facts = [dict(run.sinks).get(sink) for run in view.runs]
    changed = max((place for place, one in enumerate(facts) if one != facts[-1]), default=-1)
    same = {run.token for run in view.runs[changed + 1 :]}
    return [one for one in view.decisions if accepted < one.batch < batch and one.token in same and _own(one, sink)]


def _own(decision: Decision, sink: str) -> list[Handle]:
    return [handle for handle in decision.handles if handle.sink == sink and handle.transaction]


def _is_missing(committer: SinkCommitter, decision: Decision, sink: str) -> bool:
    return bool(committer.missing(_own(decision, sink)))


def _is_gone(committer: SinkCommitter, decision: Decision, sink: str) -> bool:
    """Tells if the server does not have the batch, and cannot commit it again either."""
    handles = _own(decision, sink)
    missing = committer.missing(handles)
    if not missing:
        return False
    answers = committer.commit(missing)
    if waiting := [answer.reason for answer in answers if answer.outcome is Outcome.RETRY]:
        raise errors.UnknownOutcomeError(waiting[0])
    if not all(answer.outcome in COMMITTED for answer in answers):
        return True
    committer.conclude(decision.batch, handles)
    logger.warning(
        "sink=%s batch=%d: the server had lost the commit, and has committed it again.", sink, decision.batch
    )
    return _is_missing(committer, decision, sink)


def _words(batches: Sequence[int]) -> str:
    if len(batches) == 1:
        return f"batch {batches[0]}"
    between = "and" if len(batches) == 2 else "to"
    return f"batches {batches[0]} {between} {batches[-1]}"
