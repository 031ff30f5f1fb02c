"""An example as it is on the cluster: sent its sample, submitted, and counted as whoever tries it out does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.faults import LIMIT_S
from cluster.job import ClusterJob
from cluster.standalone import Standalone
from cluster.stores import Store
from cluster.submit import Machine, Submitted, submit_words
from eventually import eventually
from spark.example_job import EXAMPLES, delete_topics
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import spark_avro_jars
from sparkonce.testing.registry import RegistryServer
from tryout import EnrichmentSample, EtlSample, SumSample
from tryout import run as tryout
from tryout.checkpoint import RETAIN
from tryout.sample import Outcome, Sample
from tryout.trial import Count, Trial

if TYPE_CHECKING:
    from typing_extensions import Self


class Mirrored(Trial):
    """Reads a checkpoint that is elsewhere from a copy of what Spark wrote about its batches."""

    def __init__(self, sample: Sample, store: Store, url: str, copy: Path, **more: Any) -> None:
        super().__init__(sample, checkpoint=copy, **more)
        self._store, self._url = store, url

    def outcome(self, decided: int = -1) -> Outcome:
        for log in ("commits", "offsets"):  # a batch that is done has its offsets
            (self._checkpoint / log).mkdir(parents=True, exist_ok=True)
            for name in self._store.names(f"{self._url}/{log}"):
                text = self._store.read(f"{self._url}/{log}/{name}")
                if name.isdigit() and text is not None:
                    (self._checkpoint / log / name).write_bytes(text)
        return super().outcome(decided)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A file of ``examples/``, a sample for it, and options that it needs."""

    file: str
    sample: Callable[[], Sample]
    options: tuple[str, ...] = ()


SCRIPTS = {
    "etl": Script(file="etl.py", sample=lambda: EtlSample(count=600), options=("--lateness", "5 seconds")),
    "windowed sum": Script(file="windowed_sum.py", sample=lambda: SumSample(count=1200)),
    "enrichment": Script(file="enrichment.py", sample=lambda: EnrichmentSample(count=600)),
}


class ClusterExample:
    """An example with its sources, its target and its checkpoint. Use as a context manager.

    Args:
        script: The example.
        kafka: What it reads and writes.
        cluster: Where it runs.
        store: Where its checkpoint is.
        folder: A new one.

    Attributes:
        trial: What was sent to it, and what has come out.
        program: Its file and its arguments.
    """

    def __init__(self, script: Script, kafka: Cluster, cluster: Standalone, store: Store, folder: Path) -> None:
        job = ClusterJob(kafka.bootstrap, folder, cluster, store, rows=0, spark={RETAIN: "100000"})
        self.config = replace(job.config, jars=(*job.config.jars, *map(str, spark_avro_jars())))
        self._job, self._script, self._kafka, self._store, self._folder = job, script, kafka, store, folder
        self._stack = ExitStack()
        self._starts = 0

    def __enter__(self) -> Self:
        self._stack.enter_context(self._job)
        sample, bootstrap, checkpoint = self._script.sample(), self._kafka.bootstrap, self.config.checkpoint
        registry = self._stack.enter_context(RegistryServer()).url if sample.registry else None
        copy = self._folder / "copy"
        self.trial = Mirrored(sample, self._store, checkpoint, copy, bootstrap=bootstrap, registry=registry)
        self.trial.make_topics()
        self._stack.callback(delete_topics, bootstrap, [*sample.sources, sample.target])
        messages = self.trial.messages()
        self.trial.send(messages)
        self.program = [str(EXAMPLES / self._script.file), "--checkpoint-every", "0", *self._script.options]
        self.program += ["--bootstrap", bootstrap, "--checkpoint", checkpoint]
        self.program += ["--max-offsets", str(len(messages) // 8), *(["--registry", registry] if registry else [])]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(
        self, words: Sequence[str] = (), py_files: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> Submitted:
        """Submits it.

        Args:
            words: More for the command line, before the program.
            py_files: More files for ``--py-files``.
            env: More of its environment.
        """
        files = ",".join([str(EXAMPLES / "late_rows.py"), *py_files])
        command = [*submit_words(self.config), *words, "--py-files", files, *self.program]
        log = self._folder / f"run-{self._starts}.log"
        self._starts += 1
        run = Submitted(self.config.temporary, log, Machine(), command, env)
        self._stack.callback(run.kill)
        return run

    def more_out(self, run: Submitted, than: int = 0) -> int:
        """Waits until more rows than these have come out, and counts them."""

        def count() -> int:
            run.check()
            seen = self.trial.count().seen
            return seen if seen > than else 0

        return eventually(count, f"more than {than} rows have come out", limit_s=LIMIT_S)

    def finish(self, run: Submitted) -> Count:
        """Waits until all of the sample has come out."""
        count = tryout._wait(self.trial, run._process)
        run.check()
        return count
