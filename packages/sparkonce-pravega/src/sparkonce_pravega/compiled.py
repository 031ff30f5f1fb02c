"""Adds the source's Java classes to a session. Janino, which Spark ships, compiles them into a jar for the tasks.

The source is written in Java, like Spark's own sources, because the workers of a Python source have no JVM, and
Pravega's Python client does not support stream cuts. Rows do not pass through Python.
"""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark import SparkContext

from sparkonce_pravega.cluster import Pravega

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "pravega_stream"
"""The short name of the format and of the entry point. Pravega's own connector for Spark is named ``pravega``."""

_SOURCE_CLASS = "sparkonce.pravega.PravegaSource"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
"""The file in a jar through which Spark finds a format's class."""

_JAVA = 8
"""The Java version of the sources and classes: the first version for which Janino supports static interface methods."""

_adding = threading.Lock()
_added: WeakSet[SparkContext] = WeakSet()
"""The contexts that have the classes. The jar alone does not prove that: it may exist without having been added."""


def add_source(spark: SparkSession) -> None:
    """Adds the classes, unless the session's Spark already has them, and lets this thread find them by name."""
    # Spark deletes this folder when it stops. Executors that join later download the jar from the driver.
    jar = Path(str(spark.sparkContext._temp_dir), "sparkonce-pravega.jar")
    with _adding:
        if spark.sparkContext not in _added:
            classes = _compiled(spark._jvm)
            unfinished = jar.with_suffix(".unfinished")
            with zipfile.ZipFile(unfinished, "w") as archive:
                archive.writestr(_SERVICE, _SOURCE_CLASS)
                for name, code in classes.items():
                    archive.writestr(name, code)
            unfinished.replace(jar)
            spark._jsparkSession.sessionState().resourceLoader().addJar(str(jar))
            _added.add(spark.sparkContext)
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    spark._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)


def source_options(cluster: Pravega) -> dict[str, str]:
    """Returns the source's options for a cluster. Spark redacts options whose names suggest a password."""
    given = {"user": cluster.user, "password": cluster.password, "trust_store": cluster.trust_store}
    known = {name: value for name, value in given.items() if value is not None}
    return {"controller": cluster.controller, "check_host_name": str(cluster.check_host_name).lower(), **known}


def cluster_of(options: Mapping[str, str]) -> Pravega:
    """Returns the cluster for these options."""
    known = {name: options[name] for name in ("controller", "user", "password", "trust_store") if name in options}
    return Pravega(**known, check_host_name=options["check_host_name"] == "true")


def _compiled(jvm: Any) -> dict[str, bytes]:
    """Returns the classes, by file name."""
    compiling, resource = jvm.org.codehaus.janino, jvm.org.codehaus.commons.compiler.util.resource
    made, folder = jvm.java.util.HashMap(), files(__package__) / "java"
    sources = [one for one in folder.iterdir() if one.name.endswith(".java")]
    texts = SparkContext._gateway.new_array(resource.Resource, len(sources))
    for number, source in enumerate(sources):
        texts[number] = resource.StringResource(source.name, source.read_text(encoding="utf-8"))
    compiler = compiling.Compiler()
    pravega = jvm.io.pravega.client.ClientConfig.builder().getClass().getClassLoader()
    compiler.setIClassLoader(compiling.ClassLoaderIClassLoader(pravega))
    compiler.setClassFileFinder(resource.ResourceFinder.EMPTY_RESOURCE_FINDER)
    compiler.setClassFileCreator(resource.MapResourceCreator(made))
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.setDebugLines(True)
    compiler.compile(texts)
    return {str(name): bytes(code) for name, code in made.items()}
