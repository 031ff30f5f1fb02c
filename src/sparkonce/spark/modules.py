"""Checks that a session has a module of Spark that is a jar of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from py4j.java_gateway import JavaClass

from sparkonce.errors import ConfigurationError
from sparkonce.sources.packages import missing_module

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_class(session: SparkSession, module: str, name: str) -> None:
    """Checks that the session has a module, by one of its classes.

    Args:
        session: The session.
        module: The name of a module of Spark's, or the coordinate of another jar.
        name: The class.

    Raises:
        ConfigurationError: if not; it says how to get the module.
    """
    found = session._jvm
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, JavaClass):  # to py4j any other name is a package
        raise missing(session, module)


def missing(session: SparkSession, module: str) -> ConfigurationError:
    """Returns the error for a session without the module."""
    asked, jars = (str(session.conf.get(name, "")) for name in ("spark.jars.packages", "spark.jars"))
    # Spark-submit gives Python the port of the JVM that it has started.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return missing_module(module, session.version, asked=asked, jars=jars, submitted=submitted)
