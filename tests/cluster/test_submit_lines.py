"""The lines of ``docs/submitting.md``, typed as they are there: what spark-submit makes of them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.kubernetes import Kubernetes
from cluster.submit import PROGRAM
from cluster.yarn import Yarn
from spark.harness import Job
from spark.kills import hold_at
from spark.pipeline import ENDED
from spark.processes import kill, path_of_tests
from sparkonce.protocol.state import Phase
from sparkonce.rig.child import session_of
from sparkonce.rig.kafka import Cluster
from sparkonce.rig.kafka.jars import spark_jars_folder

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs" / "submitting.md"
PACKAGES = """--packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')\""""
LIMIT_S = 600.0


def line_of(heading: str) -> str:
    """The line below a heading."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?```sh\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def typed(line: str, changes: Mapping[str, str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a line with other names in it, each of which must be there."""
    for name, value in changes.items():
        assert name in line, name
        line = line.replace(name, value)
    path = os.pathsep.join(
        [str(spark_jars_folder().parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **env}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_kubernetes_gets_a_pod_with_the_driver(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    with Kubernetes() as api:
        names = {
            "https://KUBERNETES:6443": api.url,
            "NAMESPACE": "streams",
            "REGISTRY/IMAGE:TAG": "here/jobs:1",
            "JOB": "job",
        }
        run = typed(line_of("Kubernetes, cluster mode"), names, tmp_path, KUBECONFIG=str(tmp_path / "config"))
        assert run.returncode == 0, run.stderr[-4000:]
        pod = api.of("Pod")
    (container,) = pod["spec"]["containers"]
    assert pod["path"].startswith("/api/v1/namespaces/streams/pods")
    assert container["image"] == "here/jobs:1"
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["restartPolicy"]) == ("spark", "Never")
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == ["--class", "org.apache.spark.deploy.PythonRunner", "local:///opt/jobs/job.py"]
    settings = next(one["data"]["spark.properties"] for one in api.sent if "spark.properties" in one.get("data", {}))
    for setting in re.findall(r"--conf (\S+?)=", line_of("Kubernetes, cluster mode")):
        assert f"{setting}=" in settings, setting
    assert "spark.jars=local\\:///opt/jobs/jars/spark-sql-kafka.jar," in settings


def test_yarn_starts_a_lost_driver_again(kafka: Cluster, shared: Path, tmp_path: Path) -> None:
    """The container of the driver is killed when a batch is decided and nothing of it committed."""
    job = Job(kafka.bootstrap, tmp_path / "job", rows=600, rows_per_batch=200, master="yarn", slots=6)
    job.config = replace(job.config, checkpoint=str(shared / "checkpoint"))
    config = job.config.to_json().replace("}}", "} }")  # YARN takes braces in pairs away, whatever is between them
    with Yarn(tmp_path / "yarn") as yarn, job:
        own = {
            "spark.yarn.jars": f"local:{spark_jars_folder()}/*",
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
            **{
                f"{env}.PYTHONPATH": path_of_tests()["PYTHONPATH"]
                for env in ("spark.yarn.appMasterEnv", "spark.executorEnv")
            },
        }
        more = " ".join(f"--conf {name}='{value}'" for name, value in own.items())
        names = {
            "/etc/hadoop/conf": str(yarn.conf),
            PACKAGES: f"--jars {','.join(job.config.jars)}",
            "--archives environment.tar.gz#environment": more,
            "./environment/bin/python": sys.executable,
            "--num-executors 3 --executor-cores 2 --executor-memory 4g --driver-memory 2g": "--num-executors 2 "
            "--executor-memory 512m --driver-memory 512m",
            "    job.py": f"    {PROGRAM} {shlex.quote(config)}",
            "JOB": "job",
        }
        finishing = hold_at(Phase.FINISHING.name, job, lambda batch: batch == 1)
        run = typed(line_of("YARN"), names, tmp_path)
        assert run.returncode == 0, run.stderr[-4000:]
        for pid in session_of(os.getsid(finishing.wait(limit_s=LIMIT_S).pid)):
            kill(pid)
        job.gate.wait_for(lambda: bool(job.gate.at(ENDED)), "another driver has written all", limit_s=LIMIT_S)
        (ended,) = job.gate.at(ENDED)
        assert (ended.told["failed"], ended.pid == finishing.arrivals[0].pid) == ("", False)
        verdict = job.judge()
        assert verdict.is_exactly_once, verdict


def test_standalone_clusters_refuse_python_in_cluster_mode(tmp_path: Path) -> None:
    line = "spark-submit --master spark://127.0.0.1:7077 --deploy-mode cluster job.py"
    run = typed(line, {}, tmp_path)
    assert run.returncode == 1
    said = re.search(r'Spark refuses Python there: "(.*?)"', PAGE.read_text(), re.DOTALL)
    assert said is not None
    assert " ".join(said[1].split()) in run.stderr
