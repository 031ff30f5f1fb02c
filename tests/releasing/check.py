"""Checks that a commit can be released: ``python3 dev.py release``. CONTRIBUTING.md has the other steps."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from golden.kept import HERE, RELEASES
from releasing.locked import ROOT

_HEADING = re.compile(r"^## (?P<version>\S+) \((?P<when>[^)]+)\)$", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_RELEASED = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A commit that is to be released.

    Attributes:
        version: The version in ``version.py``.
        tags: The tags of the commit.
        changes: The paths that differ from the commit.
        changelog: The text of CHANGELOG.md.
        security: The text of SECURITY.md.
        golden: The folders of golden files of each minor version, below ``tests/golden``.
    """

    version: str
    tags: Sequence[str]
    changes: Sequence[str]
    changelog: str
    security: str
    golden: Mapping[str, Sequence[str]]

    @classmethod
    def here(cls) -> Candidate:
        """Reads the clone."""
        (version,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "src/sparkonce/version.py").read_text(), re.MULTILINE)
        return cls(
            version=version,
            tags=git("tag", "--points-at", "HEAD"),
            changes=git("status", "--porcelain"),
            changelog=(ROOT / "CHANGELOG.md").read_text(),
            security=(ROOT / "SECURITY.md").read_text(),
            golden=RELEASES,
        )


def faults(one: Candidate) -> Iterator[str]:
    """Yields what keeps a commit from being released, each with its remedy."""
    minor = ".".join(one.version.split(".")[:2])
    if not _RELEASED.fullmatch(one.version):
        yield f"version.py has {one.version!r}. Write a version of three numbers."
    if f"v{one.version}" not in one.tags:
        found = ", ".join(one.tags) or "none"
        yield f"The commit has not the tag v{one.version} (its tags: {found}). Run git tag -s v{one.version}."
    if one.changes:
        yield f"These paths differ from the commit: {', '.join(one.changes)}. Commit them, or move them away."
    heading = _HEADING.search(one.changelog)
    if heading is None or heading["version"] != one.version:
        yield f"The first heading of CHANGELOG.md is not of {one.version}. Write ## {one.version} (YYYY-MM-DD)."
    elif not _DATE.fullmatch(heading["when"]):
        yield f"CHANGELOG.md calls {one.version} {heading['when']}. Write the day: ## {one.version} (YYYY-MM-DD)."
    if f"| {minor} | yes |" not in one.security:
        yield f"SECURITY.md does not say that {minor} gets corrections. Add it to its table of versions."
    folders = one.golden.get(minor, ())
    missing = [folder for folder in folders if not (HERE / folder).is_dir()]
    if not folders:
        yield f"tests/golden/kept.py names no golden files for {minor}. Add them to RELEASES."
    if missing:
        yield f"The golden files {', '.join(missing)} are gone. Bring them back: they never change."


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> int:
    """Prints what is wrong; 0 if nothing is."""
    candidate = Candidate.here()
    found = list(faults(candidate))
    print("\n".join(found) or f"{candidate.version} can be released.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
