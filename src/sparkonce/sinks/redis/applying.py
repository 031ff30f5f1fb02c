"""Applies lists of staged chunks, in steps that never keep a server busy for long."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.encoding import CHUNK_VALUES
from sparkonce.sinks.redis.names import Key
from sparkonce.sinks.redis.nodes import Nodes, RedisReply, run_script
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_refusal
from sparkonce.words import one_line

_VALUES_UNDER_WAY = 2 * CHUNK_VALUES
"""A server finishes what one client has sent before it turns to the next, so little is in flight at once."""
_MOST_UNDER_WAY = 128
_MOVED_WITHIN_S = 1.0
"""The time for which a moved hash slot is looked up; one that is still moving is left for the next attempt."""

ABSENT = Finished(outcome=Outcome.LOST, reason="The list is absent.")


class Applying:
    """Applies lists until each is at its end, or fails.

    Args:
        nodes: The connections.
        give_up_at: The time to stop, by `time.monotonic`.
    """

    def __init__(self, nodes: Nodes, give_up_at: float) -> None:
        self._nodes = nodes
        self._give_up_at = give_up_at
        self._window = 2

    def run(self, lists: Sequence[Key]) -> dict[Key, Finished | None]:
        """Applies the lists. Returns None for each that is at its end, else `ABSENT`, RETRY or UNKNOWN.

        A request without a reply may have been carried out. Its repetition is harmless, because the applied chunk is
        gone.
        """
        results: dict[Key, Finished | None] = {}
        going = list(lists)
        while going:
            if time.monotonic() >= self._give_up_at:
                late = Finished(outcome=Outcome.RETRY, reason=f"{len(going)} lists are not applied yet.")
                return {**results, **dict.fromkeys(going, late)}
            going = self._round(going, results)
        return results

    def _round(self, going: Sequence[Key], results: dict[Key, Finished | None]) -> list[Key]:
        # Two for each list if there are few: while one is carried out, the next is in flight.
        turns = 2 if len(going) < self._window else 1
        batch = [key for key in going[: 64 * self._window] for _ in range(turns)]
        requests = [run_script(scripts.APPLY, [key], scripts.END, CHUNK_VALUES) for key in batch]
        answers = self._nodes.run(requests, window=self._window, follow=False, limit_s=_MOVED_WITHIN_S)
        applied = 0
        for key, answer in zip(batch, answers, strict=True):
            if key in results:
                continue
            more, values = self._read(key, answer, results)
            applied += values
            if not more and key not in results:
                results[key] = None
        self._window = max(2, min(_MOST_UNDER_WAY, _VALUES_UNDER_WAY * len(batch) // max(1, applied)))
        return [key for key in going if key not in results]

    @staticmethod
    def _read(key: Key, answer: RedisReply, results: dict[Key, Finished | None]) -> tuple[bool, int]:
        """Returns whether there is more to apply, and how many values were; sets the result of a failed list."""
        if isinstance(answer, Refusal):
            results[key] = read_refusal(answer)
            return False, 0
        state, values = answer[0], int(answer[1])
        if state == b"absent":
            results[key] = ABSENT
        elif state == b"failed":
            error, where, command = (text.decode(errors="backslashreplace") for text in answer[2:])
            results[key] = read_refusal(Refusal(code_of(error), one_line(error)), f"{command}, key {where!r}:")
        return state == b"more", values
