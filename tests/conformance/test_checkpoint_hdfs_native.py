from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Iterator
from pickle import dumps
from typing import Any

import pytest

from conformance.checkpoint_suite import CheckpointSuite
from conformance.hdfs_refusals import HdfsRefusals
from conformance.network_suite import Faulty, NetworkSuite
from jvm import bare_jvm
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.storage import hdfs
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.proxy import FaultProxy, RequestFault
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = USES_HDFS


def new_url(address: str = "", folder: str = "") -> str:
    cluster = f"hdfs://{address}" if address else hdfs_server().url
    return f"{cluster}{folder or new_folder()}"


def new_folder() -> str:
    return f"/checkpoints/{secrets.token_hex(6)}"


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with bare_jvm() as started:
        yield started


@pytest.mark.slow
class TestHdfsNative(CheckpointSuite):
    @pytest.fixture
    def files(self) -> CheckpointFiles:
        return HdfsFiles(new_url())

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return HdfsFiles(files.location)

    def opening(self, files: CheckpointFiles) -> str:
        return f"import base64, pickle\nfiles = pickle.loads(base64.b64decode({b64encode(dumps(files))!r}))"


@pytest.mark.slow
class TestHdfsNativeBehindFaults(NetworkSuite):
    @pytest.fixture
    def faulty(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
        monkeypatch.setattr(hdfs, "DEADLINE_S", 3.0)
        folder, server = new_folder(), hdfs_server()
        with FaultProxy(("127.0.0.1", server.port), {"rename": b"rename", "delete": b"delete"}) as proxy:
            files = HdfsFiles(new_url(proxy.address, folder))

            def lose_reply() -> None:
                proxy.trap("rename", RequestFault.REPLY_LOST)

            def lose_replies() -> None:
                lose_reply()
                for number in range(1, 20):
                    proxy.trap("rename", RequestFault.STALLED, number + 1)
                    proxy.trap("delete", RequestFault.STALLED, number)

            def heal() -> None:
                proxy.clear()
                proxy.heal()
                proxy.cut()
                monkeypatch.undo()

            yield Faulty(files, HdfsFiles(new_url(folder=folder)), lose_reply, lose_replies, proxy.swallow, heal)


@pytest.mark.slow
class TestHdfsNativeThatRefuses(HdfsRefusals):
    @pytest.fixture
    def hdfs(self, monkeypatch: pytest.MonkeyPatch) -> Hdfs:
        self.environment = monkeypatch
        return hdfs_server()

    def opened(self, url: str) -> CheckpointFiles:
        return HdfsFiles(url)

    def as_somebody_else(self, url: str) -> CheckpointFiles:
        self.environment.setenv("HADOOP_USER_NAME", "somebody-else")
        return HdfsFiles(url)
