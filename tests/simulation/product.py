"""Replaces what the product uses with models: clocks, threads, connections, system calls, random names."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from simulation import (
    files,
    iceberg,
    kafka,
    mariadb,
    postgres,
    pravega,
    producers,
    rabbitmq,
    s3,
    spark,
    staged,
    tables,
    wire,
)
from simulation.engine import UNDER_WAY
from sparkonce import errors
from sparkonce.driver import stops
from sparkonce.driver.finish import BatchFinisher
from sparkonce.driver.run import RunDriver
from sparkonce.protocol import codec, horizon, sweeping
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token, TransactionalId, TransactionName
from sparkonce.sinks.files.store import read_handle
from sparkonce.sinks.write_ahead import committer

if TYPE_CHECKING:
    from simulation.engine import Party, Simulation

MOST_REMEMBERED = 50_000


class _Clock:
    def monotonic(self) -> float:
        return UNDER_WAY[0].clock_s

    def time(self) -> float:
        return UNDER_WAY[0].time_ms(UNDER_WAY[0].newest_batch) / 1000

    def time_ns(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        UNDER_WAY[0].sleep(seconds)


class Lock:
    """`threading.RLock`, between a driver and its sweeper."""

    def __init__(self) -> None:
        self._owner: Party | None = None
        self._depth = 0

    def __enter__(self) -> None:
        simulation = UNDER_WAY[0]
        if self._depth and self._owner is not simulation.current and not simulation.over:
            simulation.wait(lambda: not self._depth)
        self._owner = simulation.current
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1


class _Condition:
    """`threading.Condition`: a party waits until notified or, if the wait has a timeout, until it is chosen."""

    def __init__(self) -> None:
        self._notified = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        self._notified = True

    def wait(self, timeout_s: float | None) -> None:
        simulation = UNDER_WAY[0]
        self._notified = False
        if timeout_s is None:
            simulation.wait(lambda: self._notified)
            return
        simulation.let_others_go_on()
        if not self._notified:
            simulation.clock_s += timeout_s


class _Thread:
    """`threading.Thread` of a driver, which ends with it. An undisturbed run sweeps when it is closed."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        simulation = UNDER_WAY[0]
        driver = simulation.current
        if driver is None:
            return
        thread = simulation.start(f"{driver.name}, sweeper", self._target, lambda: simulation.kill(driver))
        driver.also_on_death(lambda: simulation.kill(thread))


class _Later:
    """Work for a thread: it runs when its result is needed, in any order."""

    def __init__(self, pool: _Pool, call: Callable[[], Any]) -> None:
        self._pool, self._call = pool, call
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:  # noqa: BLE001 - raised where the result is needed
            self._error = error

    def result(self) -> Any:
        self._pool.run()
        if self._error is not None:
            raise self._error
        return self._value


class _Pool:
    def __init__(self, max_workers: int = 0, thread_name_prefix: str = "") -> None:
        self._waiting: list[_Later] = []

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.run()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> _Later:
        later = _Later(self, lambda: call(*arguments))
        self._waiting.append(later)
        return later

    def map(self, call: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        waiting = [self.submit(call, item) for item in items]
        return iter([one.result() for one in waiting])

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            waiting.pop(UNDER_WAY[0].dice.pick(len(waiting)) if len(waiting) > 1 else 0).run()

    def shutdown(self) -> None:
        pass


def _first_line(error: BaseException) -> str:
    """An error after which a run continues. This checks that it may continue."""
    if not isinstance(error, errors.SparkonceError | staged.SparkError):
        UNDER_WAY[0].oracle.failed(error)
    return FIRST_LINE(error)


FIRST_LINE = stops.first_line


class _Stopwatch:
    seconds: Mapping[str, float] = {}

    def spent(self, phase: object) -> None:
        pass


def _nonce() -> Any:
    return SimpleNamespace(hex=f"{UNDER_WAY[0].nonce():08x}")


def _run() -> str:
    party = UNDER_WAY[0].current
    return spark.run_id(party.name if party is not None else "run 99")


_CLOCK = _Clock()
_SINKS = "sparkonce.sinks"
_RUNS_HERE = (
    *(f"sparkonce.{name}" for name in ("driver.", "executor", "log", "sinks.")),
    *("sparkonce_rabbitmq.", "sparkonce_pravega."),
)
_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    ("sparkonce.driver.run", "threading", SimpleNamespace(RLock=Lock)),
    ("sparkonce_rabbitmq.sinks.publishing", "threading", SimpleNamespace(RLock=Lock)),
    ("sparkonce.driver.sweeper", "threading", SimpleNamespace(Condition=_Condition, Thread=_Thread)),
    ("sparkonce.driver.run", "uuid", SimpleNamespace(uuid4=_nonce)),
    ("sparkonce.spark.formats.ends", "uuid", SimpleNamespace(uuid4=_run)),
    ("sparkonce.spark.formats.ends", "StoredRun", spark.StoredRun),
    ("sparkonce.operate.resolve", "uuid", SimpleNamespace(uuid4=_run)),
    ("sparkonce.operate.resolve", "_point", lambda checkpoint: checkpoint.point()),
    ("sparkonce.operate.resolve", "DecisionLog", lambda checkpoint: checkpoint.point()[0]),
    ("sparkonce.driver.put", "random", SimpleNamespace(uniform=lambda low, high: high)),
    ("sparkonce.driver.run", "socket", SimpleNamespace(gethostname=lambda: "h")),
    ("sparkonce.driver.run", "os", SimpleNamespace(getpid=lambda: 1)),
    ("sparkonce.driver.run", "Stopwatch", _Stopwatch),
    ("sparkonce.driver.stops", "first_line", _first_line),
    *(
        (codec, name, lru_cache(MOST_REMEMBERED)(getattr(codec, name)))
        for name in ("encode_record", "decode_record", "encode_floor", "decode_floor")
    ),
    (f"{_SINKS}.files.committer", "read_handle", lru_cache(MOST_REMEMBERED)(read_handle)),
    *((f"{_SINKS}.kafka.{module}", name, value) for module, name, value in (*wire.REPLACED, *producers.REPLACED)),
    (f"{_SINKS}.kafka.transaction_client", "KafkaConnection", lambda cluster: wire.Wire(cluster, kafka.BROKERS)),
    *((f"{_SINKS}.sql.postgres.{module}", name, value) for module, name, value in postgres.REPLACED),
    *((f"{_SINKS}.sql.mysql.{module}", name, value) for module, name, value in mariadb.REPLACED),
    *((f"{_SINKS}.files.{module}", name, value) for module, name, value in files.REPLACED),
    *((f"{_SINKS}.files.s3.{module}", name, value) for module, name, value in s3.REPLACED),
    *((f"{_SINKS}.write_ahead.{module}", name, value) for module, name, value in staged.REPLACED),
    *((f"sparkonce_rabbitmq.sinks.{module}", name, value) for module, name, value in rabbitmq.REPLACED),
    *(("sparkonce_pravega.client", name, value) for name, value in pravega.REPLACED),
    *((f"sparkonce.sinks.tables.{module}", name, value) for module, name, value in tables.REPLACED),
    *(("sparkonce.sinks.tables.iceberg", name, value) for name, value in iceberg.REPLACED),
)


