"""Writes ``THIRD_PARTY.md``: the packages of others that an installation pulls in, and the jars that it fetches.

``python3 dev.py notices``. Licences are read from what is installed and fetched; `tidy/test_release.py` sees that the
page is that of the lock.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from packaging.utils import canonicalize_name

from releasing.locked import ROOT, coordinates, everything, extras, pins, project
from sparkonce.rig.kafka.jars import (
    artifact_name,
    cache_folder,
    kafka_jars,
    resolve,
    spark_avro_jars,
    spark_delta_jars,
    spark_jars_folder,
    spark_kafka_jars,
    spark_s3a_jars,
)

PAGE = ROOT / "THIRD_PARTY.md"

UNSAID = {
    "hdfs-native": "Apache-2.0",  # in its repository; its package does not say
}
SHORT = (
    (r"License :: OSI Approved :: ", ""),
    (r"Mozilla Public License 2.0 \(MPL 2.0\)", "MPL-2.0"),
    (r"(The )?Apache (Software )?License(,? Version)?( 2.0)?|Apache 2.0( License)?", "Apache-2.0"),
    (r"(The )?MIT [Ll]icense", "MIT"),
    (r"BSD License", "BSD"),
    (r"BSD 2-Clause License", "BSD-2-Clause"),
    (r"BSD New license", "BSD-3-Clause"),
    (r"ISC License \(ISCL\)", "ISC"),
)
"""One name for one licence."""
JAR_UNSAID = {
    "hash4j": "Apache-2.0",
    "delta-spark": "Apache-2.0",
    "delta-storage": "Apache-2.0",
}
_TEXT = re.compile(r"^(licen[cs]e|copying|notice|authors)", re.IGNORECASE)

HEAD = """# Packages of others

The wheel of sparkonce has its own code alone, under the Apache License 2.0 (file `LICENSE`). This page names what
an installation brings beside it, and the jars that are fetched when they are needed. `python3 dev.py notices` writes
it.

Each package comes with its licence. Paths are relative to `site-packages`. Some wheels also contain compiled libraries
of others, such as librdkafka (BSD-2-Clause), Arrow's C++ libraries and libpq. Their licences are not repeated here.
"""
JARS_HEAD = """## Jars

No jar is in the wheel. `spark_packages()` names those of Spark's session, and Spark fetches them. The broker of
`sparkonce broker up`, the demo and the verifier is fetched by sparkonce itself.
"""
TESTS = """## Servers of tests and of the verifier

They are processes of their own, and no code of theirs is linked. A user of sparkonce brings those that the query writes
to. HDFS and Pravega are fetched as jars, with all that they need:

{fetched}

