"""The refusals of a name node, for each client of HDFS. An administrator's commands need a JVM."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conformance.network_suite import RefusalSuite, Refusing
from jvm import hadoop_files
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.rig.servers.hdfs import Hdfs

MOST = 2**63 - 1


class HdfsRefusals(RefusalSuite):
    jvm: Any

    @abc.abstractmethod
    def opened(self, url: str) -> CheckpointFiles:
        """A folder, accessed by the superuser."""

    @abc.abstractmethod
    def as_somebody_else(self, url: str) -> CheckpointFiles:
        """The same folder, accessed by another user."""

    @pytest.fixture(params=["safe mode", "quota of names", "quota of space", "mode of the folder"])
    def refusing(self, request: pytest.FixtureRequest, hdfs: Hdfs, jvm: Any) -> Refusing:
        self.jvm = jvm
        url = f"{hdfs.url}/checkpoints/{secrets.token_hex(6)}"
        clean = hadoop_files(jvm, url)
        there = jvm.org.apache.hadoop.fs.Path(f"{url}/a")
        admin = clean._fs
        modes = jvm.org.apache.hadoop.fs.permission.FsPermission
        by_mode = request.param == "mode of the folder"
        files = self.as_somebody_else(url) if by_mode else self.opened(url)
        if by_mode:
            clean.put("a/-1", b"makes the folder")
            admin.setPermission(there, modes("777"))

        @contextmanager
        def during() -> Iterator[None]:
            safe = jvm.org.apache.hadoop.fs.SafeModeAction
            if request.param == "safe mode":
                admin.setSafeMode(safe.ENTER)
            elif request.param == "quota of names":
                admin.setQuota(there, 2, MOST)
            elif request.param == "quota of space":
                admin.setQuota(there, MOST, 1)
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
