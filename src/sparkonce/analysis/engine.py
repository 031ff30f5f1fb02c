"""Judges Spark's own guarantee, given the checkpoint, the trigger and the plan."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkonce.analysis.facts import Pipeline, PlanFacts, SinkFacts
from sparkonce.analysis.findings import Part, Role
from sparkonce.analysis.sinks import replays_show
from sparkonce.findings import Finding, doubles, holds, loses, must, note
from sparkonce.guarantees import Guarantee
from sparkonce.source import SourceFacts, registered

_VOLATILE = ("/tmp/", "/dev/shm/", "/run/", "/var/tmp/")  # noqa: S108 - named to warn about them

WATERMARKS = "spark.sql.streaming.multipleWatermarkPolicy"
SKIP_NULLS = "spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled"


def judge_engine(pipeline: Pipeline) -> Part:
    """Returns Spark's level for the query's checkpoint, trigger and plan."""
    return Part.of(Role.ENGINE, "spark", _findings(pipeline))


def _findings(pipeline: Pipeline) -> Iterator[Finding]:
    engine = pipeline.engine
    yield from _checkpoint(pipeline)
    if engine.continuous:
        yield doubles(
            "continuous trigger: offsets are stored after the rows are written, so a restart writes some again",
            "trigger(processingTime=…) or trigger(availableNow=True)",
        )
    if engine.real_time:
        yield doubles(
            "real-time trigger: offsets are stored after the rows are written, so a restart writes some again; Spark "
            "refuses foreachBatch, and with it ExactlyOnce, when such a query starts",
            "trigger(processingTime=…) or trigger(availableNow=True)",
        )
    if engine.async_progress:
        yield doubles(
            "asyncProgressTrackingEnabled=true: offsets are stored later than the rows are written, and a restart "
            "cuts the batches anew and writes some rows again",
            "asyncProgressTrackingEnabled=false",
        )
    if engine.plan is None:
        yield must("the plan gives the same rows when it runs again: it cannot be seen from here")
    else:
        yield from _settings(engine.plan, engine.conf)
        yield from _plan(engine.plan, pipeline)


def _settings(plan: PlanFacts, conf: Mapping[str, str]) -> Iterator[Finding]:
    if plan.watermarks > 1 and conf.get(WATERMARKS, "min").strip().lower() == "max":
        yield loses(
            f"{WATERMARKS}=max: the watermark follows the fastest source, and rows of the slower ones are dropped as "
            "late",
            f"{WATERMARKS}=min (the default)",
        )
    if "Join" in plan.stateful and conf.get(SKIP_NULLS, "").strip().lower() == "true":
        yield loses(
            f"{SKIP_NULLS}=true: rows that the state of a stream-stream join has lost are silently skipped",
            f"{SKIP_NULLS}=false (the default)",
        )


def _checkpoint(pipeline: Pipeline) -> Iterator[Finding]:
    engine = pipeline.engine
    if engine.temporary:
        change = "option checkpointLocation, on a disk that outlives the driver"
        anew = "no checkpointLocation: a restart has neither position nor state"
        if any(map(_starts_at_the_end, pipeline.sources)):
            yield loses(
                f"{anew}, and starts at the end of the source: rows that arrived in the meantime are lost", change
            )
        else:
            yield doubles(f"{anew}, and reads everything again", change)
        return
    for other in dict.fromkeys(sink.checkpoint for sink in pipeline.sinks if sink.checkpoint is not None):
        if engine.checkpoint is not None and _path(engine.checkpoint) != _path(other):
            yield loses(
                f"checkpointLocation is {engine.checkpoint}, and ExactlyOnce was given {other}: the query stops at its "
                "first batch, or finds the log of another query",
                "ExactlyOnce with the query's own checkpointLocation; ExactlyOnce.start sets it itself",
            )
    yield holds("Spark stores what a batch reads before it runs it, and runs it again with the same input")
    where = engine.checkpoint or ""
    if where and _path(where).startswith(_VOLATILE):
        yield must(f"the checkpoint outlives the machine: {where} is a location that is often emptied at a reboot")
    elif engine.temporary is None and not where:
        yield must("the query has its own checkpointLocation")
    else:
        yield must("the checkpoint outlives the driver")


def _path(location: str) -> str:
    local = re.sub("^file:/*", "/", location)
    return local if re.match(r"\w+:", local) else os.path.abspath(local)  # noqa: PTH100 - Path would follow no ".."


def _starts_at_the_end(source: SourceFacts) -> bool:
    """Returns True if a start without a checkpoint skips rows that the source already contains."""
    known = source.options or {}
    if source.format == "kafka":
        if any(name in known for name in ("startingtimestamp", "startingoffsetsbytimestamp")):
            return False
        starting = known.get("startingoffsets", "latest").strip().lower()
        return starting == "latest" or re.search(r":\s*-1\b", starting) is not None
    if source.format == "delta":
        return known.get("startingversion", "").strip().lower() == "latest"
    if (other := registered(source.format)) is not None:
        return other.starts_at_end(source)
    return source.format in {"socket", "textsocket"}


def _plan(plan: PlanFacts, pipeline: Pipeline) -> Iterator[Finding]:
    unstable = list(_unstable(plan))
    if plan.order:
        unstable.append(
            (plan.order, "depends on the order in which rows arrive, which may differ in a replay after a shuffle")
        )
    yield from _replayed([f"{_listed(names)} {why}" for names, why in unstable], pipeline.sinks)
    yield from _state_made_again(plan)
    drawn = [*plan.random, *(function.name for function in plan.functions if function.deterministic is False)]
    if drawn and plan.shuffles:
        yield must(
            f"rows are not shuffled by {_listed(drawn)}: when an executor is lost, Spark reruns only part of such a "
            "shuffle, and rows are lost or duplicated (SPARK-38160)"
        )
    for function in plan.functions:
        if function.deterministic is None:
            yield must(f"the Python function {function.name} gives the same rows for the same rows")
    if plan.batch_clock:
        yield note(f"{_listed(plan.batch_clock)} is in the right place: fixed for a batch, and the same in its replay")
    if refused := {"monotonically_increasing_id", "sample"} & {*plan.layout, *plan.random}:
        yield note(f"Spark refuses {_listed(sorted(refused))} in a streaming plan when the query starts")
    if plan.merges and any(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in pipeline.sinks):
        yield note(
            "coalesce merges partitions by their current location: a sink that has lost some of a batch's "
            "transactions and not others may be beyond repair; repartition(n, columns) depends on the rows alone"
        )
    if plan.watermarks and plan.stateful:
        yield note("rows that are later than the watermark are dropped, which is the query's own rule")


def _unstable(plan: PlanFacts) -> Iterator[tuple[Iterable[str], str]]:
    """Yields the parts of a plan that may differ when a batch reruns, with the reason."""
    if plan.random:
        yield plan.random, "returns different values when a batch runs again, even with a seed"
    if plan.clock:
        yield plan.clock, "reads the clock again when a batch runs again"
    for function in plan.functions:
        if function.deterministic is False:
            yield [function.name], "is declared not deterministic"
    if plan.layout:
        yield plan.layout, "depends on how rows are spread over tasks, which may differ in a replay"
    if plan.static:
        yield plan.static, "is joined as it is when a batch runs, and may have changed by a replay"
    if plan.unnamed:
        yield ["an expression"], "is not deterministic, according to Spark"


def _state_made_again(plan: PlanFacts) -> Iterator[Finding]:
    """Yields findings about state, which a replay recomputes although the sink keeps the first run's rows."""
    unstable = [name for names, _ in _unstable(plan) for name in names]
    if unstable and plan.stateful:
        yield doubles(
            f"{_listed(unstable)} with state ({_listed(plan.stateful)}): the state recomputed after a kill may "
            "differ from the rows written, so later batches start from other values",
            "take the value from the row itself (a hash of its key instead of a random number, a stored table instead "
            "of one that changes); name Python functions that are stable after all in deterministic=",
        )


def _replayed(unstable: Sequence[str], sinks: Iterable[SinkFacts]) -> Iterator[Finding]:
    """Yields findings about sinks that get different rows from a replayed batch."""
    if not unstable:
        return
    if any(replays_show(sink) for sink in sinks):
        for what in unstable:
            yield doubles(
                f"{what}; a row that is written twice has different values the second time, so the two cannot be "
                "recognized as the same",
                "compute it from the row itself (a hash of its key, or of topic, partition and offset); name Python "
                "functions that are stable after all in deterministic=",
            )
    elif any(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in sinks):
        yield note(
            f"{'; '.join(unstable)}. Each row still appears once. Only a batch that its system lost in part cannot be "
            "repaired: the query stops with TransactionLostError"
        )
    else:
        yield note(f"{'; '.join(unstable)}. The sink shows the rows of one of the two runs, never of both")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
