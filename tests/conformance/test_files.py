"""The files sink: on a local disk, on an S3 server, and in HDFS."""

from __future__ import annotations

import pyarrow as pa
import pytest

from conformance.system_suite import SystemSuite
from shared_servers import USES_HDFS, hdfs_server, s3_server
from sparkonce.sink import Facts, TwoPhaseCommitSink
from sparkonce.testing.hooks import SinkHooks
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.files import FilesSystem
from sparkonce_lab.systems.hdfs import HdfsSystem
from sparkonce_lab.systems.s3 import S3System

MANY_FILES = {"partition_by": ("part",), "max_file_bytes": 1}
"""Partitions, and a new file for every few rows: a handle of many files."""


class FilesSuite(SystemSuite):
    finds_missing = True
    restart_server = SinkHooks.restart_server  # what is durable is tested in tests/integration/test_files_faults.py

    def new_system(self) -> System:
        return FilesSystem(self.folder)

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        numbers = range(start, start + count)
        return pa.record_batch({"number": list(numbers), "part": [f"p{number % 3}" for number in numbers]})

    def make_second_sink(self) -> TwoPhaseCommitSink:
        return self.make(name="files.beside")

    def other_facts(self, facts: Facts) -> Facts:
        return {**facts, "prefix": f"{facts['prefix']}.eu"}


class TestParquet(FilesSuite):
    pass


class TestManyFiles(FilesSuite):
    options = MANY_FILES
    lists_open = False


class TestJson(FilesSuite):
    options = {"format": "json"}  # noqa: RUF012


class TestS3(FilesSuite):
    finds_missing = False
    restart_server = SystemSuite.restart_server

    def new_system(self) -> System:
        return S3System(server=self.server or s3_server())


@pytest.mark.slow
class TestManyFilesOnS3(TestS3):
    options = MANY_FILES
    lists_open = False


@pytest.mark.slow
@USES_HDFS
class TestHdfs(FilesSuite):
    restart_server = SystemSuite.restart_server

    def new_system(self) -> System:
        return HdfsSystem(server=hdfs_server())


@pytest.mark.slow
class TestManyFilesOnHdfs(TestHdfs):
    options = MANY_FILES
    lists_open = False
