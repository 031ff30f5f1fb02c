"""The README's quick start, cut out of it, by a user without a clone: the wheel in an environment with nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkonce.rig.kafka.jars import cache_folder
from sparkonce.rig.servers.process import free_port
from tidy.sources import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LIMIT_S = 600
NO_INDEX = re.compile("Failed to fetch|error sending request|dns error|Could not find a version|Connection refused")
README = (ROOT / "README.md").read_text()
SECTION = README.partition("\n## Quick start\n")[2].partition("\n## ")[0]
LINES, _, SUBMIT, JOB = re.findall(r"^```\w*\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
INSTALLS = (
    "python3 -m venv .venv && . .venv/bin/activate\n",
    f"pip install sparkonce pyspark=={importlib.metadata.version('pyspark')}\n",
)


@dataclass
class Installed:
    """An environment with the wheel, and what a shell of its user has set."""

    folder: Path
    python: Path
    packages: list[Path]
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: list[str], folder: Path, *, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert may_fail or done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def shell(self, lines: str, folder: Path) -> str:
        return self.run(["bash", "-euo", "pipefail", "-c", lines], folder).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("outside")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    made = Installed(folder, folder / "venv" / "bin" / "python", sorted((folder / "dist").iterdir()))
    wheel = next(one for one in made.packages if one.suffix == ".whl")
    made.environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))},
        "PATH": f"{made.python.parent}{os.pathsep}{os.environ['PATH']}",
        "SPARKONCE_CACHE": str(own_cache(folder)),
        "SPARK_CONF_DIR": str(spark_settings(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    install(made, wheel)
    return made


def install(made: Installed, wheel: Path) -> None:
    """What the lock has of the wheel's needs, by uv from its cache or else from the index; by pip if there is no uv.

    Nothing is resolved: that would have uv build PySpark anew, and which versions an index has today is no question of
    the commit. That it is all that the wheel declares, `check` says.
    """
    (made.folder / "locked.txt").write_text("".join(locked(needed())))
    lock, bare = ["-r", str(made.folder / "locked.txt"), "--require-hashes", "--no-deps"], ["--no-deps", str(wheel)]
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    if uv:
        made.run([uv, "venv", "--quiet", "--python", sys.executable, str(made.folder / "venv")], made.folder)
        by_uv = [uv, "pip", "install", "--python", str(made.python), "--link-mode", "hardlink"]
        ways = [[*by_uv, *lock, "--offline"], [*by_uv, *lock]]
        more = [[*by_uv, *bare], [uv, "pip", "check", "--python", str(made.python)]]
    else:
        made.run([sys.executable, "-m", "venv", str(made.folder / "venv")], made.folder)
        pip = [str(made.python), "-m", "pip"]
        ways, more = [[*pip, "install", *lock]], [[*pip, "install", *bare], [*pip, "check"]]
    for way in ways:
        done = made.run(way, made.folder, may_fail=True)
        if done.returncode == 0:
            break
    else:
        if NO_INDEX.search(done.stderr):
            pytest.skip(f"no package index can be reached: {done.stderr[-300:]}")
        pytest.fail(done.stderr[-3000:])
    for command in more:
        made.run(command, made.folder)


def needed() -> set[str]:
    """The names of all that sparkonce needs, without extras, and of what these need."""
    names: set[str] = set()
    asked = ["sparkonce"]
    while asked:
        name = canonicalize_name(asked.pop())
        if name not in names:
            names.add(name)
            wanted = map(Requirement, importlib.metadata.requires(name) or ())
            asked += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return names


def locked(names: set[str]) -> Iterator[str]:
    lock = (ROOT / "requirements.lock").read_text()
    for entry in re.findall(r"^\S.* \\\n(?:    --hash=.*\n)+", lock, re.MULTILINE):
        if canonicalize_name(Requirement(entry.partition("\\")[0]).name) in names:
            yield entry


def own_cache(folder: Path) -> Path:
    """A broker of its own, with jars and classes that were fetched before, for whichever test."""
    cache = folder / "cache"
    cache.mkdir()
    for shared in ("jars", "ivy", "classes"):
        (cache_folder() / shared).mkdir(parents=True, exist_ok=True)
        (cache / shared).symlink_to(cache_folder() / shared)
    (cache / "ivy.lock").symlink_to(cache_folder() / "ivy.lock")
    return cache


def spark_settings(folder: Path) -> Path:
    """Where Spark keeps what it fetches, apart from the user's; and a JVM that starts sooner."""
    settings = {
        "spark.jars.ivy": cache_folder() / "spark-ivy",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return folder / "conf"


@dataclass(frozen=True)
class Tried:
    """The quick start's folder, after its lines were typed, and what they printed."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def tried(installed: Installed) -> Iterator[Tried]:
    """All lines as they stand there, but for those that install it; and another port, as several may run at once."""
    port = str(free_port())
    installed.environment["BROKER"] = f"127.0.0.1:{port}"
    lines = LINES
    for line in INSTALLS:
        assert line in lines
        lines = lines.replace(line, "")
    assert "9092" in lines
    assert "9092" in JOB
    try:
        said = installed.shell(lines.replace("9092", port), installed.folder)
        yield Tried(installed.folder / "first-job", said)
    finally:
        installed.shell("sparkonce broker down --delete", installed.folder)


def all_are_counted(said: str) -> None:
    """As many as were sent, by this run and those before: each run sends a thousand."""
    (counted, sent) = re.findall(r"^all +([\d,]+) orders, of ([\d,]+) that were sent$", said, re.MULTILINE)[0]
    assert counted == sent
    assert sent.endswith(",000")


def test_the_packages_are_sound(installed: Installed) -> None:
    """Also their page on an index, where a link to a file of the repository leads nowhere."""
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, installed.packages)]
    subprocess.run(twine, check=True, capture_output=True, timeout=LIMIT_S)
    assert {one.suffix for one in installed.packages} == {".whl", ".gz"}
    assert all(one.stat().st_size < 3_000_000 for one in installed.packages), "no report of a megabyte"
    show = "import importlib.metadata as found; print(found.metadata('sparkonce'))"
    page = installed.run([str(installed.python), "-c", show], installed.folder).stdout
    address = re.findall(r"^Project-URL: Repository, (.+)$", page, re.MULTILINE)[0]
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=[\"']([^\"']+)", page)
    assert len(links) > 20
    assert [one for pair in links for one in pair if one and not one.startswith(("https://", "#"))] == []
    assert f"]({address}/blob/main/docs/protocol.md)" in page


def test_the_page_with_the_screen_has_the_same_lines() -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    assert "".join(f"{line}\n" for line in re.findall(r"^\$ (.+)$", page, re.MULTILINE)) == LINES


def test_the_readme_has_the_file_that_new_writes(tried: Tried) -> None:
    assert (tried.folder / "job.py").read_text() == JOB
    told = (tried.folder / "README.md").read_text()
    assert all(line in told for line in SUBMIT.splitlines())
    assert {one.name for one in tried.folder.iterdir()} >= {"requirements.txt", ".gitignore", "checkpoint"}


def test_it_runs_as_a_program(tried: Tried) -> None:
    assert "bootstrap.servers" in tried.said
    all_are_counted(tried.said)


def test_it_runs_by_spark_submit(installed: Installed, tried: Tried) -> None:
    all_are_counted(installed.shell(SUBMIT, tried.folder))


IN_CELLS = """
import pathlib, sys
from pyspark.sql import SparkSession
from sparkonce import spark_packages

there = SparkSession.builder.config("spark.jars.packages", spark_packages()).getOrCreate()
names = {"__name__": "__main__"}
for number, cell in enumerate(pathlib.Path(sys.argv[1]).read_text().split("# %%")):
    exec(compile(f"#{cell}", f"<cell {number}>", "exec"), names)
assert names["spark"] is there
assert there.conf.get("spark.sql.shuffle.partitions") == "2"
"""


def test_its_cells_run_in_a_session_that_is_there_as_in_a_notebook(installed: Installed, tried: Tried) -> None:
    """No kernel: its cells are given one after the other to an interpreter whose Spark runs already."""
    all_are_counted(installed.run([str(installed.python), "-c", IN_CELLS, "job.py"], tried.folder).stdout)


def test_without_a_broker_it_says_so_in_two_lines(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = installed.run(["env", "BROKER=127.0.0.1:1", str(installed.python), "job.py"], tmp_path, may_fail=True)
    assert done.returncode == 1
    assert re.fullmatch("No Kafka answers at .*127.0.0.1:1.*\nNext: sparkonce broker up.*\n", done.stderr)
