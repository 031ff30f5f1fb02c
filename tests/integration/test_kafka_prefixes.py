"""The prefix of transactional ids: as long and unusual as allowed, and a different one after each restart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from integration.kafka_witness import Witness, new_name
from small_job import SmallJob, one_row, values_of
from sparkonce.errors import StaleLogError
from sparkonce.protocol.ownership import PREFIX_LIMIT_BYTES
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.sink import KafkaSink
from sparkonce_lab.kafka import list_transactions

pytestmark = pytest.mark.kafka


class Scene:
    """A query whose prefix may change with each run."""

    def __init__(self, witness: Witness, checkpoint: Path) -> None:
        self._witness = witness
        self._topic = witness.create_topic()
        self.prefix = ""
        settings = {"bootstrap.servers": witness.bootstrap}
        self.job = SmallJob(
            checkpoint,
            lambda: [KafkaSink(settings, topic=self._topic, prefix=self.prefix)],
            one_row,
        )

    def ids(self, prefix: str, *states: str) -> list[str]:
        """Returns the ids of this query under exactly this prefix."""
        start = f"{prefix}.{self.job.short_query}."
        return list(list_transactions(self._witness.bootstrap, states=states, prefix=start))

    def visible(self) -> list[str]:
        return self._witness.committed(self._topic)


@pytest.fixture
def scene(witness: Witness, tmp_path: Path) -> Scene:
    return Scene(witness, tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param("\"'`\\ ;*?%s{}$1/<&:,=|(é𝄞數", id="signs and scripts"),
        pytest.param(".0123456789ab.7-0123abcd.0123456789ab-0", id="like our own ids", marks=pytest.mark.slow),
    ],
)
def test_the_longest_and_oddest_prefix(scene: Scene, tmp_path: Path, odd: str) -> None:
    name = new_name()
    text = name + odd * ((PREFIX_LIMIT_BYTES - len(name)) // len(odd.encode()))
    scene.prefix = text + "x" * (PREFIX_LIMIT_BYTES - len(text.encode()))
    assert len(scene.prefix.encode()) == PREFIX_LIMIT_BYTES
    scene.job.run(0)
    scene.job.kill(1, Phase.DECIDING)
    assert len(scene.ids(scene.prefix, "Ongoing")) == 2
    scene.job.run(1)
    assert scene.ids(scene.prefix, "Ongoing") == []
    scene.job.kill(2, Phase.FINISHING)
    assert len(scene.ids(scene.prefix, "Ongoing")) == 2
    shutil.copytree(scene.job.checkpoint, tmp_path / "older")
    scene.job.run(2, 3)
    assert scene.ids(scene.prefix, "Ongoing") == []
    assert scene.visible() == values_of(*range(4))

    shutil.rmtree(scene.job.checkpoint)
    (tmp_path / "older").rename(scene.job.checkpoint)
    with pytest.raises(StaleLogError, match="has committed rows, its claim is at position"):
        scene.job.run(2)
    assert scene.visible() == values_of(*range(4))


def test_another_prefix_takes_over_what_the_old_one_has_left(scene: Scene) -> None:
    first, second, third = (new_name(name) for name in ("first", "second", "third"))
    scene.prefix = first
    scene.job.run(0)
    scene.job.kill(1, Phase.DECIDING)
    undecided = scene.ids(first, "Ongoing")
    assert len(undecided) == 2

    scene.prefix = second
    scene.job.kill(1, Phase.FINISHING)
    assert scene.ids(first, "Ongoing") == [], "the old prefix's transactions are found by the log, and aborted"
    assert set(undecided) <= set(scene.ids(first, "CompleteAbort"))
    decided = scene.ids(second, "Ongoing")
    assert len(decided) == 2

    scene.prefix = third
    scene.job.run(1, 2)
    assert scene.ids(second, "Ongoing") == []
    assert set(decided) <= set(scene.ids(second, "CompleteCommit"))
    assert scene.visible() == values_of(*range(3))

    scene.prefix = first
    scene.job.run(3)
    assert scene.visible() == values_of(*range(4))
