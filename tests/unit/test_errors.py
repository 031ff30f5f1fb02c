from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from sparkonce import errors
from sparkonce.driver.stops import stop_error
from sparkonce.errors import SparkonceError, TransactionLostError
from sparkonce.protocol.effects import Stop, StopReason


def tree(kind: type[SparkonceError] = SparkonceError) -> Iterator[type[SparkonceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


ALL = [kind for kind in tree() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_errors_cross_processes(kind: type[SparkonceError]) -> None:
    error = kind("a=1 is wrong.", next_step="set a=2", batch=7, lost=(("memory", 1, 2),))
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
    assert type(copy) is kind
    assert (copy.message, copy.next_step, copy.details) == (error.message, error.next_step, error.details)
    assert str(copy) == str(error) == "a=1 is wrong. Next: Set a=2."


def test_an_error_without_a_next_step_says_what_happened() -> None:
    assert str(SparkonceError("a=1 is wrong")) == "a=1 is wrong."


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: list[tuple[str, str]] = []
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<branch>[│ ├└─]*)(?P<name>[A-Z]\w+)(?:\s+\S|$)", line)
        if match is None:
            continue
        depth = len(match["branch"]) // 4
        parents[depth:] = [match["name"]]
        drawn.append((match["name"], parents[depth - 1] if depth else "Exception"))
    real = [(kind.__name__, kind.__bases__[0].__name__) for kind in ALL]
    assert sorted(drawn) == sorted(real)

    docstrings = [kind.__doc__ for kind in ALL]
    assert None not in docstrings
    assert len(set(docstrings)) == len(ALL)


@pytest.mark.parametrize("reason", list(StopReason), ids=lambda reason: reason.name)
def test_every_reason_to_stop_is_an_error_that_says_what_to_do(reason: StopReason) -> None:
    details = (("lost", ()), ("differing", ()), ("same_rows", False), ("offsets", ()))
    error = stop_error(Stop(reason=reason, message="this happened", details=details), 5)
    assert error.message.startswith("this happened")
    assert error.next_step
    assert error.details["batch"] == 5
    assert type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - pickled on the same line


def test_a_loss_names_what_is_lost() -> None:
    details: dict[str, object] = {
        "lost": (("memory", 1, 2),),
        "differing": (("memory", 1),),
        "same_rows": False,
        "offsets": ("{}",),
    }
    error = stop_error(Stop(reason=StopReason.LOST, message="lost", details=tuple(details.items())), 5)
    assert type(error) is TransactionLostError
    assert "('memory', 1, 2)" in error.message
    assert details == {name: error.details[name] for name in details}


@pytest.mark.parametrize(
    ("said", "step", "told"),
    [
        ("no sink is called 'a'", "give one of ['b']", "No sink is called 'a'. Next: Give one of ['b']."),
        ("topic holds a space", "pip install x", "topic holds a space. Next: pip install x."),
        ("a_b=1: must be 2", "a.b is", "a_b=1: must be 2. Next: a.b is."),
        ("Why?\n", "", "Why?"),
        ("", "", ""),
    ],
)
def test_what_is_told_is_sentences(said: str, step: str, told: str) -> None:
    assert str(errors.ConfigurationError(said, next_step=step, setting="topic")) == told
    assert str(errors.PrepareError("slot 1 failed", next_step="look")) == "slot 1 failed. Next: Look."
