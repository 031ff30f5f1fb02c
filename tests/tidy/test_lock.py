"""What is installed is what the lock says, all of it and nothing else. No network is needed to see that."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tidy.sources import MODULES, ROOT, nodes, tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = "sparkonce"

_PINNED = re.compile(
    r"^(?P<what>\S.*?)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n(?P<via>(?:    #.*\n?)+)", re.M
)


def locked() -> list[tuple[Requirement, int, set[str]]]:
    """Each package with the number of its hashes, and who asked for it."""
    found = []
    for match in _PINNED.finditer(LOCK):
        via = {word.strip(" #") for word in match["via"].replace("# via", "").splitlines()} - {""}
        found.append((Requirement(match["what"]), match["hashes"].count("--hash"), via))
    return found


def versions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one, _, _ in locked():
        found.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier).removeprefix("=="))
    return found


def asked_for() -> dict[str, list[Requirement]]:
    extras = PROJECT["project"]["optional-dependencies"]
    return {
        "the project": [Requirement(one) for one in PROJECT["project"]["dependencies"]],
        **{extra: [Requirement(one) for one in wanted] for extra, wanted in extras.items() if extra != "all"},
        "dev": [Requirement(one) for one in PROJECT["dependency-groups"]["dev"]],
    }


def test_every_package_is_pinned_with_hashes() -> None:
    lines = [line for line in LOCK.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(locked()) > 50
    assert [
        str(one) for one, hashes, _ in locked() if not re.fullmatch(r"==[^,*]+", str(one.specifier)) or not hashes
    ] == []


def test_the_lock_fits_what_the_project_asks_for() -> None:
    """Somebody who changes pyproject.toml and forgets `python3 dev.py lock` sees it here."""
    known = versions()
    stale = [
        f"{group}: {one}"
        for group, wanted in asked_for().items()
        for one in wanted
        if not known.get(canonicalize_name(one.name))
        or not all(one.specifier.contains(version) for version in known[canonicalize_name(one.name)])
    ]
    assert stale == []


def test_all_extras_are_in_all() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).name == OURS
    assert Requirement(everything).extras == extras.keys() - {"all"}


def test_nothing_is_in_the_lock_that_nobody_asked_for() -> None:
    names = set(versions())
    direct = {canonicalize_name(one.name) for wanted in asked_for().values() for one in wanted}
    for one, _, via in locked():
        parents = {canonicalize_name(parent.partition(" ")[0].partition("[")[0]) for parent in via}
        assert parents, one
        assert parents <= names | {OURS}, one
        assert OURS not in parents or canonicalize_name(one.name) in direct, f"{one.name} is no longer asked for"


def test_what_is_installed_is_what_is_locked() -> None:
    known = versions()
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()}
    assert {
        name: version for name, version in installed.items() if name != OURS and version not in known.get(name, ())
    } == {}


def imported() -> Iterator[str]:
    for path in MODULES:
        for node in nodes(tree(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


TYPES_ALONE = {"typing_extensions": "names of types, for the type checker"}


def test_the_product_imports_only_what_it_declares() -> None:
    declared = {
        canonicalize_name(one.name) for group, wanted in asked_for().items() if group != "dev" for one in wanted
    }
    homes = importlib.metadata.packages_distributions()
    strangers = set(imported()) - set(sys.stdlib_module_names) - {OURS} - set(TYPES_ALONE)
    # Parts of the interfaces of boto3 and PySpark, and installed by them.
    declared |= {"botocore", "py4j"}
    undeclared = {
        one: homes.get(one, [])
        for one in strangers
        if not {canonicalize_name(x) for x in homes.get(one, [])} & declared
    }
    assert undeclared == {}


FREE = re.compile(r"\b(MIT|MIT-0|Apache|BSD|0BSD|ISC|ISCL|PSF|MPL|Mozilla|Zlib|CC0|LGPL|Dual License)\b", re.I)
UNSAID = {
    "hdfs-native": "Apache-2.0, in its repository; its package does not say",
    "docutils": "public domain, BSD; GPL is a mode for Emacs, which is not in the wheel. Twine alone brings it",
}


def test_licenses_let_the_product_be_apache() -> None:
    """Permissive ones, and those of libraries (MPL, LGPL), which bind their own files alone."""
    bad = {}
    for one in importlib.metadata.distributions():
        data = one.metadata
        classifiers = [text for text in data.get_all("Classifier") or [] if text.startswith("License ::")]
        said = data.get("License-Expression") or " ".join([(data.get("License") or "").split("\n")[0], *classifiers])
        gpl = re.search(r"(?<!L)(?<!Lesser )\b(A?GPL|GNU General|Affero)", said)
        if canonicalize_name(data["Name"]) not in UNSAID and (gpl or not FREE.search(said)):
            bad[data["Name"]] = said
    assert bad == {}
