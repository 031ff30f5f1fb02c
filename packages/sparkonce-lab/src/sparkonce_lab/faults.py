"""The faults that can be injected, by name."""

from __future__ import annotations

from enum import Enum


class Fault(str, Enum):
    """A fault that can be injected. The value is its name in schedules, histories and on the command line."""

    DRIVER_KILLED = "driver-killed"
    DRIVER_PAUSED = "driver-paused"
    TWO_DRIVERS = "two-drivers"
    OTHER_PARALLELISM = "other-parallelism"
    CLOCK_JUMPED = "clock-jumped"
    EXECUTOR_KILLED = "executor-killed"
    WORKER_KILLED = "worker-killed"
    LOG_DISK_FULL = "log-disk-full"
    EXPIRED = "expired"
    SERVER_KILLED = "server-killed"
    SERVER_PAUSED = "server-paused"
    COORDINATOR_MOVED = "coordinator-moved"
    TARGET_DISK_FULL = "target-disk-full"
    CUT = "cut"
    SLOWED = "slowed"
    BLACK_HOLE = "black-hole"
    REQUESTS_SWALLOWED = "requests-swallowed"
    REPLIES_SWALLOWED = "replies-swallowed"
    REPLY_LOST = "reply-lost"
    REQUEST_LATE = "request-late"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def of_a_system(self) -> bool:
        """True if the fault strikes a server or connections to one. A schedule must then name the server."""
        return self not in OF_THE_QUERY


STORE = "checkpoint"
"""The name of the checkpoint's store in schedules, where other steps have the name of a system."""

OF_THE_QUERY = frozenset(
    {
        Fault.DRIVER_KILLED,
        Fault.DRIVER_PAUSED,
        Fault.TWO_DRIVERS,
        Fault.OTHER_PARALLELISM,
        Fault.CLOCK_JUMPED,
        Fault.EXECUTOR_KILLED,
        Fault.WORKER_KILLED,
        Fault.LOG_DISK_FULL,
        Fault.EXPIRED,
    }
)
"""Faults that affect the query's own processes and folder."""

OF_REQUESTS = frozenset({Fault.REPLY_LOST, Fault.REQUEST_LATE})
"""Faults of a single request. A schedule must name the request."""

ENDS_THE_DRIVER = frozenset(
    {Fault.DRIVER_KILLED, Fault.DRIVER_PAUSED, Fault.TWO_DRIVERS, Fault.OTHER_PARALLELISM, Fault.EXPIRED}
)
"""The faults after which another driver takes over."""

_WORDS = {
    Fault.DRIVER_KILLED: "SIGKILL of the driver, its JVM and its workers; then a new driver",
    Fault.DRIVER_PAUSED: "SIGSTOP of the driver; a new driver takes over; then SIGCONT: a zombie comes back",
    Fault.TWO_DRIVERS: "a second driver is started on the same checkpoint while the first one works",
    Fault.OTHER_PARALLELISM: "SIGKILL of the driver; the new one has a different number of slots",
    Fault.CLOCK_JUMPED: "the clock of driver and JVM jumps forward; or SIGKILL, and the new driver's clock is behind",
    Fault.EXECUTOR_KILLED: "SIGKILL of an executor's JVM",
    Fault.WORKER_KILLED: "SIGKILL of a Python worker",
    Fault.LOG_DISK_FULL: "the disk of checkpoint and decision log is full",
    Fault.EXPIRED: "SIGKILL of the driver, which is not restarted before the broker has ended its open transactions",
    Fault.SERVER_KILLED: "SIGKILL of the server, which is started again with its data",
    Fault.SERVER_PAUSED: "SIGSTOP of the server, and SIGCONT later",
    Fault.COORDINATOR_MOVED: "SIGKILL of the broker that coordinates the query's transactions; another one takes over",
    Fault.TARGET_DISK_FULL: "the disk that the system writes to is full",
    Fault.CUT: "RST on every connection to the system",
    Fault.SLOWED: "every piece of every connection to the system is delayed",
    Fault.BLACK_HOLE: "nothing comes through in either direction, and connections stay open",
    Fault.REQUESTS_SWALLOWED: "nothing reaches the system; what it sends comes through",
    Fault.REPLIES_SWALLOWED: "what is sent reaches the system; nothing comes back",
    Fault.REPLY_LOST: "one request is delivered and its reply is lost",
    Fault.REQUEST_LATE: "one request is held back, its client cut off, and it is delivered later",
}
