"""Checkpoints on HDFS, through the client in Spark's JVM and through the one without a JVM."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import dumps

import pytest

from conformance.checkpoint_suite import CheckpointSuite, Faulty, NetworkSuite, RefusalSuite, Refusing
from jvm import hadoop_files
from shared_servers import USES_HDFS, hdfs_server
from sparkonce.spark.checkpoints import hadoop
from sparkonce.storage import hdfs
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.proxy import FaultProxy, RequestFault

pytestmark = [USES_HDFS, pytest.mark.slow]  # verifying/test_stores.py runs the JVM's client in a query

TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def folder() -> str:
    return f"/checkpoints/{secrets.token_hex(6)}"


class TestHdfs(CheckpointSuite):
    @pytest.fixture
    def files(self, jvm, folder) -> CheckpointFiles:
        self.jvm = jvm
        return hadoop_files(jvm, hdfs_server().url + folder)

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return hadoop_files(self.jvm, files.location)

    def opening(self, files: CheckpointFiles) -> str:
        return (
            f"sys.path.insert(0, {TESTS!r})\nfrom jvm import bare_jvm, hadoop_files\n"
            f"opened = bare_jvm()\nfiles = hadoop_files(opened.__enter__(), {files.location!r})"
        )


class TestHdfsNative(CheckpointSuite):
    @pytest.fixture
    def files(self, folder) -> CheckpointFiles:
        return HdfsFiles(hdfs_server().url + folder)

    def another(self, files: CheckpointFiles) -> CheckpointFiles:
        return HdfsFiles(files.location)

    def opening(self, files: CheckpointFiles) -> str:
        return f"import base64, pickle\nfiles = pickle.loads(base64.b64decode({b64encode(dumps(files))!r}))"


class TestHdfsBehindFaults(NetworkSuite):
    @pytest.fixture
    def faulty(self, jvm, folder, monkeypatch) -> Iterator[Faulty]:
        clean = hadoop_files(jvm, hdfs_server().url + folder)
        with FaultProxy(("127.0.0.1", hdfs_server().port), {"rename": b"rename2"}) as proxy:

            def lose() -> None:
                proxy.trap("rename", RequestFault.REPLY_LOST)

            def hurry() -> None:
                monkeypatch.setattr(hadoop, "DEADLINE_S", 4.0)
                monkeypatch.setattr(hdfs, "TRIES_S", 2.0)

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


class TestHdfsNativeBehindFaults(NetworkSuite):
    @pytest.fixture
    def faulty(self, folder, monkeypatch) -> Iterator[Faulty]:
        monkeypatch.setattr(hdfs, "DEADLINE_S", 3.0)
        server = hdfs_server()
        with FaultProxy(("127.0.0.1", server.port), {"rename": b"rename", "delete": b"delete"}) as proxy:
            files = HdfsFiles(f"hdfs://{proxy.address}{folder}")

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

            yield Faulty(files, HdfsFiles(server.url + folder), lose_reply, lose_replies, proxy.swallow, heal)


class TestHdfsThatRefuses(RefusalSuite):
    """The errors that a name node returns. An administrator's commands need a JVM."""

    @pytest.fixture(params=["by the JVM", "native"])
    def is_native(self, request) -> bool:
        return bool(request.param == "native")

    @pytest.fixture(params=["safe mode", "quota of names", "quota of space", "mode of the folder"])
    def refusing(self, request, is_native, jvm, folder, monkeypatch) -> Refusing:
        url = hdfs_server().url + folder
        clean = hadoop_files(jvm, url)
        there, admin = jvm.org.apache.hadoop.fs.Path(f"{url}/a"), clean._fs
        modes, safe = jvm.org.apache.hadoop.fs.permission.FsPermission, jvm.org.apache.hadoop.fs.SafeModeAction
        users, unlimited = jvm.org.apache.hadoop.security.UserGroupInformation, 2**63 - 1
        by_mode = request.param == "mode of the folder"
        ours = users.getLoginUser()
        if by_mode:  # the files are accessed by somebody else
            clean.put("a/-1", b"makes the folder")
            admin.setPermission(there, modes("777"))
            monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
            users.setLoginUser(users.createRemoteUser("somebody-else"))
        files = HdfsFiles(url) if is_native else hadoop_files(jvm, url)
        users.setLoginUser(ours)

        @contextmanager
        def during() -> Iterator[None]:
            if request.param == "safe mode":
                admin.setSafeMode(safe.ENTER)
            elif request.param == "quota of names":
                admin.setQuota(there, 2, unlimited)
            elif request.param == "quota of space":
                admin.setQuota(there, unlimited, 1)
            else:
                admin.setPermission(there, modes("755"))
            try:
                yield
            finally:
                if request.param == "safe mode":
                    admin.setSafeMode(safe.LEAVE)
                elif request.param.startswith("quota"):
                    admin.setQuota(there, -1, -1)

        return Refusing(files, clean, during(), passes=not by_mode)
