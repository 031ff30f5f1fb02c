"""Has lists of staged chunks applied, so that a server is never kept busy for long."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.redis import scripts
from sparkonce.sinks.redis.encoding import CHUNK_VALUES
from sparkonce.sinks.redis.names import Key
from sparkonce.sinks.redis.nodes import Answer, Nodes, run_script
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_refusal

_VALUES_UNDER_WAY = 2 * CHUNK_VALUES
"""A server works through what one client has sent before it turns to the next, so little is on its way at once."""
_MOST_UNDER_WAY = 128
_MOVED_WITHIN_S = 1.0
"""How long a hash slot that has moved is looked for; one that is still moving is left for the next attempt."""

ABSENT = Finished(outcome=Outcome.LOST, reason="The list is not there.")


class Applying:
    """Works through lists until each is at its end, or cannot go on.

    Args:
        nodes: The connections.
        give_up_at: When to stop, by `time.monotonic`.
    """

    def __init__(self, nodes: Nodes, give_up_at: float) -> None:
        self._nodes = nodes
        self._give_up_at = give_up_at
        self._window = 2

    def run(self, lists: Sequence[Key]) -> dict[Key, Finished | None]:
        """What became of each list: None if it is at its end; `ABSENT`, RETRY or UNKNOWN if not.

        A request whose answer is lost may have been carried out, and is repeated without harm: the chunk that it
        applied
        is gone.
        """
        results: dict[Key, Finished | None] = {}
        going = list(lists)
        while going:
            if time.monotonic() >= self._give_up_at:
                late = Finished(outcome=Outcome.RETRY, reason=f"{len(going)} lists are not applied yet; going on.")
                return {**results, **dict.fromkeys(going, late)}
            going = self._round(going, results)
        return results

    def _round(self, going: Sequence[Key], results: dict[Key, Finished | None]) -> list[Key]:
        # Two for each list where there are few: while one is carried out, the next is on its way.
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
    def _read(key: Key, answer: Answer, results: dict[Key, Finished | None]) -> tuple[bool, int]:
        """Whether there is more to apply, and how many values were. A list that cannot go on gets its result here."""
        if isinstance(answer, Refusal):
            results[key] = read_refusal(answer)
            return False, 0
        state, values = answer[0], int(answer[1])
        if state == b"absent":
            results[key] = ABSENT
        elif state == b"failed":
            error, where, command = (text.decode(errors="backslashreplace") for text in answer[2:])
            results[key] = read_refusal(Refusal(code_of(error), error), f"{command}, key {where!r}:")
        return state == b"more", values
