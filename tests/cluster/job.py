"""A job on the cluster: its driver is submitted, its checkpoint is in a folder that all machines share."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.standalone import Standalone
from cluster.stores import GROUP_WRITES, OTHER_USER, open_folder
from cluster.submit import PROGRAM, Machine, Submitted, submit_words
from spark.harness import Job, new_name
from spark.pipeline import PHASE
from sparkonce.protocol.ownership import short_query
from sparkonce.protocol.state import Phase
from startup import JVM_FLAGS

DECIDED = (Phase.FINISHING.name, Phase.SWEEPING_OWN.name, Phase.IDLE.name)
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM_FLAGS,
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
}


class ClusterJob(Job):
    """A job on a standalone cluster.

    Args:
        bootstrap: The brokers.
        folder: A new one.
        cluster: Where it runs.
        shared: A folder for its checkpoint that all machines share.
        spark: More of Spark's settings.
        more: Of `Job`.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        cluster: Standalone,
        shared: Path,
        *,
        spark: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        settings = {**SMALL, **GROUP_WRITES, **(spark or {})}
        checkpoint = f"file://{shared}/{new_name('checkpoint')}"
        super().__init__(bootstrap, folder, master=cluster.url, checkpoint=checkpoint, spark=settings, **more)
        self._machines = ExitStack()

    def __exit__(self, *why: object) -> None:
        super().__exit__(*why)
        self._machines.close()

    def start(self, machine: Machine | None = None, **changed: Any) -> Submitted:
        """Submits the query in client mode.

        Args:
            machine: Where; by default on the master's.
            changed: More of `Config`, for this start.
        """
        machine = machine or Machine()
        config = replace(self.config, **changed)
        where = {"spark.driver.host": machine.host, "spark.driver.bindAddress": machine.host}
        temporary = machine.folder or config.temporary
        config = replace(config, temporary=temporary, spark={**config.spark, **where})
        command = [*submit_words(config), PROGRAM, config.to_json()]
        self.runs.append(Submitted(config.temporary, self.folder / f"run-{len(self.runs)}.log", machine, command))
        return self.runs[-1]

    def submit_to_a_worker(self) -> Submitted:
        """Submits the query in cluster mode: a worker runs its driver, and the master starts it again when it is lost.

        Spark refuses a Python program there, and takes the class that runs one. The jar is any: it has to be given.
        """
        command = [*submit_words(self.config, cluster_mode=True), self.config.jars[0]]
        command += [PROGRAM, "", self.config.to_json()]
        return Submitted(self.config.temporary, self.folder / "submit.log", Machine(), command)

    def elsewhere(self, number: int) -> Machine:
        """Another machine: another address, working folder, home and user."""
        folder = self._machines.enter_context(open_folder(OTHER_USER))
        return Machine(host=f"127.0.1.{number}", folder=str(folder), user=OTHER_USER)

    @property
    def query(self) -> str:
        text = Path(self.config.checkpoint.removeprefix("file://"), "metadata").read_text()
        return short_query(str(json.loads(text)["id"]))

    def decided(self) -> int:
        """The last batch that a driver said to be decided before it committed anything of it, or -1."""
        last = self.gate.at(PHASE)
        return max((one.told["batch"] for one in last if one.told["phase"] in DECIDED), default=-1)
