"""The test suite for checkpoint stores whose servers are slow, lose replies, refuse requests or are down."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

import pytest

from conformance.checkpoint_suite import check_race, raced
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken, may_pass


@dataclass(frozen=True, slots=True)
class Faulty:
    """A checkpoint store with fault injection.

    Attributes:
        files: The client whose requests go through the fault injection.
        clean: A client that bypasses the fault injection.
        lose_reply: Executes the request that decides the next put, and drops its reply.
        lose_replies: Does the same, and then blocks everything until `heal`.
        cut: Blocks everything until `heal`.
        heal: Ends all faults.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    lose_reply: Callable[[], object]
    lose_replies: Callable[[], object]
    cut: Callable[[], object]
    heal: Callable[[], object]


class NetworkSuite(abc.ABC):
    """The promises of a store whose servers do not always answer."""

    @pytest.fixture
    @abc.abstractmethod
    def faulty(self) -> Iterator[Faulty]:
        """A folder that does not exist yet, and the faults in front of it."""

    def test_a_put_whose_reply_is_lost(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_reply()
        with suppress(PutUnknownError):
            assert faulty.files.put("a/1", b"record") == Taken(standing=b"record"), "asked again, it met its own bytes"
        assert faulty.clean.read("a/1") == b"record"
        assert faulty.files.put("a/1", b"record") == Taken(standing=b"record")
        assert sorted(faulty.clean.names("a")) == ["0", "1"]

    def test_a_race_in_which_an_answer_is_lost(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_reply()
        answers = raced([partial(one.put, "a/1", data) for data, one in ((b"1", faulty.files), (b"2", faulty.clean))])
        check_race(faulty.clean.read("a/1"), [b"1", b"2"], answers)

    def test_a_put_that_is_never_answered(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.lose_replies()
        with pytest.raises(PutUnknownError):
            faulty.files.put("a/1", b"record")
        assert faulty.clean.read("a/1") == b"record"
        faulty.heal()
        assert faulty.files.put("a/1", b"another") == Taken(standing=b"record")
        assert faulty.files.put("a/2", b"after") == Landed()
        assert sorted(faulty.clean.names("a")) == ["0", "1", "2"]

    def test_a_store_that_is_gone_and_back(self, faulty: Faulty) -> None:
        assert faulty.files.put("a/0", b"before") == Landed()
        faulty.cut()
        with pytest.raises((OSError, PutUnknownError)) as caught:
            faulty.files.put("a/1", b"record")
        refused = isinstance(caught.value, OSError)
        assert not refused or may_pass(caught.value), "it is waited for"
        for ask in (lambda: faulty.files.read("a/0"), lambda: faulty.files.names("a")):
            with pytest.raises(OSError, match=r"\w"):
                ask()
        faulty.heal()
        answer = faulty.files.put("a/1", b"record")
        assert answer == Landed() or (not refused and answer == Taken(standing=b"record"))
        assert faulty.clean.read("a/1") == b"record"


@dataclass(frozen=True, slots=True)
class Refusing:
    """A store that refuses puts for a known reason.

    Attributes:
        files: The client that is refused.
        clean: A client that is not refused.
        during: A context in which puts are refused.
        passes: True if callers wait for the refusal to end.
    """

    files: CheckpointFiles
    clean: CheckpointFiles
    during: AbstractContextManager[object]
    passes: bool


class RefusalSuite(abc.ABC):
    """The promises of a store that refuses: read-only, full, over its quota."""

    @pytest.fixture
    @abc.abstractmethod
    def refusing(self) -> Refusing:
        """A folder that does not exist yet, and a way to have puts refused."""

    def test_a_refused_put_has_not_landed(self, refusing: Refusing) -> None:
        assert refusing.files.put("a/0", b"before") == Landed()
        with refusing.during:
            with pytest.raises(OSError, match=r"\w") as caught:
                refusing.files.put("a/1", b"record")
            assert may_pass(caught.value) == refusing.passes
            assert refusing.files.read("a/0") == b"before"
            if not refusing.passes:
                with pytest.raises(ConfigurationError):
                    refusing.files.check()
        assert refusing.clean.read("a/1") is None
        assert refusing.clean.put("a/1", b"record") == Landed()
