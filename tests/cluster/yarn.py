"""YARN for tests: a resource manager and a node manager in one Java process, from the jars that Hadoop tests with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from sparkonce.rig.kafka.jars import find_java, resolve
from sparkonce.rig.servers.hdfs import Hdfs

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
    """See `Server`. Its settings for clients are in `conf`."""

    up_within_s = 300.0

    @property
    def conf(self) -> Path:
        """For ``HADOOP_CONF_DIR``."""
        return self.folder / "conf"

    def initialise(self) -> None:
        super().initialise()
        (self.folder / "TestYarn.java").write_text(_MAIN)

    def env(self) -> Mapping[str, str]:
        """With Java for its containers."""
        return {**os.environ, "JAVA_HOME": str(Path(find_java()).resolve().parents[1])}

    def containers(self, words: str) -> list[int]:
        """Returns the processes that run in containers and have these words in their command line."""
        running = psutil.process_iter(["cwd", "cmdline"])
        return [
            one.pid
            for one in running
            if str(one.info["cwd"]).startswith(f"{self.folder}/") and words in " ".join(one.info["cmdline"] or ())
        ]

    def command(self) -> Sequence[str]:
        jars = ":".join([str(self.folder), *map(str, [*self._jars, *resolve(_JARS)])])
        flags = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dtest.build.data={self.folder}")
        modules = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
        return [self._java, *flags, *modules, "-cp", jars, str(self.folder / "TestYarn.java"), str(self.folder)]
