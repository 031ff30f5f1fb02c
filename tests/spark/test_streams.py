"""Queries into every sink, killed by one SIGKILL after the other while each is at a point of its own.

All run in one process and one Spark, which is what takes the time. The short form has two rounds; the long one kills
each sink's query at every point between its first row and its last word::

    pytest -m slow tests/spark/test_streams.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from mariadb_witness import Witness, shared_server
from postgres_witness import running
from redis_servers import witness
from s3_bucket import Bucket
from spark.harness import Job, start_together
from spark.kills import Cell, Sight, look, strike
from spark.pipeline import ENDED, KAFKA
from spark.targets import S3, Files, MySQL, Postgres, Redis, Rows, Target
from sparkonce.files import read_manifests, whole_batches
from sparkonce.protocol.state import Phase
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.servers.mariadb import MariaDBServer
from sparkonce.rig.servers.postgres import PostgresServer, find_postgres
from sparkonce.rig.servers.process import find_program
from sparkonce.rig.servers.redis import RedisServer
from sparkonce.rig.servers.s3 import S3Server, find_versitygw
from sparkonce.sinks.redis.names import COMMITS_FIELD, LedgerEntry
from striking.points import BEFORE_CONCLUDE, HALFWAY, PREPARED, WRITTEN

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

SLOTS, ROWS_PER_BATCH, BATCHES = 4, 400, 3
WITHIN = (WRITTEN, PREPARED, HALFWAY, BEFORE_CONCLUDE)
WRITING, DECIDING, REPLAYING = Phase.WRITING.name, Phase.DECIDING.name, Phase.REPLAYING.name
PREFIX = "orders-of-streams"


class Servers:
    """Those of all queries, each started when it is asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder / "servers"
        self.folder.mkdir()
        self._stack = stack

    @cached_property
    def mariadb(self) -> Witness:
        return Witness(shared_server())

    @cached_property
    def postgres(self) -> PostgresServer:
        return self._stack.enter_context(running())

    @cached_property
    def redis(self) -> RedisServer:
        return self._stack.enter_context(RedisServer(self.folder / "redis"))

    @cached_property
    def bucket(self) -> Bucket:
        return Bucket(self._stack.enter_context(S3Server(self.folder / "versitygw")))


@dataclass(frozen=True, slots=True)
class Stream:
    """A query and its cells.

    Attributes:
        cells: Where it is killed in each round; None where it is not started.
        targets: Beside Kafka, or instead of it.
        needs: The servers that must be installed.
        config: More of the job's.
    """

    cells: Sequence[Cell | None]
    targets: Callable[[Servers], Sequence[Target]] = lambda _: ()
    needs: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def at(*points: str) -> list[Cell]:
    return [(point, {}) for point in points]


NOT_KAFKA: dict[str, Any] = {"kafka": None}

TABLES = {
    "mysql-staged": Stream(
        at(DECIDING, HALFWAY), lambda to: [MySQL(to.mariadb, "staged", commit="staged")], ["mariadb"], NOT_KAFKA
    ),
    "mysql-two-phase": Stream(
        at(DECIDING, HALFWAY), lambda to: [MySQL(to.mariadb, "twophase", commit="two_phase")], ["mariadb"], NOT_KAFKA
    ),
    "postgres-staged": Stream(
        at(DECIDING, HALFWAY), lambda to: [Postgres(to.postgres, "staged", commit="staged")], ["postgres"], NOT_KAFKA
    ),
    "postgres-two-phase": Stream(
        at(DECIDING, HALFWAY), lambda to: [Postgres(to.postgres, "two", commit="two_phase")], ["postgres"], NOT_KAFKA
    ),
}
ONE_TARGET = {
    **TABLES,
    "redis": Stream(at(DECIDING, HALFWAY), lambda to: [Redis(to.redis, by="ending")], ["redis"], NOT_KAFKA),
    "s3": Stream(at(DECIDING, HALFWAY), lambda to: [S3(to.bucket)], ["s3"], {**NOT_KAFKA, "files": "in"}),
    "files": Stream(at(PREPARED, BEFORE_CONCLUDE), lambda to: [Files(to.folder / "files")], [], NOT_KAFKA),
}


