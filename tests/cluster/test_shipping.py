"""The ways to ship of ``docs/deploying.md``, to hosts whose Python has no sparkonce."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sparkonce
from cluster.example import SCRIPTS, ClusterExample
from cluster.faults import LIMIT_S
from cluster.standalone import Standalone
from cluster.stores import Store
from integration.test_quick_start import locked, needed
from sparkonce.rig.kafka import Cluster
from tidy.sources import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SUM = SCRIPTS["windowed sum"]
PAGE = (ROOT / "docs" / "deploying.md").read_text()


def typed(line: str, folder: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", line], cwd=folder, env=env, check=True, capture_output=True, timeout=LIMIT_S)


def lines_of(heading: str) -> list[str]:
    """The lines of the first block below a heading."""
    found = re.search(rf"^### {re.escape(heading)}\n.*?```sh\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1].splitlines()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with all that sparkonce needs, but PySpark, which the cluster has."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "locked.txt").write_text("".join(locked(needed() - {"pyspark"})))
    uv = shutil.which("uv", path=f"{ROOT}/.tools/bin{os.pathsep}{os.environ['PATH']}")
    assert uv is not None, "dev.py has not made the environment"
    typed(f"{uv} venv --quiet --seed --python {sys.executable} environment", folder)
    install = f"{uv} pip install --quiet --python environment/bin/python"
    typed(f"{install} --no-deps -r locked.txt; {install} venv-pack setuptools", folder)
    return folder / "environment"


def used(cluster: Standalone, words: str) -> int:
    """How many executors have Python workers with these words in their command line."""
    return sum(bool(worker.processes(words)) for worker in cluster.workers)


def count_with(
    example: ClusterExample, cluster: Standalone, python: str, say: Callable[[str], None], told: str, **shipped: str
) -> None:
    """Runs the example to its end with that Python on executors."""
    environment = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": python}
    words = [word for name, value in shipped.items() if name == "archives" for word in ("--archives", value)]
    run = example.start(words, [shipped["zip"]] if "zip" in shipped else [], environment)
    example.more_out(run)
    assert used(cluster, python) == len(cluster.workers)
    count = example.finish(run)
    say(f"{told}: {count}")
    assert count.is_done, count


def test_a_zip(
    kafka: Cluster, spark_cluster: Standalone, on_disk: Store, tmp_path: Path, bare: Path, say: Callable[[str], None]
) -> None:
    """Without it, each of the hosts is named."""
    python = str(bare / "bin" / "python")
    line = next(line for line in lines_of("A zip") if "make_archive" in line)
    typed(line.replace("/tmp/", f"{tmp_path}/"), tmp_path)  # noqa: S108 - the page's
    with ClusterExample(SUM, kafka, spark_cluster, on_disk, tmp_path) as example:
        run = example.start(env={"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": python})
        run.wait(LIMIT_S)
        said = run.log.read_text()
        assert "PreflightError: Executors are not as the driver needs them. On host" in said
        assert f"{python} cannot import sparkonce" in said
        assert f"and the driver has sparkonce {sparkonce.__version__}" in said
        count_with(example, spark_cluster, python, say, "a zip", zip=f"{tmp_path}/sparkonce.zip")


def test_an_archive_of_venv_pack(
    kafka: Cluster, spark_cluster: Standalone, on_disk: Store, tmp_path: Path, bare: Path, say: Callable[[str], None]
) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    typed(f"environment/bin/python -m pip install --no-deps {tmp_path}/*.whl", bare.parent)
    typed(lines_of("An archive of a virtual environment")[-1].replace("-o ", f"-o {tmp_path}/"), bare.parent)
    with ClusterExample(SUM, kafka, spark_cluster, on_disk, tmp_path) as example:
        archive = f"{tmp_path}/environment.tar.gz#environment"
        count_with(example, spark_cluster, "./environment/bin/python", say, "an archive", archives=archive)
