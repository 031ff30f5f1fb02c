"""The packages that an installation pulls in, by extra, as pyproject.toml asks for them and the lock pins them."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkonce.sources.packages import spark_packages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
PLAIN = ""
"""An installation without an extra."""

_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)


@cache
def project() -> Mapping[str, Any]:
    """Reads the table ``project`` of pyproject.toml."""
    found: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


@cache
def pins() -> Mapping[str, Mapping[str, str]]:
    """Returns the versions of each locked package, oldest first as the lock has them, with their markers."""
    found: dict[str, dict[str, str]] = {}
    for name, version, marker in _PINNED.findall(LOCK.read_text()):
        found.setdefault(canonicalize_name(name), {})[version] = marker
    return found


@cache
def extras() -> Mapping[str, frozenset[str]]:
    """Returns the packages of a plain installation, and those that each extra adds to it."""
    plain = frozenset(_closure(project()["dependencies"]))
    added = {
        extra: frozenset(_closure(wanted)) - plain
        for extra, wanted in project()["optional-dependencies"].items()
        if extra != "all" and wanted
    }
    return {PLAIN: plain, **added}


def everything() -> list[str]:
    """Returns all of them."""
    return sorted(frozenset().union(*extras().values()))


def coordinates() -> Sequence[str]:
    """Returns the jars of Spark's session, as `spark_packages` names them for the locked PySpark."""
    (version,) = pins()["pyspark"]
    return spark_packages(version, delta=True, iceberg=True, pravega=True).split(",")


def _closure(wanted: Iterable[str]) -> set[str]:
    """Follows the metadata of what is installed, and the lock for what only other versions of Python have."""
    todo = [Requirement(one) for one in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        one = todo.pop()
        name, asked = canonicalize_name(one.name), frozenset(one.extras)
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        todo += _needs(name, asked)
    return {name for name, _ in seen}


def _needs(name: str, asked: frozenset[str]) -> Iterator[Requirement]:
    try:
        declared = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in declared:
        need = Requirement(text)
        if canonicalize_name(need.name) in pins() and any(_holds(need, extra) for extra in (asked or {""})):
            yield need


def _holds(need: Requirement, extra: str) -> bool:
    """Tells if a need is one on Linux or macOS, with any Python that is supported."""
    if need.marker is None:
        return True
    return any(
        need.marker.evaluate(
            {
                "extra": extra,
                "python_version": python,
                "python_full_version": f"{python}.0",
                "sys_platform": platform,
                "platform_system": system,
            }
        )
        for python in ("3.10", "3.11", "3.12", "3.13")
        for platform, system in (("linux", "Linux"), ("darwin", "Darwin"))
    )
