"""Makes later tasks of a reused Python worker start faster, and defines what a worker needs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from zipimport import zipimporter

from pyspark import cloudpickle

from sparkonce.needs import WorkerNeeds
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark import shipped
from sparkonce.spark.shipped import Needs, acknowledge_at_once, build_of, check_once
from sparkonce.version import __version__

# Pickle the functions of `shipped` by value. By reference, they would need the module on the worker.
cloudpickle.register_pickle_by_value(shipped)

_ALWAYS = ("numpy", "pandas", "pyarrow")
"""The modules that every query's tasks import. Spark's own Arrow functions do not run without pandas."""

_frozen = 0
"""The number of modules when objects were last hidden from the garbage collector."""


def lighten_worker() -> None:
    """Saves two costs in every later task of this worker process. Call it after the task's imports.

    Before each task, PySpark's worker calls ``importlib.invalidate_caches``, which makes every zip importer read its
    archive's directory again (``pyspark.zip``: about 2,000 entries). After each task, it calls ``gc.collect``, which
    walks every object that pandas and pyarrow created at import. Together they cost 50 to 100 ms per task on a slow
    core. So this function drops the importers, which Python recreates when it needs them, and freezes the objects,
    which hides them from the collector but not from reference counts. If a later task imports more, for another sink
    or a user's function, objects are frozen again.
    """
    global _frozen
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
    if len(sys.modules) != _frozen:  # gc.get_freeze_count() would walk all frozen objects, which takes 10 ms
        gc.freeze()
        _frozen = len(sys.modules)


def needs_of(
    sinks: Sequence[TwoPhaseCommitSink], master: str, sources: Mapping[str, WorkerNeeds] | None = None
) -> Needs:
    """Returns what every Python worker needs to write to these sinks and to read the Python sources.

    A worker needs the driver's build of sparkonce, modules, files and addresses. The sources are keyed by a display
    name.

    On a single machine, files and addresses are left out, because the sinks' preflight has already checked them there.
    """
    needs = {sink.name: sink.worker_needs() for sink in sinks} | dict(sources or {})
    elsewhere = {} if is_local(master) else needs
    return {
        "version": __version__,
        "build": build_of("sparkonce"),
        "modules": sorted({*_ALWAYS, *(module for one in needs.values() for module in one.modules)}),
        "builds": {package: build_of(package) for one in needs.values() for package in one.packages},
        "files": sorted({file for one in elsewhere.values() for file in one.files}),
        "addresses": [(name, one.addresses) for name, one in elsewhere.items() if one.addresses],
    }


def is_local(master: str) -> bool:
    """Returns True if Spark runs its tasks on the driver's machine, in the driver's JVM."""
    return master == "local" or master.startswith("local[")


def checked_first(pickled: bytes, needs: Needs) -> Callable[[Any], Iterator[Any]]:
    """Returns a function that checks the worker, once per process, and then unpickles and runs another function.

    An executor may have joined after the check at the start, and may lack modules that the other function needs.
    """

    def write_checked(rows: Any) -> Iterator[Any]:
        acknowledge_at_once()
        check_once(needs)
        yield from cloudpickle.loads(pickled)(rows)

    return write_checked
