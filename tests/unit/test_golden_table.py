"""The table of docs/compatibility.md is that of the golden files, and of the code's own numbers."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from golden.kept import DECIDED, HERE, RELEASES, state
from sparkonce.protocol.codec import FORMATS
from sparkonce.sinks.files import generations, manifests
from sparkonce.sources.rabbitmq.queue import segments
from sparkonce.watch import timeline
from tidy.sources import ROOT

PAGE = (ROOT / "docs" / "compatibility.md").read_text()
NUMBERS = {
    "records of the decision log": FORMATS["record"],
    "floors": FORMATS["floor"],
    "manifests": manifests._FORMAT,
    "manifests of compacted batches": generations.FORMAT,
    "messages of a queue": segments._VERSION,
    "newest batches and events, to be watched": timeline.FORMAT,
}


def rows() -> dict[str, list[str]]:
    table = PAGE.partition("## Each durable thing")[2].partition("\n## ")[0]
    found = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines() if line[:2] == "| "
    ]
    return {cells[0]: cells for cells in found[2:]}


def patterns(cells: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", cells[-1])


def golden() -> list[str]:
    found = [path.relative_to(HERE).as_posix() for path in HERE.rglob("*") if path.is_file()]
    return sorted(one for one in found if not one.endswith((".py", ".pyc")))


@pytest.mark.parametrize("thing", rows())
def test_each_durable_thing_has_golden_files(thing: str) -> None:
    assert patterns(rows()[thing]), thing
    for pattern in patterns(rows()[thing]):
        assert [one for one in golden() if fnmatch(one, pattern)], f"no golden file is {pattern}"


def test_each_golden_file_is_of_a_durable_thing() -> None:
    every = [pattern for cells in rows().values() for pattern in patterns(cells)]
    assert [one for one in golden() if not any(fnmatch(one, pattern) for pattern in every)] == []


def test_each_number_is_that_of_the_code() -> None:
    assert {thing: int(cells[2]) for thing, cells in rows().items() if cells[2].isdigit()} == NUMBERS


def test_golden_files_of_a_release_are_there() -> None:
    folders = {folder for each in RELEASES.values() for folder in each}
    assert {folder for folder in folders if not (HERE / folder).is_dir()} == set()
    assert [one for one in golden() if not any(one.startswith(f"{folder}/") for folder in folders)] == []


def test_the_line_of_the_page_finds_the_version_in_a_log(tmp_path: Path) -> None:
    (line,) = re.findall(r"^grep .*$", PAGE, re.M)
    command = line.replace("CHECKPOINT", str(state("v1", DECIDED) / "checkpoint"))
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert re.fullmatch(r'\s*3 "library":"0\.1\.0"\n', done.stdout), done.stdout