The others are installed on the machine: PostgreSQL, MariaDB (GPL-2.0), Redis, RabbitMQ (MPL-2.0), versitygw
(Apache-2.0). Their own pages have their licences.
"""


def main() -> None:
    """Writes the page."""
    PAGE.write_text("\n".join([HEAD, *_packages(), JARS_HEAD, *_jars(), _of_tests()]))


# --- packages --------------------------------------------------------------------------------------------------------


def _packages() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        found = {name: _distribution(name, Path(folder)) for name in everything()}
        for extra, names in extras().items():
            yield f"## {f'The extra `{extra}`' if extra else 'A plain installation'}\n"
            if extra:
                yield f"`pip install sparkonce[{extra}]` brings these, beside the ones above.\n"
            yield "| package | versions in the lock | licence | text |\n| --- | --- | --- | --- |"
            yield "\n".join(_row(name, found[name]) for name in sorted(names)) + "\n"
    without = [extra for extra in sorted(project()["optional-dependencies"]) if extra not in {*extras(), "all"}]
    yield f"The extras {', '.join(f'`{one}`' for one in without)} bring no package: their sinks need jars alone.\n"


def _row(name: str, found: Distribution) -> str:
    return f"| {name} | {versions(name)} | {licence_of(name, found)} | {_text_of(found)} |"


def versions(name: str) -> str:
    """Returns the versions that the lock has of a package."""
    return ", ".join(pins()[canonicalize_name(name)])


def _distribution(name: str, folder: Path) -> Distribution:
    """Finds what is installed; a package of another version of Python is fetched to be read."""
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        (version,) = pins()[name]
        wanted = ["--no-deps", "--quiet", "--target", str(folder), f"{name}=={version}"]
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        subprocess.run([uv, "pip", "install", "--python", sys.executable, *wanted], check=True)
        (made,) = folder.glob(f"{name.replace('-', '_')}-*.dist-info")
        return PathDistribution(made)


def licence_of(name: str, found: Distribution) -> str:
    """Returns what a package says of its licence, shortened."""
    data = found.metadata
    classifiers = [one for one in data.get_all("Classifier") or () if one.startswith("License :: OSI")]
    said = data.get("License-Expression") or ", ".join(classifiers) or UNSAID.get(name) or data.get("License")
    if not said or "\n" in said:
        raise SystemExit(f"{name} does not say its licence: look it up, and add it to UNSAID.")
    return _short(said)


def _short(said: str) -> str:
    for long, short in SHORT:
        said = re.sub(long, short, said)
    return said


def _text_of(found: Distribution) -> str:
    texts = sorted(str(one) for one in found.files or () if _TEXT.match(one.name) and one.suffix not in {".py", ".pyc"})
    first = next((one for one in texts if ".dist-info/" in one), None)
    if first is None:
        urls = [one.partition(", ")[2] for one in found.metadata.get_all("Project-URL") or ()]
        return next(iter(urls), found.metadata.get("Home-page") or "with its source")
    folder = re.sub(r"-[\d.]+(post\d+)?\.dist-info", "-*.dist-info", first)
    return f"`{folder}`" + (f", and {len(texts) - 1} more" if len(texts) > 1 else "")


# --- jars ------------------------------------------------------------------------------------------------------------


def groups() -> dict[str, tuple[str, Sequence[Path]]]:
    """Returns the jars of each purpose, with the coordinate that brings them."""
    kafka, avro, delta, iceberg, pravega = coordinates()
    in_spark = sorted({artifact_name(jar.name) for jar in spark_jars_folder().glob("*.jar")})
    s3a = spark_s3a_jars()
    hadoop = next(jar.stem.rpartition("-")[2] for jar in s3a if jar.name.startswith("hadoop-aws"))
    broker = next(jar for jar in kafka_jars() if jar.name.startswith("kafka_"))
    name, _, version = broker.stem.rpartition("-")
    return {
        "Spark's Kafka connector": (kafka, spark_kafka_jars()),
        "Spark's Avro": (avro, spark_avro_jars()),
        "Delta Lake": (delta, spark_delta_jars()),
        "Iceberg": (iceberg, resolve([iceberg], exclude=in_spark)),
        "Pravega's client": (pravega, resolve([pravega], exclude=in_spark)),
        "A checkpoint in S3, by Spark's own Hadoop": (f"org.apache.hadoop:hadoop-aws:{hadoop}", s3a),
        "The Kafka broker of `sparkonce broker up`, the demo and the verifier": (
            f"org.apache.kafka:{name}:{version}",
            kafka_jars(),
        ),
    }


def _jars() -> Iterator[str]:
    for purpose, (coordinate, jars) in groups().items():
        yield f"### {purpose}\n\n`{coordinate}` brings:\n\n| jar | licence |\n| --- | --- |"
        yield "\n".join(f"| {jar.name} | {_short(_licence_of_jar(jar))} |" for jar in jars) + "\n"


def _of_tests() -> str:
    from sparkonce.rig.servers import hdfs, pravega

    return TESTS.format(fetched="\n".join(f"- `{one}`" for one in (*hdfs._JARS, *pravega._JARS)))


def _licence_of_jar(jar: Path) -> str:
    """Returns what its POM says, as Ivy keeps it; or else its manifest."""
    name, version = artifact_name(jar.name), jar.stem.removeprefix(f"{artifact_name(jar.name)}-")
    for kept in sorted((cache_folder() / "ivy" / "cache").glob(f"*/{name}/ivy-{version}.xml")):
        said = [one.get("name", "") for one in ElementTree.parse(kept).iter("license")]  # noqa: S314 - Ivy's
        if said:
            return ", ".join(dict.fromkeys(said))
    with zipfile.ZipFile(jar) as opened:
        manifest = opened.read("META-INF/MANIFEST.MF").decode(errors="replace").replace("\r\n ", "")
        texts = [one for one in opened.namelist() if re.fullmatch(r"(META-INF/)?LICENSE(\.\w+)?", one)]
        if found := re.search(r"Bundle-License: *(\S+)", manifest):
            return found[1]
        if any(b"Apache License" in opened.read(one) for one in texts):
            return "Apache License 2.0"
    if (known := JAR_UNSAID.get(name.partition("_")[0])) is None:
        raise SystemExit(f"{jar} does not say its licence: look it up, and add it to JAR_UNSAID.")
    return known


if __name__ == "__main__":
    main()
