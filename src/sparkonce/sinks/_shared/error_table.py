"""Maps a server's answers (error code, class or phrase) to an outcome and a sentence. An unlisted answer is UNKNOWN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sparkonce.protocol.handles import Finished, Outcome

Code = TypeVar("Code", bound="int | str")


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one answer.

    Attributes:
        outcome: The outcome for the transaction being finished.
        sentence: One sentence for the operator.
        next_step: The operator's next step, if retrying does not help.
        outage: True if the rows can be written later, because the server is unreachable or has no space.
    """

    outcome: Outcome
    sentence: str = ""
    next_step: str = ""
    outage: bool = False


UNLISTED = Meaning(Outcome.UNKNOWN, "Unlisted answer, so the outcome is unknown.")


class ErrorTable(Generic[Code]):
    """Looks up the meaning of a server's answers.

    Args:
        by_code: The meaning of each code.
        phrases: Phrases in the server's message that take precedence over its code, in this order.
        class_lengths: How many characters of a code identify its class, longest first: ``(3, 2)`` for SQLSTATE.
    """

    def __init__(
        self,
        by_code: Mapping[Code, Meaning],
        *,
        phrases: Sequence[tuple[str, Meaning]] = (),
        class_lengths: Sequence[int] = (),
    ) -> None:
        self.by_code = by_code
        self._phrases = phrases
        self._class_lengths = class_lengths

    def meaning(self, code: Code, message: str = "") -> Meaning:
        """Returns the meaning of a code or of a phrase in the server's message; `UNLISTED` if the table has none."""
        for phrase, meaning in self._phrases:
            if phrase in message:
                return meaning
        return self.by_code.get(entry_of(code, self.by_code, self._class_lengths), UNLISTED)

    def finished(self, code: Code, message: str, *, shown: str | None = None) -> Finished:
        """Returns the outcome for an answer. The reason begins with ``shown``, by default the code and the message."""
        meaning = self.meaning(code, message)
        if shown is None:
            shown = f"error {code}: {message}"
        told = f"{shown.rstrip('. ')}. {meaning.sentence}".strip()
        return Finished(outcome=meaning.outcome, reason=told, next_step=meaning.next_step)


def entry_of(code: Any, table: Mapping[Any, object], class_lengths: Sequence[int]) -> Any:
    """Returns a table's key for a code: the code itself, or the longest of its classes."""
    if code in table or not isinstance(code, str) or not code:
        return code
    return next((code[:size] for size in class_lengths if code[:size] in table), code)
