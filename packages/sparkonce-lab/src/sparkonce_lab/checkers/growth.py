"""Finds memory, file handles, or a decision log that grow without end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from sparkonce.protocol.coordinator import MOST_DOUBTS, MOST_HEALINGS
from sparkonce.protocol.horizon import KEEP_BATCHES, TIDY_EVERY_BATCHES
from sparkonce_lab.history import Event, EventKind, History
from sparkonce_lab.verdicts import MOST_EXAMPLES, Anomaly, Verdict

LOG_FOLDER = "log"
"""The decision log's name in `EventKind.FOLDER`."""

WARM_UP_MS = 120_000
"""The first time of a process, which is not judged: caches fill, code is compiled, pools open."""
FEWEST_SAMPLES = 20
SHORTEST_MS = 600_000
"""The shortest observation of a process that tells anything about growth."""
_HANDLES = (1.20, 20.0)
_OF_A_JVM = {"rss_mib": (1.25, 100.0), "handles": _HANDLES}
_OF_PYTHON = {"rss_mib": (1.10, 20.0), "handles": _HANDLES}
"""Growing is what has become more than so many times as large, and larger by more than that. A JVM keeps garbage."""

_FLOORS = 2
"""Files of floors: the highest, and one that is about to be deleted."""
_FILES_PER_DRIVER = 2
"""A claim, and a temporary file that a killed driver has left: they are deleted after an hour."""


def check_growth(history: History) -> Iterator[Verdict]:
    """Finds GROWING. Processes that were not seen for long, and a log that is not yet tidied, are not judged."""
    looked_at, examples = 0, []
    series: dict[tuple[int, str, int], list[Event]] = {}
    for event in history.of(EventKind.RESOURCES):
        series.setdefault((event["driver"], event["role"], event["pid"]), []).append(event)
    for (driver, role, pid), samples in series.items():
        warm = [event for event in samples if event.at_ms - samples[0].at_ms >= WARM_UP_MS]
        if len(warm) < FEWEST_SAMPLES or warm[-1].at_ms - warm[0].at_ms < SHORTEST_MS:
            continue
        looked_at += 1
        limits = _OF_A_JVM if role == "jvm" else _OF_PYTHON
        examples += [f"{role} of driver {driver} (process {pid}): {line}" for line in _growth(warm, limits)]
    newest = max((event["batch"] for event in history.of(EventKind.BATCH)), default=-1)
    bound = most_log_files(history)
    logs = [event for event in history.of(EventKind.FOLDER) if event["name"] == LOG_FOLDER]
    if logs and newest >= bound:
        looked_at += 1
        largest = max(logs, key=lambda event: int(event["files"]))
        if largest["files"] > bound:
            examples.append(
                f"the decision log had {largest['files']} files at {largest.at_ms} ms, and keeps {bound} at most"
            )
    yield Verdict(
        anomaly=Anomaly.GROWING,
        system="",
        looked_at=looked_at,
        count=len(examples),
        examples=tuple(examples[:MOST_EXAMPLES]),
    )


def most_log_files(history: History) -> int:
    """Returns the most files that the decision log may have: those that the coordinator keeps, and this run's."""
    drivers = sum(1 for _ in history.of(EventKind.START))
    healed = sum(1 for event in history.of(EventKind.BATCH) if event["healed"])
    decisions = KEEP_BATCHES + TIDY_EVERY_BATCHES + 1
    # A driver that is killed before it has tidied leaves that to the next batch.
    return decisions + _FLOORS + drivers * (_FILES_PER_DRIVER + 1) + healed * MOST_HEALINGS + MOST_DOUBTS


def _growth(warm: Sequence[Event], limits: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    third = len(warm) // 3
    for name, (times, more) in limits.items():
        before = median(float(event[name]) for event in warm[:third])
        after = median(float(event[name]) for event in warm[-third:])
        if after > before * times and after - before > more:
            yield f"{name} {before:.0f} at first, {after:.0f} at last"
