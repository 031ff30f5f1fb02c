"""The files sink: its settings and its preflight. It creates the writers and the committer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparkonce.arguments import flag, mapping, need_package, whole_number
from sparkonce.errors import ANEW, ConfigurationError, PreflightError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks._shared.settings import columns
from sparkonce.sinks.files.locations import as_text, check_absolute, needs_in, open_store, overlaps, scheme_of

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.files.store import FileStore
    from sparkonce.storage.files import CheckpointFiles

Format = Literal["parquet", "csv", "json", "arrow", "text"]
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_TIMEOUT = "timeout_s"
_CLIENTS = {"s3": ("boto3", "boto3", "s3"), "hdfs": ("hdfs-native", "hdfs_native", "hdfs")}
"""For each scheme, the package that its store needs, the package's module, and our extra that installs it."""


class FilesSink(TwoPhaseCommitSink):
    """Writes rows as files to a folder, a bucket or HDFS, where readers only see committed files.

    Args:
        path: A local path or ``file:`` URL, ``hdfs://host:port/path``, or ``s3://bucket/prefix``.
        format: ``parquet``, ``csv``, ``json`` (one object per line), ``arrow`` (IPC files) or ``text``.
        name: A name that is unique within the query and stays the same after a restart. It is part of the files' names.
        partition_by: Columns that partition the files into folders, as in Spark's ``partitionBy``: a string or a list.
        max_file_bytes: Once a file reaches this size, it is closed and a new one is started.
        compression: The compression; None for the format's default, which is snappy for Parquet and none for the
            others.
        options: Format options: Parquet's ``row_group_bytes`` (in Arrow memory), ``compression_level``,
            ``use_dictionary``; CSV's ``header``, ``delimiter``.
        manifest: True to list each whole batch in ``_manifest``, see `read_manifests`. Without manifests, a log that
            was restored from an old copy is not detected.
        store_options: Store options, for example S3's endpoint or HDFS's configuration.
        guarantee: EXACTLY_ONCE stages files until the decision; other levels publish them as soon as a slot is done.

    Raises:
        ConfigurationError: If a setting is wrong. The message names it and its value.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: Format = "parquet",  # noqa: A002 - the usual name
        name: str = "files",
        partition_by: str | Sequence[str] = (),
        max_file_bytes: int = 512 << 20,
        compression: str | None = None,
        options: Mapping[str, Any] | None = None,
        manifest: bool = True,
        store_options: Mapping[str, Any] | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        from sparkonce.sinks.files.formats import choose

        super().__init__(name, guarantee)
        self.path = as_text(path)
        self.partition_by = columns("partition_by", partition_by)
        self.max_file_bytes = whole_number("max_file_bytes", max_file_bytes, least=1)
        self.manifest = flag("manifest", manifest)
        self.store_options = mapping("store_options", store_options or {}, example="{'region_name': 'eu-west-1'}")
        self.encoding = choose(format, compression, mapping("options", options or {}, example="{'header': True}"))
        self._found: tuple[str, ...] = ()
        self._texts = self.partition_by
        if (scheme := scheme_of(self.path)) in _CLIENTS:
            need_package(f"path={self.path!r}", *_CLIENTS[scheme])
        check_absolute(self.path)
        self._check()

    def _check(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > NAME_PREFIX_LIMIT_BYTES:
            raise ConfigurationError(
                f"name={self.name!r} cannot be a part of a file's name.",
                next_step=f"Use letters, digits, '-', '_' and '.', at most {NAME_PREFIX_LIMIT_BYTES} of them.",
                setting="name",
            )
        for column in self.partition_by:
            if column[:1] in ("", "_", "."):
                raise ConfigurationError(
                    f"partition_by names the column {column!r}, and readers skip folders that begin with '_' or '.'.",
                    next_step="Rename the column.",
                    setting="partition_by",
                )
        if len(set(self.partition_by)) != len(self.partition_by):
            raise ConfigurationError(
                f"partition_by={list(self.partition_by)!r} names a column twice.",
                next_step="Name each once.",
                setting="partition_by",
            )

    def use_checkpoint(self, files: CheckpointFiles) -> None:
        """Rejects a checkpoint that shares a folder with the rows.

        Readers would read the checkpoint's files, and emptying one location would empty both.
        """
        if overlaps(self.path, files.location):
            raise ConfigurationError(
                f"path={self.path!r} of sink {self.name!r} and checkpoint={files.location!r} are one folder, or one "
                "lies inside the other. Readers of the rows would find the checkpoint's files among them, and deleting "
                "one folder would delete the other.",
                next_step="Give the rows a folder next to the checkpoint.",
                setting="path",
            )

    def conditions(self) -> Sequence[str]:
        found: list[str] = []
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return found
        scheme = scheme_of(self.path)
        if scheme == "file":
            found.append(f"{self.path} is on a disk that keeps what fsync was called for")
        if scheme != "s3":
            tells = "is found at a start" if self.manifest else "is not found (manifest=False)"
            found.append(f"{self.path} is not restored to an older state, which {tells}")
        if scheme == "hdfs":
            found.append("not all datanodes that hold a block of a new file lose power at once")
        if scheme == "s3":
            found += self._found or open_store(self.path, self.store_options).conditions()
        found.append("nobody deletes anything under .sparkonce in the sink's path while the query lives")
        whole = (
            "take the files that sparkonce.files.whole_batches names" if self.manifest else "wait for the batch's end"
        )
        found.append(f"readers that must not see some files of a batch and not yet the others {whole}")
        return found

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns after checking that the format supports their types."""
        from sparkonce.sinks.files.formats import check_columns, is_string

        names = check_columns(schema, self.encoding.format, self.partition_by)
        self._texts = tuple(name for name in self.partition_by if is_string(schema.field(name).type))
        return names

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the same for all
        """Creates the folder, tries everything that publishing does, and checks that the folder is the recorded one."""
        store = open_store(self.path, self.store_options)
        try:
            identity = store.check()
            self._check_names(store)
            self._found = tuple(store.conditions())
            timeout_s = store.timeout_s()
        finally:
            store.close()
        facts = {**identity, "prefix": self.name, "manifest": str(self.manifest)}
        if timeout_s is not None:
            facts[_TIMEOUT] = str(timeout_s)
        for name, value in identity.items():
            before = (recorded or {}).get(name, value)
            if before != value and name == "folder" and scheme_of(self.path) != "s3":  # whose folder is its prefix
                raise PreflightError(
                    f"path={self.path!r} is not the folder that this query wrote to until now: that one was deleted, "
                    f"or this one was recreated, or another disk is mounted. Its .sparkonce/id says folder={value!r}, "
                    f"and said folder={before!r}.",
                    next_step=f"Bring the old folder back (it may have been moved: give its new location), or {ANEW}.",
                    setting="path",
                )
            if before != value:
                raise PreflightError(
                    f"path={self.path!r} has {name}={value!r}, but until now this query wrote to one with "
                    f"{name}={before!r}.",
                    next_step=f"Give the old location (a folder may have been moved, but not recreated), or {ANEW}.",
                    setting="path",
                )
        return facts

    def _check_names(self, store: FileStore) -> None:
        # The partition's values are only in its folder's name, not in its rows.
        if self._texts and store.folds_names():
            raise PreflightError(
                f"partition_by={list(self.partition_by)!r} names folders by text ({', '.join(self._texts)}), and the "
                f"file system of path={self.path!r} treats names as equal that differ only in case, or in how an "
                "accent is written: rows of 'A' and 'a' would be read as rows of one of them.",
                next_step="Use a file system that tells them apart, or partition by columns of other types.",
                setting="partition_by",
            )

    def transaction_timeout_s(self, facts: Facts) -> float | None:
        """Returns how long the store keeps staged files, for example because of a bucket's lifecycle rule."""
        return float(facts[_TIMEOUT]) if _TIMEOUT in facts and self.guarantee is Guarantee.EXACTLY_ONCE else None

    def worker_needs(self) -> WorkerNeeds:
        client = _CLIENTS.get(scheme_of(self.path))
        return needs_in(self.path, self.store_options, modules=() if client is None else (client[1],))

    def writer(self, context: WriterContext) -> SinkWriter:
        from sparkonce.sinks.files.writer import FilesWriter

        return FilesWriter(
            open_store(self.path, self.store_options),
            context,
            encoding=self.encoding,
            partition_by=self.partition_by,
            max_file_bytes=self.max_file_bytes,
            hold_back=self.guarantee is Guarantee.EXACTLY_ONCE,
        )

    def committer(self) -> SinkCommitter:
        from sparkonce.sinks.files.committer import FilesCommitter

        return FilesCommitter(open_store(self.path, self.store_options), self.name, manifest=self.manifest)
