"""The lines of ``docs/submitting.md``, typed exactly as they are there, and what spark-submit does with them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cluster.submit import PROGRAM
from spark.harness import Job, hold_at, kill, path_of_tests
from spark.pipeline import ENDED
from sparkonce_lab.rig.child import session_of
from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import resolve, spark_jars_folder
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]


_JARS = (
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.glassfish.jaxb:jaxb-runtime:2.3.9",
)

_MAIN = """
import java.io.FileOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class TestYarn {
    public static void main(String[] given) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.setInt("yarn.nodemanager.resource.memory-mb", 6144);
        conf.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        conf.set("yarn.nodemanager.vmem-check-enabled", "false");
        conf.set("yarn.nodemanager.pmem-check-enabled", "false");
        conf.set("yarn.nodemanager.disk-health-checker.enable", "false");
        conf.set("yarn.nodemanager.delete.debug-delay-sec", "3600");
        conf.set("yarn.resourcemanager.am.max-attempts", "4");
        conf.setClass("yarn.resourcemanager.scheduler.class",
            org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler.class,
            org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler.class);
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
        cluster.init(conf);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60000)) {
            throw new IllegalStateException("no node manager");
        }
        Path site = Path.of(given[0], "conf", "yarn-site.xml");
        Files.createDirectories(site.getParent());
        try (FileOutputStream out = new FileOutputStream(site.toFile())) {
            cluster.getConfig().writeXml(out);
        }
        Files.writeString(Path.of(given[0], "up-" + ProcessHandle.current().pid()), "");
        Thread.currentThread().join();
    }
}
"""


class Yarn(Hdfs):
    """Its settings for clients are in the folder ``conf``."""

    up_within_s = 300.0

    def initialise(self) -> None:
        super().initialise()
        (self.folder / "TestYarn.java").write_text(_MAIN)

    def env(self) -> Mapping[str, str]:
        """Returns the settings, with Java for its containers."""
        return {**os.environ, "JAVA_HOME": str(Path(find_java()).resolve().parents[1])}

    def command(self) -> Sequence[str]:
        jars = ":".join([str(self.folder), *map(str, [*self._jars, *resolve(_JARS)])])
        flags = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={self.folder}")
        modules = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
        return [self._java, *flags, *modules, "-cp", jars, str(self.folder / "TestYarn.java"), str(self.folder)]


PAGE = Path(__file__).parents[2] / "docs" / "submitting.md"
PACKAGES = """--packages "$(python -c 'import sparkonce; print(sparkonce.spark_packages())')\""""
LIMIT_S = 600.0


def line_of(heading: str) -> str:
    """The line below a heading."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?```sh\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def typed(line: str, changes: Mapping[str, str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a line with some names replaced, each of which must occur in it."""
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


def test_kubernetes_gets_a_pod_with_the_driver(tmp_path):
    sent: list[dict[str, Any]] = []

    class Api(BaseHTTPRequestHandler):
        """Stores each object that is sent, with the ``path`` that it was sent to. It initially has none."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            one = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent.append({**one, "path": self.path})
            one["metadata"]["uid"] = f"{len(sent)}"
            self._answer(201, one)

        do_PATCH = do_PUT = do_POST  # noqa: N815 - named by the server's base

        def do_GET(self) -> None:
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

        def _answer(self, code: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "config").write_text("")
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        names = {
            "https://KUBERNETES:6443": f"http://127.0.0.1:{api.server_port}",
            "NAMESPACE": "streams",
            "REGISTRY/IMAGE:TAG": "here/jobs:1",
            "JOB": "job",
        }
        run = typed(line_of("Kubernetes, cluster mode"), names, tmp_path, KUBECONFIG=str(tmp_path / "config"))
        api.shutdown()
    assert run.returncode == 0, run.stderr[-4000:]
    pod = next(one for one in reversed(sent) if one["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert pod["path"].startswith("/api/v1/namespaces/streams/pods")
    assert container["image"] == "here/jobs:1"
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["restartPolicy"]) == ("spark", "Never")
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == ["--class", "org.apache.spark.deploy.PythonRunner", "local:///opt/jobs/job.py"]
    settings = next(one["data"]["spark.properties"] for one in sent if "spark.properties" in one.get("data", {}))
    for setting in re.findall(r"--conf (\S+?)=", line_of("Kubernetes, cluster mode")):
        assert f"{setting}=" in settings, setting
    assert "spark.jars=local\\:///opt/jars/spark-sql-kafka.jar," in settings


def test_yarn_starts_a_lost_driver_again(kafka, shared, tmp_path):
    """The driver's container is killed when a batch is decided and none of it is committed."""
    job = Job(kafka.bootstrap, tmp_path / "job", rows=600, rows_per_batch=200, master="yarn", slots=6)
    job.config = replace(job.config, checkpoint=str(shared / "checkpoint"))
    config = job.config.to_json().replace("}}", "} }")  # YARN removes pairs of braces, whatever is between them
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
            "/etc/hadoop/conf": str(yarn.folder / "conf"),
            PACKAGES: f"--jars {','.join(job.config.jars)}",
            "--archives environment.tar.gz#environment": more,
            "./environment/bin/python": sys.executable,
            "--num-executors 3 --executor-cores 2 --executor-memory 4g --driver-memory 2g": "--num-executors 2 "
            "--executor-memory 512m --driver-memory 512m",
            "    job.py": f"    {PROGRAM} {shlex.quote(config)}",
            "JOB": "job",
        }
        finishing = hold_at("FINISHING", job, batch=1)
        run = typed(line_of("YARN"), names, tmp_path)
        assert run.returncode == 0, run.stderr[-4000:]
        for pid in session_of(os.getsid(finishing.wait(limit_s=LIMIT_S).pid)):
            kill(pid)
        job.gate.wait_for(lambda: bool(job.gate.at(ENDED)), "another driver has written all", limit_s=LIMIT_S)
        (ended,) = job.gate.at(ENDED)
        assert (ended.told["failed"], ended.pid == finishing.arrivals[0].pid) == ("", False)
        assert job.judge() == ""


def test_standalone_clusters_refuse_python_in_cluster_mode(tmp_path):
    line = "spark-submit --master spark://127.0.0.1:7077 --deploy-mode cluster job.py"
    run = typed(line, {}, tmp_path)
    assert run.returncode == 1
    assert "not supported for python applications on standalone clusters" in run.stderr
