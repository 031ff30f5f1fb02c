"""Checks that exactly the packages in the lock file and our own projects are installed. Needs no network."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sparkonce
from tidy.sources import DISTRIBUTIONS, MODULES, ROOT, SOURCES, home, nodes, tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

LOCK = (ROOT / "requirements.lock").read_text()
PROJECTS = {one: tomllib.loads((one / "pyproject.toml").read_text()) for one in DISTRIBUTIONS}
PROJECT = PROJECTS[ROOT]
OURS = {str(one["project"]["name"]) for one in PROJECTS.values()}


def asked_for() -> dict[str, list[Requirement]]:
    """Lists the requirements of each of our projects, by project and extra, and the development packages."""
    found = {"dev": PROJECT["dependency-groups"]["dev"]}
    for one in (project["project"] for project in PROJECTS.values()):
        found[one["name"]] = one["dependencies"]
        found |= {f"{one['name']}[{extra}]": wanted for extra, wanted in one.get("optional-dependencies", {}).items()}
    return {group: [Requirement(one) for one in wanted] for group, wanted in found.items()}


def of_others() -> dict[str, list[Requirement]]:
    return {group: [one for one in wanted if one.name not in OURS] for group, wanted in asked_for().items()}


def test_our_distributions_need_each_other_in_this_version():
    """They are built, released and installed together."""
    wanted = {
        (group, str(one))
        for group, requirements in asked_for().items()
        for one in requirements
        if one.name in OURS and not one.extras
    }
    assert {one.partition("==")[2] for _, one in wanted} == {sparkonce.__version__}
    assert len(wanted) >= 2 * len(OURS) - 2
    read = {(path / one["tool"]["hatch"]["version"]["path"]).resolve() for path, one in PROJECTS.items()}
    assert read == {ROOT / "src" / "sparkonce" / "version.py"}


def test_the_lock_fits_what_the_project_asks_for():
    """This fails if somebody changes pyproject.toml without running `python3 dev.py lock`."""

    def versions() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for one in map(Requirement, re.findall(r"^(\S.*?) \\$", LOCK, re.M)):
            found.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier).removeprefix("=="))
        return found

    known = versions()
    stale = [
        f"{group}: {one}"
        for group, wanted in of_others().items()
        for one in wanted
        if not known.get(canonicalize_name(one.name))
        or not all(one.specifier.contains(version) for version in known[canonicalize_name(one.name)])
    ]
    assert stale == []


def test_all_extras_are_in_all():
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).name == "sparkonce"
    assert Requirement(everything).extras == extras.keys() - {"all"}


@pytest.mark.parametrize("project", sorted(OURS))
def test_each_distribution_imports_only_what_it_declares(project):
    """Our own packages it depends on, and sparkonce, are allowed too.

    The import contracts cover which may import which.
    """
    # These packages are part of the interfaces of boto3 and PySpark, and are installed with them.
    parts = {"botocore", "py4j"}
    types_alone = {"typing_extensions": "names of types, for the type checker"}

    def imported(path: Path) -> Iterator[str]:
        for node in nodes(tree(path)):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]

    own = [one for group, wanted in asked_for().items() if group.partition("[")[0] == project for one in wanted]
    projects = {project, "sparkonce", *(one.name for one in own)}
    groups = [group for group in asked_for() if group.partition("[")[0] in projects]
    declared = {canonicalize_name(one.name) for group in groups for one in asked_for()[group]} | parts
    homes = importlib.metadata.packages_distributions()
    modules = [path for path in MODULES if home(path).name == project.replace("-", "_")]
    names = {one for path in modules for one in imported(path)} - set(sys.stdlib_module_names) - set(types_alone)
    names -= {one.name for one in SOURCES}
    assert len(names) > 1
    undeclared = {one for one in names if declared.isdisjoint(map(canonicalize_name, homes.get(one, [])))}
    assert undeclared == set()


def test_licenses_let_the_product_be_apache():
    """Permissive licenses, and those for libraries (MPL, LGPL), which only apply to their own files."""
    unsaid = {
        "hdfs-native": "Apache-2.0, in its repository; its package does not say",
        "docutils": "public domain, BSD; GPL is a mode for Emacs, which is not in the wheel. Twine alone brings it",
    }
    free = re.compile(r"\b(MIT|MIT-0|Apache|BSD|0BSD|ISC|ISCL|PSF|MPL|Mozilla|Zlib|CC0|LGPL|Dual License)\b", re.I)
    bad = {}
    for one in importlib.metadata.distributions():
        data = one.metadata
        classifiers = [text for text in data.get_all("Classifier") or [] if text.startswith("License ::")]
        said = data.get("License-Expression") or " ".join([(data.get("License") or "").split("\n")[0], *classifiers])
        gpl = re.search(r"(?<!L)(?<!Lesser )\b(A?GPL|GNU General|Affero)", said)
        if canonicalize_name(data["Name"]) not in unsaid and (gpl or not free.search(said)):
            bad[data["Name"]] = said
    assert bad == {}