def _clocks_and_pools() -> Iterator[tuple[Any, str, Any]]:
    """Yields the clock and the thread pool of every module of the product that has one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_RUNS_HERE):
            for attribute, real, value in (("time", time, _CLOCK), ("ThreadPoolExecutor", ThreadPoolExecutor, _Pool)):
                if getattr(module, attribute, None) is real:
                    yield module, attribute, value


def _hash_of(what: str) -> Callable[[Any], int]:
    """A unique value is enough. Nothing else is needed as often."""
    get = attrgetter(what)
    return lambda value: hash(get(value))


def _say_nothing(*_: object) -> None:
    pass


@contextmanager
def replaced() -> Iterator[None]:
    """Inside this block, the product runs in the simulation, and nowhere else."""
    before = logging.root.manager.disable
    with ExitStack() as stack:
        for owner, name, value in (*_clocks_and_pools(), *_REPLACED):
            owner = import_module(owner) if isinstance(owner, str) else owner
            stack.enter_context(mock.patch.object(owner, name, value))
        for kind in (TransactionName, TransactionalId):
            stack.enter_context(mock.patch.object(kind, "parse", lru_cache(MOST_REMEMBERED)(kind.parse)))
        for kind, what in ((Token, "nonce"), (TransactionName, "copy"), (Handle, "transaction")):
            stack.enter_context(mock.patch.object(kind, "__hash__", _hash_of(what)))
        for kind, name in ((BatchFinisher, "_report"), (RunDriver, "_tell")):
            stack.enter_context(mock.patch.object(kind, name, _say_nothing))
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def under_way(simulation: Simulation) -> Iterator[None]:
    """The current schedule, with its clock and decisions."""
    UNDER_WAY[:] = [simulation]
    horizon.KEEP_BATCHES = simulation.config.keep
    horizon.TIDY_EVERY_BATCHES = 1 if simulation.config.keep < 100 else 20
    horizon.KEEP_RECORDS = 3 if simulation.config.keep < 100 else 1_000
    committer.KEEP_BATCHES, committer.TIDY_EVERY_BATCHES = 2 * horizon.KEEP_BATCHES, horizon.TIDY_EVERY_BATCHES
    try:
        # Schedules are short, so a failed sweep is repeated with the next batch. Otherwise, only a thread sweeps,
        # perhaps for a second time.
        with (
            mock.patch.object(sweeping, "LONGEST_PAUSE_S", 0.0),
            mock.patch.object(
                sweeping, "LOSERS_END_WITHIN_S", spark.SOON_S if simulation.config.sweeps_beside else 0.0
            ),
        ):
            yield
    finally:
        horizon.KEEP_BATCHES, horizon.TIDY_EVERY_BATCHES, horizon.KEEP_RECORDS = 100, 20, 1_000
        committer.KEEP_BATCHES, committer.TIDY_EVERY_BATCHES = horizon.SINKS_KEEP_BATCHES, 20
        UNDER_WAY.clear()
