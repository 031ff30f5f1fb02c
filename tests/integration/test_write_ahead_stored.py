"""The write-ahead sink's rows in a store without renames.

A commit, an abort or a writer is paused or killed at each of its requests while another one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conformance.write_ahead_targets import SqliteTarget
from integration.write_ahead_scene import KilledError, commit, numbers, open_writer, owner, prepare
from plain_store import PlainStore
from sparkonce import WriteAheadSink
from sparkonce.errors import PrepareError
from sparkonce.protocol.handles import COMMITTED, Handle, Outcome, transaction_fields
from sparkonce.write_ahead import Applies


@pytest.mark.parametrize("then", ["goes on", "is killed", "is killed after the request"])
@pytest.mark.parametrize(
    ("first", "second"), [("commit", "abort"), ("abort", "commit"), ("write", "abort"), ("abort", "write")]
)
def test_two_processes_meet_at_any_request(tmp_path: Path, first: str, second: str, then: str) -> None:
    """The first process stops before a request, the second one does all its work, and the first continues or dies."""
    for point in count():
        root = tmp_path / str(point)
        target = SqliteTarget(root / "target")
        met: list[int] = []
        hook: Callable[[], None] = lambda: None  # noqa: E731

        class Store(PlainStore):
            def __getattribute__(self, name: str) -> Any:
                if name in ("read", "names", "put", "replace", "delete"):
                    hook()  # noqa: B023
                return super().__getattribute__(name)

        def sink(store: type[PlainStore] = PlainStore, root: Path = root, target: Any = target) -> WriteAheadSink:
            made = WriteAheadSink(target, applies=Applies.TRANSACTIONAL, is_applied=target.is_applied, parallel=1)
            made.use_checkpoint(store(root / "checkpoint"))
            return made

        if "write" in (first, second):
            writer = open_writer(sink(Store))
            fields = transaction_fields({"name": str(writer._name)})  # type: ignore[attr-defined]
            handle = Handle(sink="write-ahead", slot=0, rows=0, transaction=fields)
        else:
            handle = prepare(sink())

        def do(what: str, store: type[PlainStore], handle: Handle = handle) -> Outcome | Handle | None:
            if what == "write":
                try:
                    return Handle(sink="write-ahead", slot=0, rows=3, transaction=transaction_fields(writer.prepare()))  # noqa: B023
                except PrepareError:
                    return None
            committer = sink(store).committer()
            return (committer.commit if what == "commit" else committer.abort)([handle])[0].outcome

        results: dict[str, Any] = {first: None, second: None}

        def stop() -> None:
            met.append(1)  # noqa: B023
            if len(met) == point + 1:  # noqa: B023
                results[second] = do(second, PlainStore)  # noqa: B023
                if then == "is killed":
                    raise KilledError
            elif len(met) > point + 1 and then == "is killed after the request":  # noqa: B023
                raise KilledError

        hook = stop
        with suppress(KilledError):
            results[first] = do(first, Store)
        hook = lambda: None  # noqa: E731
        if "write" in results:
            writer.close()
        if len(met) <= point:
            break
        aborted = results["abort"]
        assert aborted in {Outcome.ABORTED, Outcome.ALREADY_COMMITTED, Outcome.UNKNOWN, None}, point
        if "write" in results:
            assert aborted in {Outcome.ABORTED, None}, point
            if results["write"] is not None and aborted is Outcome.ABORTED:
                assert commit(sink(), results["write"]) == [Outcome.LOST], point
                assert target.visible() == [], point
            committer = sink().committer()
            committer.abort(committer.list_lingering([owner()]))
        else:
            committed = results["commit"]
            assert committed in {*COMMITTED, Outcome.LOST, Outcome.RETRY, None}, point
            (late,) = commit(sink(), handle)
            assert late in {*COMMITTED, Outcome.LOST}, point
            assert sorted(target.visible()) == ([] if late is Outcome.LOST else numbers(0, [0])), point
            if Outcome.ABORTED is aborted or committed is Outcome.LOST:
                assert late is Outcome.LOST, point
            (again,) = sink().committer().abort([handle])
            assert again.outcome is (Outcome.ABORTED if late is Outcome.LOST else Outcome.ALREADY_COMMITTED), point
        waiting = root / "checkpoint" / "sparkonce-write-ahead" / "write-ahead" / "rows"
        assert [one for one in waiting.rglob("*") if one.is_file()] == [], point
    assert point > 1
