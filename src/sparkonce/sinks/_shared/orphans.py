"""An open transaction, session or table of sparkonce's, as ``sparkonce transactions list`` lists it for the operator.

A system that can list such has a module with a function ``list_open(settings)``, which returns `Orphan` values or
values of a class of its own derived from it: the command shows the fields that it adds under their ``head``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import Token

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An open transaction, session or table. Only the query's log tells an orphan from a batch under way.

    Attributes:
        kind: What it is, in the sink's words.
        name: Its name on the server.
        query: The short form of the query's id.
        run: The run's token, as ``position-nonce``.
        batch: Spark's batch id; -1 where the server does not show it.
        slot: The slot; -1 where the server does not show it.
        copy: The end of its name, which no other copy of any slot has.
        age_s: By the server's clock; -1 where it does not say.
        holds: What stays in the way while it is open.
    """

    kind: str
    name: str
    query: str
    run: str
    batch: int
    slot: int
    copy: str
    age_s: float
    holds: tuple[str, ...]

    def is_of(self, handle: Handle) -> bool:
        """Returns True if the handle finishes it."""
        return any(str(value).endswith(f".{self.copy}") for _, value in handle.transaction)


def run_of(token: Token) -> str:
    """Returns a token as `Orphan.run` has it."""
    return f"{token.position}-{token.nonce}"


def token_in(run: str) -> Token:
    """Returns the token that `run_of` has written so."""
    position, _, nonce = run.partition("-")
    return Token(int(position), nonce)


def shown(head: str, **more: Any) -> Any:
    """Declares a field of a class derived from `Orphan`, with the head of its column, and more of `field`."""
    return field(metadata={"head": head}, **more)


def parse_line(text: str) -> dict[str, str]:
    """Reads settings from one line: ``name=value``, with quotes as in a shell where a value has spaces.

    Raises:
        ConfigurationError: If there is no name. Values are not repeated: one may be a password.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"The settings cannot be read: {error}.", next_step="Close the quotes.") from None
    for number, word in enumerate(words, 1):
        if "=" not in word:
            raise ConfigurationError(
                f"Word {number} of the settings has no '='.", next_step="Write name=value, with spaces in between."
            )
    return dict(word.split("=", 1) for word in words)
