from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.checkpoint_suite import CheckpointSuite
from conformance.hdfs_refusals import HdfsRefusals
from conformance.network_suite import Faulty, NetworkSuite
from jvm import bare_jvm, hadoop_files
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.spark.checkpoints import hadoop
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.rig.proxy import FaultProxy, RequestFault
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = [USES_HDFS, pytest.mark.slow]  # verifying/test_stores.py runs this client in a query

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def hdfs() -> Hdfs:
    return hdfs_server()


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with bare_jvm() as started:
        yield started


def new_folder() -> str:
    return f"/checkpoints/{secrets.token_hex(6)}"


class TestHdfs(CheckpointSuite):
    @pytest.fixture
    def files(self, hdfs: Hdfs, jvm: Any) -> CheckpointFiles:
        self.jvm = jvm
        return hadoop_files(jvm, f"{hdfs.url}{new_folder()}")

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return hadoop_files(self.jvm, files.location)

    def opening(self, files: CheckpointFiles) -> str:
        return (
            f"sys.path.insert(0, {TESTS!r})\nfrom jvm import bare_jvm, hadoop_files\n"
            f"opened = bare_jvm()\nfiles = hadoop_files(opened.__enter__(), {files.location!r})"
        )


class TestHdfsBehindFaults(NetworkSuite):
    @pytest.fixture
    def faulty(self, hdfs: Hdfs, jvm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
        folder = new_folder()
        clean = hadoop_files(jvm, f"{hdfs.url}{folder}")
        with FaultProxy(("127.0.0.1", hdfs.port), {"rename": b"rename2"}) as proxy:

            def lose() -> None:
                proxy.trap("rename", RequestFault.REPLY_LOST)

            def hurry() -> None:
                monkeypatch.setattr(hadoop, "DEADLINE_S", 4.0)
                monkeypatch.setattr("sparkonce.storage.hdfs.TRIES_S", 2.0)

            def lose_all() -> None:
                hurry()
                lose()
                for number in range(1, 20):
                    proxy.trap("rename", RequestFault.STALLED, number + 1)

            def cut() -> None:
                hurry()
                proxy.swallow()

            def heal() -> None:
                proxy.clear()
                proxy.heal()
                proxy.cut()
                monkeypatch.undo()

            yield Faulty(hadoop_files(jvm, f"hdfs://{proxy.address}{folder}"), clean, lose, lose_all, cut, heal)


class TestHdfsThatRefuses(HdfsRefusals):
    def opened(self, url: str) -> CheckpointFiles:
        return hadoop_files(self.jvm, url)

    def as_somebody_else(self, url: str) -> CheckpointFiles:
        users = self.jvm.org.apache.hadoop.security.UserGroupInformation
        ours = users.getLoginUser()
        users.setLoginUser(users.createRemoteUser("somebody-else"))
        try:
            return hadoop_files(self.jvm, url)
        finally:
            users.setLoginUser(ours)
