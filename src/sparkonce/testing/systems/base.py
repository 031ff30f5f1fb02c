"""The questions that every witness answers, whatever its system."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from sparkonce.rig.proxy import Request


class Witness(abc.ABC):
    """Asks a system itself, by a connection that has nothing to do with the product's code.

    Its methods raise the client library's errors while the system does not answer.

    Attributes:
        requests: By way of committing, then by name (``prepare``, ``commit``, ``abort``): how a fault proxy recognises
            the request.
    """

    requests: ClassVar[Mapping[str, Mapping[str, Request]]]

    @abc.abstractmethod
    def left_open(self) -> Sequence[str]:
        """Names what is neither committed nor aborted."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes its connections. May be called again; the next question opens them again."""
