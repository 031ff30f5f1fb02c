"""Downloads Java libraries from Maven repositories with the Ivy that PySpark ships, and archives their classes.

Each set of coordinates has a folder in sparkonce's cache. The folder is created under a lock, and gets its name only
when it is complete. An existing folder is therefore complete, and a second call costs nothing. With an archive of
classes that were loaded and verified once (JEP 350), a broker starts in little more than half the time. If an archive
cannot be created or read, the program starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from sparkonce.errors import ConfigurationError, PreflightError, SparkonceError
from sparkonce.packages import AVRO_MODULE, KAFKA_MODULE, SCALA, spark_packages
from sparkonce_lab.rig.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


KAFKA_VERSION = "4.3.0"
FETCH_TIMEOUT_S = 600.0


def cache_folder() -> Path:
    """Returns the folder for sparkonce's downloads: SPARKONCE_CACHE, or ``sparkonce`` in the user's cache."""
    own = os.environ.get("SPARKONCE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "sparkonce"


def spark_jars_folder() -> Path:
    """Finds the jars folder of the installed PySpark, without importing it.

    Raises:
        ConfigurationError: If PySpark is not installed, or only its client, which ships no jars.
    """
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise ConfigurationError(
            f"PySpark has no jars folder here (looked for {folder or 'the package pyspark'}).",
            next_step="pip install pyspark (not pyspark-client)",
        )
    return folder


def artifact_name(jar: str) -> str:
    """Returns the artifact's name from the file name of a jar: ``commons-pool2`` for ``commons-pool2-2.12.0.jar``."""
    return re.sub(r"-\d.*$", "", jar.removesuffix(".jar"))


def resolve(
    coordinates: Sequence[str], *, exclude: Sequence[str] = (), timeout_s: float = FETCH_TIMEOUT_S
) -> list[Path]:
    """Downloads artifacts with all their runtime dependencies, and returns the jars, sorted by name.

    A set that was downloaded before comes from the cache. To use repositories other than Ivy's defaults, name an Ivy
    settings file in the environment variable SPARKONCE_IVY_SETTINGS.

    Args:
        coordinates: The artifacts, each as ``group:artifact:version``.
        exclude: Names of artifacts to leave out, for example because Spark already has them.
        timeout_s: The timeout of the whole call, including waiting for another process, in seconds.

    Raises:
        ConfigurationError: If a coordinate is malformed, or if Java or PySpark is missing.
        PreflightError: If an artifact is unavailable. The message contains Ivy's own lines.
    """
    parts = [coordinate.split(":") for coordinate in coordinates]
    for coordinate, part in zip(coordinates, parts, strict=True):
        if len(part) != 3 or not all(re.fullmatch(r"[\w.+-]+", word) for word in part):
            raise ConfigurationError(
                f"The coordinate {coordinate!r} is not group:artifact:version.", next_step="Correct the coordinate."
            )
    excluded = sorted(set(exclude))
    digest = hashlib.sha256("\n".join([*sorted(coordinates), "", *excluded]).encode()).hexdigest()[:12]
    complete = cache_folder() / "jars" / f"{parts[0][1]}-{parts[0][2]}-{digest}"
    if not complete.is_dir():
        give_up_at = time.monotonic() + timeout_s
        java = find_java()
        with file_lock(cache_folder() / "ivy.lock", give_up_at):
            if not complete.is_dir():  # Another process may have created the folder in the meantime.
                _fetch(java, _ivy_file(parts, excluded), coordinates, complete, give_up_at)
    return sorted(complete.glob("*.jar"))


def kafka_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Downloads the jars of a Kafka broker, with an SLF4J binding that logs to standard error. See `resolve`."""
    jars = resolve([f"org.apache.kafka:kafka_{SCALA}:{version}"])
    api = next(jar for jar in jars if artifact_name(jar.name) == "slf4j-api")
    # An SLF4J binding only works with the same version of the API, and Kafka does not include one.
    slf4j = api.stem.removeprefix("slf4j-api-")
    return jars + resolve([f"org.slf4j:slf4j-simple:{slf4j}"], exclude=["slf4j-api"])


def spark_kafka_jars() -> list[Path]:
    """Downloads the jars for Spark's Kafka source: the connector, and the dependencies that Spark lacks."""
    return _beside_sparks_own(f"org.apache.spark:{KAFKA_MODULE}_{SCALA}:{importlib.metadata.version('pyspark')}")


def spark_avro_jars() -> list[Path]:
    """Downloads the jars for Spark's ``from_avro`` and ``to_avro``."""
    return _beside_sparks_own(f"org.apache.spark:{AVRO_MODULE}_{SCALA}:{importlib.metadata.version('pyspark')}")


def spark_delta_jars() -> list[Path]:
    """Downloads the jars of Delta Lake, in the version that `DeltaSink` is tested with."""
    return _beside_sparks_own(spark_packages(avro=False, delta=True).rpartition(",")[2])


