"""HDFS for tests: a name node and a data node in one Java process, from the jars of Hadoop's own tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkonce_lab.rig.java import find_java
from sparkonce_lab.rig.kafka.jars import resolve
from sparkonce_lab.rig.process import HOST, Server

VERSION = "3.4.1"

_JARS = (
    *(f"org.apache.hadoop:hadoop-client-{part}:{VERSION}" for part in ("minicluster", "runtime", "api")),
    "org.mockito:mockito-core:2.28.2",
    "junit:junit:4.13.2",
    "org.slf4j:slf4j-reload4j:1.7.36",
)

_MAIN = """
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class TestHdfs {
    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        Configuration conf = new Configuration();
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        conf.set("dfs.permissions.enabled", arguments[2]);
        conf.setInt("dfs.replication", 1);
        conf.setInt("dfs.namenode.safemode.extension", 0);
        conf.setLong("dfs.heartbeat.interval", 1);
        // Otherwise most closes take half a second: the client asks again after that time whether a block has arrived.
        conf.setInt("dfs.namenode.file.close.num-committed-allowed", 1);
        if (arguments.length > 3) {
            conf.set("dfs.datanode.data.dir", arguments[3]);
            conf.setLong("dfs.blocksize", 1 << 20);
        }
        boolean format = !new File(folder, "formatted").exists();
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf)
            .nameNodePort(Integer.parseInt(arguments[1])).numDataNodes(1)
            .manageDataDfsDirs(arguments.length == 3).format(format).build();
        cluster.waitActive();
        Files.writeString(Path.of(arguments[0], "formatted"), "");
        Files.writeString(Path.of(arguments[0], "up-" + ProcessHandle.current().pid()), "");
        Thread.currentThread().join();
    }
}
"""


class Hdfs(Server):
    """HDFS, see `Server`. The address for clients is `url`."""

    up_within_s = 240.0  # Java compiles the program at each start, perhaps on a busy machine.

    def __init__(self, folder: Path, *, permissions: bool = False, blocks: Path | None = None) -> None:
        super().__init__(folder)
        self._arguments = [str(permissions).lower(), *([str(blocks)] if blocks else [])]
        self._java = find_java()
        self._jars = resolve(_JARS)

    @property
    def url(self) -> str:
        return f"hdfs://{HOST}:{self.port}"

    def initialise(self) -> None:
        """Writes the server's program, which Java compiles at each start in about a second."""
        (self.folder / "TestHdfs.java").write_text(_MAIN)
        (self.folder / "log4j.properties").write_text(_LOGGING)

    def command(self) -> Sequence[str]:
        jars = ":".join([str(self.folder), *map(str, self._jars)])
        program = [str(self.folder / "TestHdfs.java"), str(self.folder), str(self.port), *self._arguments]
        return [self._java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, *program]

    def is_up(self) -> bool:
        """Returns True if the name node has left its safe mode."""
        return self.pid is not None and (self.folder / f"up-{self.pid}").exists()


_LOGGING = """
log4j.rootLogger=WARN,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d %p %c{1} %m%n
"""
