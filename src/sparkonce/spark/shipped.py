"""Functions that run on a Python worker and check what it has: packages, files, and access to servers.

The functions are pickled by value, because the worker may lack sparkonce or have a different build.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, TypeAlias

Needs: TypeAlias = dict[str, Any]
"""Plain values, which any Python can unpickle: one of our classes would need sparkonce on the worker.

The keys are ``version`` and ``build`` of the driver's sparkonce, ``builds`` of other packages, ``modules``, ``files``,
and ``addresses`` by sink.
"""

REPORT = "host string, kind string, text string"
PACKAGE, FILE, ADDRESS = "package", "file", "address"
NEXT_STEPS = {
    PACKAGE: (
        "Set PYSPARK_PYTHON to a Python with the driver's packages: on one machine the driver's own, on a cluster "
        "one that is installed on every host, or shipped with --archives (venv-pack, conda-pack). See "
        "docs/deploying.md."
    ),
    FILE: "Put the file under this path on every host of executors, readable for the executors' user.",
    ADDRESS: (
        "Check that the server runs. If it does, open the network from the executors' hosts to that address, or "
        "give an address that they can reach."
    ),
}
"""The next step for each kind of problem."""

_CONNECT_S = 3.0
_SHORT = 12


def lacking(needs: Needs) -> list[tuple[str, str]]:
    """Returns what this worker lacks: for each problem its kind, a key of `NEXT_STEPS`, and a text without a period."""
    found = [
        (PACKAGE, _other_build(needs["version"], needs["build"])),
        *((PACKAGE, _not_imported(module)) for module in needs["modules"]),
        *((PACKAGE, _other_package(package, build)) for package, build in needs["builds"].items()),
        *((FILE, _not_read(setting, path)) for setting, path in needs["files"]),
        *((ADDRESS, _not_reached(sink, addresses)) for sink, addresses in needs.get("addresses", ())),
    ]
    return [(kind, text) for kind, text in found if text]


def reporter(needs: Needs) -> Callable[[Any], Iterator[Any]]:
    """Returns a function for ``mapInArrow`` that reports in `REPORT`.

    The function returns a row for each problem, or a single row with an empty kind and text.
    """

    def report(rows: Iterator[Any]) -> Iterator[Any]:
        pyarrow = importlib.import_module("pyarrow")
        for _ in rows:  # Spark requires its input to be consumed
            pass
        kinds, texts = zip(*(lacking(needs) or [("", "")]), strict=True)
        columns = {"host": [socket.gethostname()] * len(kinds), "kind": kinds, "text": texts}
        yield pyarrow.RecordBatch.from_pydict(columns)

    return report


def check_once(needs: Needs) -> None:
    """Checks this worker process, unless it has already passed the same check.

    Raises:
        PrepareError: If something is missing. The message names the host and what it lacks.
        OutageError: If the worker lacks nothing, but cannot reach a sink. The driver waits for the end of an outage.
    """
    key = repr(needs)
    package = sys.modules.get("sparkonce")
    if package is not None and key in vars(package).get("_checked", ()):
        return
    if found := lacking(needs):
        text = f"Executor on host {socket.gethostname()!r}: {'; '.join(text for _, text in found)}."
        # The real class may not exist on this worker. The driver reads the class's name from the worker's traceback.
        name = "OutageError" if all(kind == ADDRESS for kind, _ in found) else "PrepareError"
        kind = type(name, (RuntimeError,), {"__module__": "sparkonce.errors"})
        raise kind(f"{' '.join(text.split())} Next: {NEXT_STEPS[found[0][0]]}")
    vars(sys.modules["sparkonce"]).setdefault("_checked", set()).add(key)


def acknowledge_at_once() -> bool:
    """Makes the JVM send a task's first rows immediately. Returns False if they do not come over TCP.

    The JVM sends the function, then the rows. Its socket holds back small packets until the earlier ones are
    acknowledged (Nagle's algorithm, RFC 896). A receiver that sends nothing delays the acknowledgment by 40 ms, unless
    TCP_QUICKACK is set (tcp(7)).
    """
    frame: Any = sys._getframe()
    while frame is not None:
        # PySpark's worker does not pass its socket to the function, but its ``main`` reads from it.
        if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
            with suppress(AttributeError, OSError):  # a different operating system, or a different kind of socket
                _acknowledge(frame.f_locals["infile"].fileno())
                return True
            return False
        frame = frame.f_back
    return False


def _acknowledge(descriptor: int) -> None:
    blocking = os.get_blocking(descriptor)
    rows = socket.socket(fileno=descriptor)
    try:
        rows.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        rows.detach()  # the worker still reads from it
        # Creating the socket object changes the blocking mode if the user has called ``socket.setdefaulttimeout``.
        os.set_blocking(descriptor, blocking)


def build_of(package: str) -> str:
    """Returns a digest of a package's sources. It takes 10 ms from a folder and 35 ms from a zip, once per process."""
    cached = vars(importlib.import_module(package))
    if "_build" not in cached:
        digest = hashlib.sha256()
        _add_sources(digest, files(package), "")
        cached["_build"] = digest.hexdigest()[:_SHORT]
    return str(cached["_build"])


def _add_sources(digest: Any, folder: Any, name: str) -> None:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        below = f"{name}/{each.name}"
        if each.name.endswith(".py"):
            digest.update(f"{below}\0".encode())
            digest.update(each.read_bytes())
        elif each.is_dir():
            _add_sources(digest, each, below)


def _other_build(version: str, build: str) -> str:
    if text := _not_imported("sparkonce"):
        return f"{text}, and the driver has sparkonce {version}"
    there = (importlib.import_module("sparkonce.version").__version__, build_of("sparkonce"))
    return (
        f"sparkonce {there[0]} (build {there[1]}) is in {files('sparkonce')}, and the driver has sparkonce {version} "
        f"(build {build})"
        if there != (version, build)
        else ""
    )


def _other_package(package: str, build: str) -> str:
    if text := _not_imported(package):
        return text
    there = build_of(package)
    return (
        f"{package} (build {there}) is in {files(package)}, and the driver has build {build}" if there != build else ""
    )


def _not_imported(module: str) -> str:
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a client's native code may raise any error
        return f"{sys.executable} cannot import {module} ({type(error).__name__}: {error})"
    return ""


def _not_read(setting: str, path: str) -> str:
    try:
        with open(path, "rb"):  # noqa: PTH123 - saves an import on the worker
            return ""
    except OSError as error:
        return f"{setting}={path!r} cannot be read ({error.strerror})"


def _not_reached(sink: str, addresses: Sequence[tuple[str, int]]) -> str:
    refusals = []
    for host, port in addresses:
        if not (refusal := _refusal(host, port)):
            return ""
        refusals.append(refusal)
    return f"sink {sink!r} is not reached at {', '.join(refusals)}"


def _refusal(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        return f"{host}:{port} ({error.strerror or error})"
    return ""
