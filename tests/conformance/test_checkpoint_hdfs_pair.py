"""A checkpoint on HDFS with two name nodes, which take turns being active."""

from __future__ import annotations

import secrets
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

from conformance.checkpoint_suite import raced
from eventually import eventually
from jvm import hadoop_files
from shared_servers import USES_HDFS
from sparkonce.errors import SparkonceError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken, may_pass
from sparkonce.storage.hdfs import HdfsFiles
from sparkonce_lab.rig.process import HOST, free_port
from sparkonce_lab.rig.servers.hdfs import Hdfs

pytestmark = [USES_HDFS, pytest.mark.slow]


SERVICE = "pair"

_MAIN = """
import com.sun.net.httpserver.HttpServer;
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.ha.HAServiceProtocol.RequestSource;
import org.apache.hadoop.ha.HAServiceProtocol.StateChangeRequestInfo;
import org.apache.hadoop.hdfs.qjournal.server.JournalNode;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

public class TestHdfs {
    public static void main(String[] given) throws Exception {
        DefaultMetricsSystem.setMiniClusterMode(true);  // several servers in one process
        Configuration conf = new Configuration();
        for (int at = 2; at < given.length; at += 2) {
            conf.set(given[at], given[at + 1]);
        }
        if (given[1].equals("storage")) {
            JournalNode journal = new JournalNode();
            journal.setConf(conf);
            journal.start();
            DataNode.createDataNode(new String[0], conf);
        } else {
            conf.set("dfs.ha.namenode.id", given[1]);
            if (given[1].equals("nn1") && !new File(given[0], "name").exists()) {
                NameNode.format(conf);
            }
            NameNode node = NameNode.createNameNode(new String[0], conf);
            HttpServer control = HttpServer.create(
                new InetSocketAddress("127.0.0.1", conf.getInt("test.control", 0)), 0);
            control.createContext("/", asked -> {
                byte[] answer = "done".getBytes();
                int status = 200;
                try {
                    StateChangeRequestInfo request = new StateChangeRequestInfo(RequestSource.REQUEST_BY_USER);
                    if (asked.getRequestURI().getPath().equals("/active")) {
                        node.getRpcServer().transitionToActive(request);
                    } else if (asked.getRequestURI().getPath().equals("/standby")) {
                        node.getRpcServer().transitionToStandby(request);
                    } else {
                        answer = String.valueOf(node.isInSafeMode()).getBytes();
                    }
                } catch (Throwable error) {
                    error.printStackTrace();
                    answer = error.toString().getBytes();
                    status = 500;
                }
                asked.sendResponseHeaders(status, answer.length);
                asked.getResponseBody().write(answer);
                asked.close();
            });
            control.start();
        }
        Files.writeString(Path.of(given[0], "up-" + ProcessHandle.current().pid()), "");
        Thread.currentThread().join();
    }
}
"""


class _Node(Hdfs):
    def __init__(self, folder: Path, role: str, settings: Mapping[str, str]) -> None:
        super().__init__(folder)
        self.role = role
        self._settings = settings

    def initialise(self) -> None:
        super().initialise()
        (self.folder / "TestHdfs.java").write_text(_MAIN)

    def command(self) -> Sequence[str]:
        command = list(super().command())
        program = command.index(str(self.folder / "TestHdfs.java"))
        own = {
            "dfs.namenode.name.dir": f"file://{self.folder}/name",
            "dfs.journalnode.edits.dir": f"{self.folder}/journal",
            "dfs.datanode.data.dir": f"file://{self.folder}/blocks",
            "test.control": str(self.port),
        }
        settings = [text for pair in {**self._settings, **own}.items() for text in pair]
        return [*command[: program + 1], str(self.folder), self.role, *settings]

    def ask(self, what: str) -> str:
        """Switches the name node to ``active`` or ``standby``, or queries whether it is in safe mode (``mode``)."""
        with urllib.request.urlopen(f"http://{self.address}/{what}", timeout=60) as answer:
            return bytes(answer.read()).decode()