def unit(table: str, *cells: Cell) -> Stream:
    """A query into Kafka, a table, and files, which have half as many slots."""
    return Stream(
        cells, lambda to: [Postgres(to.postgres, table), Files(to.folder / table, slots=SLOTS // 2)], ["postgres"]
    )


UNITS = {
    "unit-replayed": unit("replayed", (HALFWAY, {"sink": "kafka"}), (REPLAYING, {})),
    "unit-decided": unit("decided", (PREPARED, {"sink": "files"}), (BEFORE_CONCLUDE, {"sink": "postgres"})),
    "unit-halfway": unit("halfway", (DECIDING, {}), (HALFWAY, {"sink": "postgres"})),
}
AT_MOST = {"guarantee": "AT_MOST_ONCE"}
IN_BATCH = {"batch": 1}
WEAKER = {
    "at-least-once": Stream([(WRITTEN, IN_BATCH), None], config={"kafka": {"guarantee": "AT_LEAST_ONCE"}}),
    "at-most-once": Stream([(WRITTEN, IN_BATCH), None], config={"kafka": AT_MOST}),
    "at-most-once-elsewhere": Stream(
        # In the first sink of four: the other slots have written all four.
        [(WRITTEN, {**IN_BATCH, "sink": "files", "slot": SLOTS - 1}), None],
        lambda to: [
            Files(to.folder / "at-most-once", format="json", compression="none", **AT_MOST),
            Redis(to.redis, by="id", **AT_MOST),
            Postgres(to.postgres, "at_most_once", **AT_MOST),
            MySQL(to.mariadb, "at_most_once", **AT_MOST),
        ],
        ["redis", "postgres", "mariadb"],
        NOT_KAFKA,
    ),
}
PREFIXES = {
    "orders": Stream([(DECIDING, {}), (WRITING, {})], config={"kafka": {"prefix": PREFIX}}),
    "orders-eu": Stream([(DECIDING, {}), None], config={"kafka": {"prefix": f"{PREFIX}-eu"}}),
}
STREAMS = {**ONE_TARGET, **UNITS, **WEAKER, **PREFIXES}

INSTALLED = {
    "mariadb": MariaDBServer.is_installed(),
    "postgres": find_postgres() is not None,
    "redis": find_program("redis-server") is not None,
    "s3": find_versitygw() is not None,
}


class Struck:
    """All queries, after their kills and their last run.

    Attributes:
        jobs: By name.
        sights: Of each, one a round.
        decisions: Of each query into a table, the newest one when the last kill was over.
        lost: How many of its transactions somebody rolled back after that.
    """

    def __init__(self, kafka: Cluster, folder: Path, streams: Mapping[str, Stream], stack: ExitStack) -> None:
        self.streams = streams
        self.jobs: dict[str, Job] = {}
        self.sights: dict[str, list[Sight]] = {name: [] for name in streams}
        servers = Servers(folder, stack)
        for name, stream in streams.items():
            if all(INSTALLED[server] for server in stream.needs):
                self.jobs[name] = stack.enter_context(new_job(kafka, folder, servers, name, stream))
        rounds = max(len(stream.cells) for stream in streams.values())
        for number in range(rounds):
            self._strike(
                {name: streams[name].cells[number] for name in self.jobs if number < len(streams[name].cells)},
                folder / f"{number}.log",
            )
        tables = [name for name in TABLES if name in self.jobs]
        self.decisions = {name: self.jobs[name].log().newest_decision for name in tables}
        self.lost = {name: roll_back(self.jobs[name]) for name in tables}
        start_together(list(self.jobs.values()), folder / "last.log").join()

    def _strike(self, cells: Mapping[str, Cell | None], log: Path) -> None:
        struck = {self.jobs[name]: cell for name, cell in cells.items() if cell is not None}
        found = strike(struck, log) if struck else {}
        for name, cell in cells.items():
            job = self.jobs[name]
            if cell is None:
                self.sights[name].append(look("not started", job))
            else:
                self.sights[name].append(found[job])

    def of(self, name: str) -> tuple[Job, list[Sight]]:
        if name not in self.jobs:
            pytest.skip(f"not all of {STREAMS[name].needs} are installed")
        job, sights = self.jobs[name], self.sights[name]
        assert [one.told["failed"] for one in job.gate.at(ENDED)] == [""], "the last run, and no other, has ended"
        return job, sights


def new_job(kafka: Cluster, folder: Path, servers: Servers, name: str, stream: Stream) -> Job:
    config = {"plan": "spark.plans:stateless", **stream.config}
    place = folder / name
    if "files" in config:
        config |= {"files": str(place / "in"), "plan": "spark.plans:from_files", "sources": 0}
    return Job(
        kafka.bootstrap,
        place,
        rows=BATCHES * ROWS_PER_BATCH,
        again=False,
        rows_per_batch=ROWS_PER_BATCH,
        points=WITHIN,
        targets=stream.targets(servers),
        **config,
    )


def roll_back(job: Job) -> int:
    (target,) = job.targets.values()
    assert isinstance(target, MySQL | Postgres)
    return target.roll_back(job.query)


LONG = {name: replace(one, cells=at(PREPARED, DECIDING, BEFORE_CONCLUDE, HALFWAY)) for name, one in ONE_TARGET.items()}


@pytest.fixture(
    scope="module", params=[STREAMS, pytest.param({**STREAMS, **LONG}, marks=pytest.mark.slow)], ids=["short", "long"]
)
def struck(
    request: pytest.FixtureRequest, kafka: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Struck]:
    """Starts the queries of those tests that are to run, and no others."""
    here = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    asked = [item.callspec.params for item in here]
    names = {name for one in asked if one["struck"] is request.param for name in str(one["names"]).split()}
    streams = {name: stream for name, stream in request.param.items() if name in names}
    with ExitStack() as stack:
        yield Struck(kafka, tmp_path_factory.mktemp("streams"), streams, stack)


def some(names: Collection[str], *, always: Collection[str] = (), group: str) -> list[Any]:
    """Parameters of which the first tier has these always, and one of the others."""
    return [pytest.param(name, marks=[pytest.mark.drawn(1, group)] * (name not in always)) for name in names]


@pytest.mark.parametrize("names", some(ONE_TARGET, always=("mysql-two-phase", "redis", "s3"), group="one target"))
def test_rows_are_there_once_and_none_before_its_batch_is_decided(struck: Struck, names: str) -> None:
    job, sights = struck.of(names)
    for sight in sights:
        check_sight(sight)
    assert [sight.point for sight in sights] == [cell[0] for cell in struck.streams[names].cells if cell is not None]
    (verdict,) = job.judge_others().values()
    assert verdict.is_exactly_once, verdict
    (target,) = job.targets.values()
    if isinstance(target, MySQL | Postgres):
        check_rolled_back(struck, names)
    elif isinstance(target, Redis):
        check_ledger(job, target, sights)
    else:
        check_manifests(target)


def check_sight(sight: Sight) -> None:
    """Sees that the query was where it was to be, by what its system showed and held."""
    ((kind, visible),) = sight.visible.items()
    opened, of_batch = len(sight.open[kind]), rows_of(visible, sight.batch)
    assert_nothing_early(sight)
    assert (sight.decided < sight.batch) == (sight.point in {PREPARED, DECIDING})
    if sight.point == BEFORE_CONCLUDE:
        assert (opened, of_batch) == (0, ROWS_PER_BATCH)
    elif sight.point == HALFWAY:
        assert opened > 0
        assert 0 < of_batch < ROWS_PER_BATCH
    else:
        assert opened > 0, f"the query holds nothing at {sight.point}, so the kill proves nothing"
        assert of_batch == 0


def assert_nothing_early(sight: Sight, held: str = "") -> None:
    """Sees that no row was there before its batch was decided, and that nobody has committed after the kill.

    Where one sink is held, the others may go on with a decided batch until the kill.
    """
    for kind, rows in sight.after.items():
        early = [row for row in rows if row[1] > sight.decided]
        assert (kind, sight.point, early) == (kind, sight.point, [])
        assert not sight.visible[kind] - rows, "rows that were there are gone"
        if kind.lower().startswith(held):
            assert rows == sight.visible[kind], "somebody has committed after the kill"


def rows_of(visible: Rows, batch: int) -> int:
    return sum(count for (_, one), count in visible.items() if one == batch)


def check_rolled_back(struck: Struck, name: str) -> None:
    """Sees that what somebody rolled back of a batch that was half committed has been written again."""
    before, lost = struck.decisions[name], struck.lost[name]
    assert before is not None
    assert struck.sights[name][-1].point == HALFWAY
    assert (lost > 0) == name.endswith("two-phase")
    after = struck.jobs[name].log().decision(before.batch)
    assert after is not None
    assert len(set(before.handles) - set(after.handles)) == lost
    assert [one.evidence for one in after.handles] == [one.evidence for one in before.handles]


def check_ledger(job: Job, target: Redis, sights: Sequence[Sight]) -> None:
    """Sees that every transaction was committed once, and aborted if it was prepared and not decided."""
    with witness(target.server) as client:
        entries = {name.decode(): entry.decode() for name, entry in client.hgetall(target.ledger(job.query)).items()}
    assert int(entries.pop(COMMITS_FIELD)) == SLOTS * BATCHES
    states = Counter(LedgerEntry.parse(entry).state for entry in entries.values())
    aborted = sum(len(sight.open["RedisSink"]) for sight in sights if sight.decided < sight.batch)
    assert states == {"D": SLOTS * BATCHES, "A": aborted}
    for sight in sights:
        if sight.point == HALFWAY:
            assert rows_of(sight.visible["RedisSink"], sight.batch) == ROWS_PER_BATCH // 2


def check_manifests(target: Target) -> None:
    """Sees that the manifests name every batch, and every file of it that is there."""
    path, options = target.sink["path"], target.sink.get("store_options")
    manifests = read_manifests(path, store_options=options)
    assert {one.batch: one.rows for one in manifests} == dict.fromkeys(range(BATCHES), ROWS_PER_BATCH)
    if isinstance(target, S3):
        published = {f"s3://{target.bucket.name}/{key}" for key in target.bucket.published()}
    else:
        published = {str(each) for each in Path(path).rglob("*.parquet")}
    assert set(whole_batches(path, store_options=options)) == published


@pytest.mark.parametrize("names", some(UNITS, group="units"))
def test_three_sinks_of_one_query_agree_batch_by_batch(struck: Struck, names: str) -> None:
    job, sights = struck.of(names)
    for sight, cell in zip(sights, UNITS[names].cells, strict=True):
        assert cell is not None
        assert_nothing_early(sight, cell[1].get("sink", ""))
        assert sight.point == cell[0]
        if sight.point == BEFORE_CONCLUDE:
            shown = {rows_of(visible, sight.batch) for visible in sight.visible.values()}
            assert (shown, any(sight.open.values())) == ({ROWS_PER_BATCH}, False)
        elif sight.point != REPLAYING:
            assert any(sight.open.values()), f"the query holds nothing at {cell}, so the kill proves nothing"
    kafka, postgres, files = (job.visible()[kind] for kind in (KAFKA, "PostgresSink", "FilesSink"))
    assert kafka == postgres == files
    assert sorted(row for row, _ in kafka.elements()) == job.ids
    assert job.open() == {kind: [] for kind in job.config.sinks}
    verdict = job.judge()
    assert verdict.is_exactly_once, verdict


@pytest.mark.parametrize("names", some(["at-least-once"], group="others"))
def test_at_least_once_doubles_rows_and_misses_none(struck: Struck, names: str) -> None:
    job, (killed, _) = struck.of(names)
    assert (killed.point, killed.batch) == (WRITTEN, 1)
    (found,) = job.visible().values()
    rows = Counter(row for row, _ in found.elements())
    assert rows.keys() == set(job.ids)
    doubled = {row for row, count in rows.items() if count > 1}
    assert doubled, "the kill came before anything was written"
    assert {batch for row, batch in found if row in doubled} == {killed.batch}, (
        "only rows of the killed batch come twice"
    )


@pytest.mark.parametrize("names", some(["at-most-once", "at-most-once-elsewhere"], group="others"))
def test_at_most_once_misses_rows_and_doubles_none(struck: Struck, names: str) -> None:
    job, (killed, _) = struck.of(names)
    assert (killed.point, killed.batch) == (WRITTEN, 1)
    assert killed.decided == killed.batch, "it was not decided before it was written"
    of_batch = set(job.ids[ROWS_PER_BATCH * killed.batch : ROWS_PER_BATCH * (killed.batch + 1)])
    for kind, found in job.visible().items():
        rows = Counter(row for row, _ in found.elements())
        missing = set(job.ids) - rows.keys()
        assert (kind, rows.total() - len(rows), rows.keys() - set(job.ids)) == (kind, 0, set())
        assert missing, "the kill came when all was written"
        assert missing < of_batch, f"{kind}: only rows of the killed batch are missing, and not all"


@pytest.mark.parametrize("names", some([" ".join(PREFIXES)], group="others"))
def test_a_restart_sweeps_its_own_and_leaves_alone_a_query_whose_prefix_begins_alike(
    struck: Struck, names: str
) -> None:
    (orders, (mine, swept)), (orders_eu, (others, left_alone)) = map(struck.of, names.split())
    assert (mine.point, others.point, swept.point) == (DECIDING, DECIDING, WRITING)
    assert all(name.startswith(f"{PREFIX}.") for name in mine.open[KAFKA])
    assert all(name.startswith(f"{PREFIX}-eu.") for name in others.open[KAFKA])
    assert len(mine.open[KAFKA]) == len(others.open[KAFKA]) == SLOTS
    assert swept.open[KAFKA] == []
    assert set(left_alone.open[KAFKA]) == set(others.open[KAFKA])
    for job in (orders, orders_eu):
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict
