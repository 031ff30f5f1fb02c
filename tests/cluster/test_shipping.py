"""The ways to ship of ``docs/deploying.md``, to hosts whose Python has no sparkonce."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import sparkonce
from cluster.example import SCRIPTS, ClusterExample
from cluster.faults import LIMIT_S
from cluster.standalone import Standalone
from cluster.stores import Store
from cluster.test_submit_lines import PACKAGES, line_of
from cluster.test_submit_lines import typed as submit
from cluster.yarn import Yarn
from eventually import eventually
from integration.test_quick_start import locked, needed
from spark.example_job import EXAMPLES
from spark.processes import kill
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import spark_jars_folder
from tidy.sources import ROOT
from tryout.trial import Count

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SUM = SCRIPTS["windowed sum"]
PACKED = "./environment/bin/python"
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


@pytest.fixture(scope="module")
def archive(bare: Path) -> str:
    """The archive that the page makes of an environment with sparkonce's wheel, as an argument of ``--archives``."""
    folder = bare.parent
    typed(f"{sys.executable} -m hatchling build -t wheel -d {folder}", ROOT)
    typed("environment/bin/python -m pip install --no-deps *.whl", folder)
    typed(lines_of("An archive of a virtual environment")[-1], folder)
    return f"{folder}/environment.tar.gz#environment"


def used(cluster: Standalone, words: str) -> int:
    """Counts the executors that have Python workers with these words in their command line."""
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
        said = " ".join(run.log.read_text().split())  # typer wraps the lines
        assert "PreflightError: Executors are not as the driver needs them. On host" in said
        assert f"{python} cannot import sparkonce" in said
        assert f"and the driver has sparkonce {sparkonce.__version__}" in said
        count_with(example, spark_cluster, python, say, "a zip", zip=f"{tmp_path}/sparkonce.zip")


def test_an_archive_of_venv_pack(
    kafka: Cluster, spark_cluster: Standalone, on_disk: Store, tmp_path: Path, archive: str, say: Callable[[str], None]
) -> None:
    with ClusterExample(SUM, kafka, spark_cluster, on_disk, tmp_path) as example:
        count_with(example, spark_cluster, PACKED, say, "an archive", archives=archive)


def test_an_archive_on_yarn(
    kafka: Cluster, spark_cluster: Standalone, on_disk: Store, tmp_path: Path, archive: str, say: Callable[[str], None]
) -> None:
    """The driver runs by the archive's Python, too."""
    with (
        Yarn(tmp_path / "yarn") as yarn,
        ClusterExample(SUM, kafka, spark_cluster, on_disk, tmp_path) as example,
        ExitStack() as stack,
    ):
        own = {
            "spark.yarn.jars": f"local:{spark_jars_folder()}/*",
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        }
        more = " ".join(f"--conf {name}='{value}'" for name, value in own.items())
        names = {
            "/etc/hadoop/conf": str(yarn.conf),
            PACKAGES: f"--jars {','.join(example.config.jars)} --py-files {EXAMPLES / 'late_rows.py'}",
            "environment.tar.gz#environment": f"{archive} {more}",
            "--num-executors 3 --executor-cores 2 --executor-memory 4g --driver-memory 2g": "--num-executors 2 "
            "--executor-memory 512m --driver-memory 512m",
            "    job.py": f"    {shlex.join(example.program)}",
            "JOB": "job",
        }
        stack.callback(lambda: [kill(pid) for pid in yarn.containers("")])
        run = submit(line_of("YARN"), names, tmp_path)
        assert run.returncode == 0, run.stderr[-4000:]

        def all_out() -> Count | None:
            count = example.trial.count()
            if not count.unread:
                example.trial.close()
            return count if count.is_done else None

        count = eventually(all_out, "all has come out", limit_s=LIMIT_S)
        assert yarn.containers(f"{PACKED} -m pyspark.daemon")
        assert yarn.containers(f"{PACKED} windowed_sum.py")
        say(f"an archive on YARN: {count}")
