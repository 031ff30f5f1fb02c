"""The write-ahead sink: its settings, its preflight, and the creation of its writers and its committer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkonce.arguments import function, member, number, one_of, whole_number
from sparkonce.errors import ConfigurationError, PreflightError, SchemaError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext, spark_type
from sparkonce.sinks.write_ahead.application import CONDITIONS, Applies, Apply, IsApplied, Per
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import about_folder, checked_location, local_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.write_ahead.folder import WriteAheadFolder

FOLDER = "sparkonce-write-ahead"
LEDGER = "ledger"


class WriteAheadSink(TwoPhaseCommitSink):
    """Passes rows to a function once their batch is decided, for any system that a function can write to.

    Until then, the rows wait as compressed Parquet files in a folder that the driver and all executors can access. The
    function runs on the driver, and again for the same rows if it is unknown whether the first call completed. The
    function's author declares what a repeated call does to the target, which determines the guarantee for readers.

    Args:
        apply: The function, which gets a slot's rows and the token that names them, see
            `sparkonce.sinks.write_ahead.application.Apply`. It is called on the driver, from several threads unless
            ``parallel=1``, and need not be picklable.
        applies: What a second call of the function with the same token does to the target.
        is_applied: An optional function that is called before a repeat, and returns True if the target already has the
            token.
        per: ``slot``: one call per slot. ``batch``: one call for the rows of all slots of a batch, which the driver
            always commits together. It cannot be changed once the query has started.
        parallel: How many calls run in parallel. With 1 they run one after another, in slot order.
        wait_s: How long a commit waits for its calls before the driver checks again, in seconds. A call that takes
            longer continues; the query stops if it has not returned within the driver's ``outage_patience_s``.
        folder: The folder in which rows wait; None for ``sparkonce-write-ahead`` in the query's checkpoint. The driver
            and all executors must reach it under this path or URL. The ledger is always in the checkpoint.
        guarantee: The level at which the sink runs. Below EXACTLY_ONCE, the workers call the function as soon as a
            slot's rows have arrived, so cloudpickle must be able to pickle it.
        name: A name that is unique within the query and stays the same after a restart.

    Raises:
        ConfigurationError: If a setting is wrong.
    """

    def __init__(
        self,
        apply: Apply,
        *,
        applies: Applies,
        is_applied: IsApplied | None = None,
        per: Per = "slot",
        parallel: int = 4,
        wait_s: float = 60.0,
        folder: str | Path | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        name: str = "write-ahead",
    ) -> None:
        super().__init__(name, guarantee)
        self.apply = function("apply", apply, example="a function of a slot's rows and their token")
        self.applies = member("applies", applies, Applies)
        if is_applied is not None:
            function("is_applied", is_applied, example="a function of a token, or None")
        self.is_applied = is_applied
        self.per = one_of("per", per, ("slot", "batch"))
        self.parallel = whole_number("parallel", parallel, least=1)
        self.wait_s = number("wait_s", wait_s, above=0)
        self._prefix = _file_name(name)
        self._rows_url = None if folder is None else checked_location(folder, "folder")
        self._rows: CheckpointFiles | None = None
        if self._rows_url is not None and self._rows_url.startswith(("/", "file:")):
            self._rows = LocalFiles(local_folder(self._rows_url))
        self._checkpoint: CheckpointFiles | None = None
        self._shared: CheckpointFiles | None = None
        self._check()

    @property
    def promise(self) -> Guarantee:
        """The guarantee for readers: AT_LEAST_ONCE if a second call of the function duplicates rows."""
        if self.guarantee is Guarantee.EXACTLY_ONCE and self.applies is Applies.NEITHER:
            return Guarantee.AT_LEAST_ONCE
        return self.guarantee

    def conditions(self) -> Sequence[str]:
        """Returns in words what the function's author has declared."""
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return ()
        return (CONDITIONS[self.applies],)

    def use_folders(self, open_folder: Callable[[str], CheckpointFiles]) -> None:
        if self._rows_url is not None and self._rows is None:
            try:
                self.use_rows(open_folder(self._rows_url))
            except ConfigurationError as error:
                raise about_folder(error) from None

    def use_rows(self, files: CheckpointFiles) -> None:
        """Stores waiting rows in ``files`` instead of the checkpoint."""
        self._rows = files.for_workers()

    def use_checkpoint(self, files: CheckpointFiles) -> None:
        """Stores the ledger in the checkpoint, and the waiting rows, too, if no other folder is configured."""
        bound = self._checkpoint
        if bound is not None and _resolved(bound) != _resolved(files):
            raise ConfigurationError(
                f"Sink {self.name!r} is used in a query with checkpoint={files.location!r}, but this object keeps its "
                f"rows and notes in checkpoint={bound.location!r}.",
                next_step="Create a sink object for each query.",
            )
        if self._rows is None:
            # The driver, too, reads rows through the workers' client: a JVM would return each file as a single byte
            # array.
            self._shared = files.for_workers()
        self._checkpoint = files

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns all columns, after checking that Parquet supports each."""
        from sparkonce.sinks.write_ahead.rows import is_taken

        for column in schema:
            if not is_taken(column):
                raise SchemaError(
                    f"Column {column.name!r} is {spark_type(column.type)}, and Parquet has no such type.",
                    next_step="Turn it into a number or a string, or drop it.",
                )
        return super().columns(schema)

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the folder knows its queries
        """Creates the folder at the first start. At later starts, checks that it is the folder recorded in the log."""
        folder = self.folder()
        try:
            if recorded is None:
                folder.make()
            facts = {"identity": folder.identity(), "ledger": folder.ledger.identity(), "per": self.per}
        except OSError as error:
            raise PreflightError(
                f"folder={folder.location!r} with {folder.ledger.files.location!r} cannot be used: {error}",
                next_step="Give a folder that the driver and all executors reach and may write to.",
            ) from error
        for fact, found in facts.items():
            known = (recorded or facts).get(fact, found)
            if known != found:
                raise PreflightError(
                    f"{fact}={found!r} of sink {self.name!r} in {folder.location}, and the query has run with "
                    f"{known!r}.",
                    next_step=(
                        "Move the old folder's content to the new location with its file 'identity', but leave the "
                        "subfolder 'ledger' in the checkpoint; leave per= as it was, or give the sink a new name "
                        "once its last batch is finished."
                    ),
                )
        return facts

    def worker_needs(self) -> WorkerNeeds:
        files = self._rows or self._shared
        return WorkerNeeds(modules=() if files is None else files.modules)

    def writer(self, context: WriterContext) -> SinkWriter:
        from sparkonce.sinks.write_ahead.writer import WriteAheadWriter

        apply_now = None if self.guarantee is Guarantee.EXACTLY_ONCE else self.apply
        return WriteAheadWriter(self.folder(), self._prefix, context, apply_now)

    def committer(self) -> SinkCommitter:
        from sparkonce.sinks.write_ahead.application import CallSettings
        from sparkonce.sinks.write_ahead.committer import WriteAheadCommitter

        settings = CallSettings(
            apply=self.apply,
            is_applied=self.is_applied,
            applies=self.applies,
            per=self.per,
            parallel=self.parallel,
            wait_s=self.wait_s,
        )
        return WriteAheadCommitter(self.folder(), self.name, self._prefix, settings)

    def folder(self) -> WriteAheadFolder:
        """Returns the folder in which this sink's rows wait: the configured one, or one in the checkpoint."""
        from sparkonce.sinks.write_ahead.folder import DiskFolder, StoredFolder
        from sparkonce.sinks.write_ahead.ledger import Ledger

        checkpoint = self._checkpoint
        rows = self._rows
        if rows is None and self._rows_url is None and self._shared is not None:
            rows = self._shared.inside(FOLDER)
        if rows is None:
            raise ConfigurationError(
                f"Sink {self.name!r} has folder={self._rows_url!r}, and does not know the query's checkpoint.",
                next_step="Give folder=, or give the sink to ExactlyOnce, which tells it the query's checkpoint.",
            )
        beside = rows if checkpoint is None else checkpoint.inside(FOLDER)
        ledger = Ledger(beside.inside(self._prefix).inside(LEDGER))
        if isinstance(rows, LocalFiles):
            return DiskFolder(rows.folder / self._prefix, ledger)
        return StoredFolder(rows.inside(self._prefix), ledger)

    def __getstate__(self) -> dict[str, Any]:
        """Packs the functions, which workers do not call at EXACTLY_ONCE, and whose modules they may lack."""
        state = {**self.__dict__, "_checkpoint": self._shared}
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return state
        return {**state, "apply": _Packed.of(self.apply), "is_applied": _Packed.of(self.is_applied)}

    def _check(self) -> None:
        if not 0 < len(self._prefix) <= NAME_PREFIX_LIMIT_BYTES:
            raise ConfigurationError(
                f"name={self.name!r} takes {len(self._prefix)} bytes in file names, of at most "
                f"{NAME_PREFIX_LIMIT_BYTES}.",
                next_step="Give a shorter name; characters that are not letters or digits of ASCII take three bytes "
                "or more.",
            )