class HdfsPair:
    """A pair of name nodes, used as a context manager. The first one starts out active.

    Attributes:
        url: ``hdfs://NAME_SERVICE``.
        settings: The client settings.
    """

    url = f"hdfs://{SERVICE}"

    def __init__(self, folder: Path) -> None:
        journal, ports = free_port(), {"nn1": free_port(), "nn2": free_port()}
        provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        self.settings = {
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": ",".join(ports),
            f"dfs.client.failover.proxy.provider.{SERVICE}": provider,
            **{f"dfs.namenode.rpc-address.{SERVICE}.{name}": f"{HOST}:{port}" for name, port in ports.items()},
        }
        of_servers = {
            **self.settings,
            "fs.defaultFS": self.url,
            **{f"dfs.namenode.http-address.{SERVICE}.{name}": f"{HOST}:{free_port()}" for name in ports},
            "dfs.ha.standby.checkpoints": "false",
            "dfs.namenode.shared.edits.dir": f"qjournal://{HOST}:{journal}/{SERVICE}",
            "dfs.journalnode.rpc-address": f"{HOST}:{journal}",
            "dfs.journalnode.http-address": f"{HOST}:0",
            "dfs.datanode.address": f"{HOST}:0",
            "dfs.datanode.http.address": f"{HOST}:0",
            "dfs.datanode.ipc.address": f"{HOST}:0",
            "dfs.replication": "1",
            "dfs.heartbeat.interval": "1",
            "dfs.ha.tail-edits.period": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.file.close.num-committed-allowed": "1",
        }
        self._storage = _Node(folder / "storage", "storage", of_servers)
        self._nodes = [_Node(folder / name, name, of_servers) for name in ports]

    @property
    def active(self) -> _Node:
        """The name node that is active, unless it was killed."""
        return self._nodes[0]

    def take_over(self) -> None:
        """Makes the standby active, no matter what the active name node does. The journal fences the active one."""
        self._nodes.reverse()
        self.active.ask("active")

    def restart_other(self) -> None:
        self._nodes[1].restart()

    def __enter__(self) -> Self:
        try:
            first, second = self._nodes
            with ThreadPoolExecutor(1) as pool:
                storage = pool.submit(self._storage.start)
                # The first one waits for the journal, in order to format it.
                first.start()
                storage.result()
            shutil.copytree(first.folder / "name", second.folder / "name")
            (second.folder / "name" / "in_use.lock").unlink(missing_ok=True)
            second.start()
            first.ask("active")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in (*self._nodes, self._storage):
            node.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[HdfsPair]:
    try:
        opened = HdfsPair(tmp_path_factory.mktemp("pair"))
    except SparkonceError as error:
        pytest.skip(f"HDFS is not available here: {error.message}")
    with opened:
        yield opened


def killed(pair: HdfsPair) -> None:
    pair.active.kill()
    pair.take_over()
    pair.restart_other()


def frozen(pair: HdfsPair) -> None:
    """The old active name node is frozen. When it wakes up, it still believes for a moment that it is active."""
    old = pair.active
    old.pause()
    pair.take_over()
    old.resume()
    old.restart()


@pytest.mark.parametrize("how", [killed, frozen])
def test_races_while_the_active_name_node_dies(pair, jvm, how):
    """If a put is reported as successful, its data is there afterwards, and no other put is reported as successful."""

    def found_at_last(files: CheckpointFiles, name: str) -> bytes | None:
        def ask() -> list[bytes | None]:
            with suppress(OSError):
                return [files.read(name)]
            return []

        return eventually(ask, f"{name} can be asked for")[0]

    @contextmanager
    def meanwhile(change: Callable[[], object]) -> Iterator[list[int]]:
        """Repeats a change in the background. Yields a list that grows with each change."""
        changes: list[int] = []
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                change()
                changes.append(len(changes))

        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(work)
            try:
                yield changes
            finally:
                over.set()
            changing.result(120)

    def new_url() -> str:
        return f"{HdfsPair.url}/checkpoints/{secrets.token_hex(6)}"

    url = new_url()
    racers: list[CheckpointFiles] = [
        *(hadoop_files(jvm, url, pair.settings) for _ in range(2)),
        *(HdfsFiles(url, pair.settings) for _ in range(2)),
    ]
    answers: dict[str, list[Any]] = {}
    with meanwhile(lambda: how(pair)) as changes:
        while len(changes) < 4:
            name = f"races/{len(answers)}"
            answers[name] = raced(
                [lambda one=one, side=side: one.put(name, b"%d" % side) for side, one in enumerate(racers)]  # noqa: B023
            )
    standing = {name: found_at_last(racers[0], name) for name in answers}
    told = [answer for found in answers.values() for answer in found]
    unknown, refused = (sum(isinstance(one, kind) for one in told) for kind in (PutUnknownError, OSError))
    print(  # noqa: T201 - numbers for docs/operations.md, shown with -s
        f"{how.__name__}: {len(answers)} races, {len(changes)} fail-overs, {told.count(Landed())} landed, {unknown} "
        f"unknown, {refused} refused"
    )
    for name, found in answers.items():
        winners = [b"%d" % side for side, answer in enumerate(found) if answer == Landed()]
        own = [b"%d" % side for side, one in enumerate(found) if one == Taken(standing=b"%d" % side)]
        doubted = [b"%d" % side for side, one in enumerate(found) if isinstance(one, PutUnknownError)]
        nobody = [None] if not winners and not own else []
        assert standing[name] in winners + own + doubted + nobody, (name, found)
        assert set(winners) <= {standing[name]}, (name, found)
        for answer in found:
            assert not isinstance(answer, Taken) or answer.standing == standing[name]
            assert not isinstance(answer, OSError) or may_pass(answer), answer
