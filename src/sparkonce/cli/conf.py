"""``--conf KEY=VALUE``, as spark-submit has it: how a checkpoint's store is reached."""

from collections.abc import Sequence
from typing import Annotated

import typer

from sparkonce.errors import ConfigurationError

Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A setting of Spark for the checkpoint's store, such as spark.hadoop.fs.s3a.endpoint; may be repeated.",
    ),
]
_HADOOP = "spark.hadoop."
_CONNECTOR = ("spark.jars.packages", "spark.jars.repositories", "spark.jars.ivy", "spark.jars.ivySettings")
_CLASSES = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_DEFAULT_STORE = "spark.hadoop.fs.defaultFS"


def read_conf(given: Sequence[str] | None) -> dict[str, str]:
    """Returns the settings by name.

    Raises:
        ConfigurationError: naming the one that is no setting of a store. Its value may be a secret, and is not shown.
    """
    pairs = [text.partition("=") for text in given or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigurationError(
                f"--conf {name.partition(' ')[0]!r} is not KEY=VALUE.",
                next_step="For example --conf spark.hadoop.fs.s3a.endpoint=https://store:9000.",
            )
        if name == _DEFAULT_STORE or not (name.startswith(_HADOOP) or name in (*_CONNECTOR, *_CLASSES)):
            raise ConfigurationError(
                f"--conf {name}: only the way to the checkpoint's store can be set here.",
                next_step=f"Give spark.hadoop.fs.…, {', '.join((*_CONNECTOR, *_CLASSES))}; the checkpoint as a URL.",
            )
    return {name.strip(): value.strip() for name, _, value in pairs}


def hadoop_settings(given: Sequence[str] | None) -> dict[str, str]:
    """Returns Hadoop's settings among them, without ``spark.hadoop.``.

    Raises:
        ConfigurationError: see `read_conf`.
    """
    return {name.removeprefix(_HADOOP): value for name, value in read_conf(given).items() if name.startswith(_HADOOP)}
