"""The package as users get it, and the commands of docs/quickstart.md, run outside the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import sparkonce
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
PROJECTS = {"sparkonce": ROOT} | {path.name.replace("-", "_"): path for path in (ROOT / "packages").iterdir()}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    for project in PROJECTS.values():
        subprocess.run(build, cwd=project, check=True, capture_output=True, timeout=300)
    return {one.name.partition("-")[0]: one for one in folder.iterdir()}


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_has_every_file_of_the_source_and_nothing_else(package, wheels):
    wheel, project = wheels[package], PROJECTS[package]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel], check=True, capture_output=True)
    listed = subprocess.run(["git", "ls-files", "src"], cwd=project, check=True, capture_output=True, text=True).stdout
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {name.removeprefix("src/") for name in listed.splitlines()}
    assert any(name.endswith("/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_the_page_installs_this_version_of_pyspark():
    readme = (ROOT / "README.md").read_text()
    (version,) = {*re.findall(r"pip install \. .*pyspark==(\S+)", f"{PAGE}{readme}")}
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unpacked", "installed"])
def test_a_first_job_counts_all_orders(how, wheels, tmp_path):
    """The wheels precede this environment's packages, or the page installs them."""
    cache, conf = tmp_path / "cache", tmp_path / "conf"
    cache.mkdir()
    for shared in ("jars", "ivy", "classes"):  # the broker's data are not shared
        (cache_folder() / shared).mkdir(parents=True, exist_ok=True)
        (cache / shared).symlink_to(cache_folder() / shared)
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.jars.ivy {cache_folder() / 'spark-ivy'}\n"
        "spark.ui.enabled false\n"
        "spark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1\n"
    )
    python = Path(sys.executable)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    env |= {"SPARKONCE_CACHE": str(cache), "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    if how == "installed":
        python = tmp_path / "venv" / "bin" / "python"
        version = PAGE.partition("pip install . ./packages/sparkonce-lab pyspark==")[2].split()[0]
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
        wanted = [ROOT, PROJECTS["sparkonce_lab"], f"pyspark=={version}"]
        subprocess.run([python, "-m", "pip", "install", "-q", *map(str, wanted)], check=True)
    else:
        for wheel in wheels.values():
            zipfile.ZipFile(wheel).extractall(tmp_path / "site")
        env["PYTHONPATH"] = str(tmp_path / "site")
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"

    def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", f'sparkonce() {{ python -m sparkonce "$@"; }}\n{line}']
        return subprocess.run(
            command, cwd=tmp_path, env={**env, **more}, capture_output=True, text=True, timeout=600, check=False
        )

    where = shell("python -c 'import sparkonce; print(sparkonce.__version__, sparkonce.__file__)'").stdout
    assert where.startswith(f"{sparkonce.__version__} ")
    assert str(ROOT / "src") not in where

    refused = shell("sparkonce new early && cd early && python job.py", BROKER="127.0.0.1:1")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-2].startswith("No Kafka answers at ")
    assert refused.stderr.splitlines()[-1].startswith("Next: sparkonce broker up")

    lines = "sparkonce new first-job && cd first-job\nsparkonce broker up --port 9092\n", "python job.py\n"
    for line in lines:
        assert f"```\n{line}```" in PAGE
    port = str(free_port())
    try:
        done = shell("".join(lines).replace("9092", port), BROKER=f"127.0.0.1:{port}")
    finally:
        shell("sparkonce broker down --delete")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert re.search("^all +1,000 orders, of 1,000 that were sent$", done.stdout, re.MULTILINE), done.stdout
