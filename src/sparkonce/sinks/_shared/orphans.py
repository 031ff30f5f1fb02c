"""An open transaction, session or table of sparkonce, as listed by ``sparkonce transactions list`` for operators.

A system that can list open transactions has a module with a function ``list_open(settings)``, which returns `Orphan`
values or values of a derived class. The command shows the additional fields of a derived class under their ``head``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.errors import ConfigurationError
from sparkonce.protocol.ownership import Token

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle

AnOrphan = TypeVar("AnOrphan", bound="Orphan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An open transaction, session or table. Only the query's log shows whether it is an orphan or a batch in progress.

    Numbers that the server does not report are -1.

    Attributes:
        kind: The kind of object, in the sink's terms.
        name: The name on the server.
        query: The short form of the query's id.
        run: The run's token, as ``position-nonce``.
        batch: Spark's batch id.
        slot: The slot.
        copy: The end of the name, which is unique to one task attempt of one slot.
        age_s: The age by the server's clock.
        holds: What the object blocks while it is open.
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

    @classmethod
    def of(cls: type[AnOrphan], name: Any, /, **more: Any) -> AnOrphan:
        """Returns the orphan with this name. A name without a batch and a slot belongs to a session."""
        more |= {"query": name.query, "run": run_of(name.token), "copy": name.copy}
        return cls(**{"batch": getattr(name, "batch", -1), "slot": getattr(name, "slot", -1), **more})

    def is_of(self, handle: Handle) -> bool:
        return any(str(value).endswith(f".{self.copy}") for _, value in handle.transaction)


def run_of(token: Token) -> str:
    """Returns a token in the form of `Orphan.run`."""
    return f"{token.position}-{token.nonce}"


def token_in(run: str) -> Token:
    """Returns the token that `run_of` has formatted."""
    position, _, nonce = run.partition("-")
    return Token(int(position), nonce)


def shown(head: str, **more: Any) -> Any:
    """Declares a field of a class derived from `Orphan`, with the heading of its column and arguments for `field`."""
    return field(metadata={"head": head}, **more)


def parse_line(text: str) -> dict[str, str]:
    """Parses settings from one line: ``name=value``, with shell-style quotes around values that contain spaces.

    Raises:
        ConfigurationError: If a name is missing. The message omits values: one may be a password.
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