def spark_s3a_class_path() -> str:
    """Downloads S3A for Spark's own Hadoop, which is half a gigabyte the first time, and returns its class path.

    Spark's own jars come first in the class path, because Amazon's client contains a different SLF4J.
    """
    hadoop = next(jar.stem.rpartition("-")[2] for jar in spark_jars_folder().glob("hadoop-client-api-*.jar"))
    jars = _beside_sparks_own(f"org.apache.hadoop:hadoop-aws:{hadoop}")
    return ":".join([f"{spark_jars_folder()}/*", *map(str, jars)])


def _beside_sparks_own(coordinate: str) -> list[Path]:
    present = {artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")}
    return resolve([coordinate], exclude=sorted(present))


@contextmanager
def file_lock(path: Path, give_up_at: float) -> Iterator[None]:
    """Holds a lock between processes, which is also released if this process dies.

    Raises:
        PreflightError: If another process still holds the lock at the deadline.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise PreflightError(
                        f"Another process has held {path} for too long.", next_step="Wait for it, or end it."
                    ) from None
                time.sleep(0.1)
        yield


def _ivy_file(parts: Sequence[Sequence[str]], excluded: Sequence[str]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} conf='default->default'/>"
        for group, name, version in parts
    )
    exclusions = "".join(f"<exclude module={quoteattr(name)}/>" for name in excluded)
    return (
        "<ivy-module version='2.0'><info organisation='sparkonce' module='resolve'/>"
        f"<configurations><conf name='default'/></configurations>"
        f"<dependencies>{dependencies}{exclusions}</dependencies></ivy-module>"
    )


def _fetch(java: str, ivy_file: str, coordinates: Sequence[str], complete: Path, give_up_at: float) -> None:
    ivy_home = cache_folder() / "ivy"
    complete.parent.mkdir(parents=True, exist_ok=True)
    ivy_jar = next(iter(sorted(spark_jars_folder().glob("ivy-*.jar"))), None)
    if ivy_jar is None:
        raise ConfigurationError(f"There is no ivy-*.jar in {spark_jars_folder()}.", next_step="Reinstall pyspark.")
    with tempfile.TemporaryDirectory(dir=complete.parent, prefix=".fetching-") as temporary:
        description, jars = Path(temporary, "ivy.xml"), Path(temporary, "jars")
        description.write_text(ivy_file)
        settings = os.environ.get("SPARKONCE_IVY_SETTINGS")
        command = [
            *(java, f"-Divy.default.ivy.user.dir={ivy_home}", "-cp", str(ivy_jar), "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", str(ivy_home / "cache"), "-ivy", str(description), "-confs", "default"),
            *("-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        wanted = ", ".join(coordinates)
        next_step = "check the version and the network, or name a mirror in SPARKONCE_IVY_SETTINGS"
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=max(give_up_at - time.monotonic(), 1)
            )
        except subprocess.TimeoutExpired as expired:
            raise PreflightError(
                f"Fetching {wanted} took longer than {expired.timeout:.0f} s.", next_step=next_step
            ) from None
        if run.returncode != 0 or not jars.is_dir():
            raise PreflightError(f"Cannot fetch {wanted}: {_problems(run.stdout + run.stderr)}.", next_step=next_step)
        jars.rename(complete)


def _problems(ivy_output: str) -> str:
    """Returns the lines in which Ivy reports what it did not find or could not download."""
    lines = [line.strip(" :\t") for line in ivy_output.splitlines()]
    told = [line for line in lines if re.search(r"not found|UNRESOLVED|FAILED|Exception|error", line, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(told or lines[-3:]))


logger = logging.getLogger("sparkonce")
_ARCHIVED_WITHIN_S = 240.0
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Flags that let a JVM that cannot use the archive start without it, and without a message."""


def kafka_archive(version: str) -> Path:
    """Returns the path of the class archive for this version of Kafka and this Java."""
    java = Path(find_java()).resolve()
    found = java.stat()
    made_for = f"{java} {found.st_size} {found.st_mtime_ns} {kafka_jars(version)}"
    return cache_folder() / "classes" / f"kafka-{version}-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.jsa"


def archive_flags(kept: Path, run: Callable[[str], None]) -> tuple[str, ...]:
    """Returns the JVM flags that use the archive. If there is none, first creates one.

    ``run`` starts the program with an additional JVM flag, and ends it normally; it raises an error if it cannot.
    """
    try:
        if not kept.exists():
            with file_lock(kept.with_suffix(".lock"), time.monotonic() + _ARCHIVED_WITHIN_S):
                if not kept.exists():
                    _make(kept, run)
        is_made = kept.stat().st_size > 0
    except (OSError, SparkonceError) as error:
        logger.warning("%s cannot be made or read: the JVM starts without it, which takes longer: %s", kept, error)
        return ()
    return (f"-XX:SharedArchiveFile={kept}", *_QUIET) if is_made else ()


def _make(kept: Path, run: Callable[[str], None]) -> None:
    """Creates the archive. If the JVM exits normally without creating one, an empty file prevents further attempts."""
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as folder:
        new = Path(folder, kept.name)
        run(f"-XX:ArchiveClassesAtExit={new}")
        new.touch()
        new.rename(kept)