@dataclass(frozen=True)
class _Packed:
    """A function that is pickled for the workers, and not unpickled before it is called."""

    data: bytes
    name: str

    @classmethod
    def of(cls, function: Callable[..., Any] | None) -> _Packed | None:
        if function is None or isinstance(function, cls):
            return function
        try:
            data = pickle.dumps(function)
        except Exception:  # noqa: BLE001 - whatever pickle raises for what it cannot pickle
            data = b""
        return cls(data, getattr(function, "__qualname__", repr(function)))

    def __call__(self, *arguments: Any) -> Any:
        if not self.data:
            raise ConfigurationError(
                f"The function {self.name} cannot be pickled, and is called in another process than the one it was "
                "given in.",
                next_step="Make it a function of a module, or an object of a class of a module.",
            )
        return pickle.loads(self.data)(*arguments)  # noqa: S301 - packed by `of`


def _file_name(name: str) -> str:
    """Returns the prefix of a sink's file names, which is its name with special characters escaped."""
    # Spark ignores files whose names begin with a period or an underscore.
    quoted = quote(name, safe="").replace(".", "%2E")
    return f"%5F{quoted[1:]}" if quoted.startswith("_") else quoted


def _resolved(files: CheckpointFiles) -> str:
    return str(files.folder.resolve()) if isinstance(files, LocalFiles) else files.location
