import json
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sparkonce.cli.main import app
from sparkonce.errors import ConfigurationError
from sparkonce_lab.rig.kafka import Cluster, detached
from sparkonce_lab.rig.process import is_free, is_running


def kafka(*arguments):
    return CliRunner().invoke(app, ["broker", *map(str, arguments)])


def test_a_taken_port_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_free(port)
        broker = Cluster(folder=tmp_path, port=port).brokers[0]
        with pytest.raises(ConfigurationError, match=f"Port {port} .* is taken"):
            broker.launch()


def test_data_of_another_number_of_nodes_is_refused(tmp_path):
    cluster = Cluster(folder=tmp_path, nodes=2)
    broker = cluster.brokers[0]
    broker.meta_file.parent.mkdir(parents=True)
    broker.meta_file.write_text("cluster.id=abc\n")
    assert cluster.cluster_id == "abc"
    with pytest.raises(ConfigurationError, match=r"belongs to 1 node\(s\), but 2 are requested"):
        cluster.launch()


def test_an_unused_temporary_folder_goes_with_close(tmp_path):
    cluster = Cluster()
    assert cluster.folder.is_dir()
    cluster.close()
    cluster.close()
    assert not cluster.folder.exists()

    missing = tmp_path / "missing"
    assert kafka("status", "--dir", missing).exit_code == 1
    ended = kafka("down", "--dir", missing, "--format=json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["ended"] == []
    assert not missing.exists()

    (tmp_path / "cluster.json").write_text("{")
    result = kafka("status", "--dir", tmp_path)
    assert result.exit_code == 1
    assert "cluster.json cannot be read" in result.stderr
    assert "Next:" in result.stderr


@pytest.fixture
def stranger(tmp_path):
    mark = str(tmp_path / "node-1" / "server.properties")
    program = "import time; print('up', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, mark], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        yield process.pid, mark
        process.kill()


def test_another_process_with_the_recorded_number_is_left_alone(tmp_path, stranger):
    def record(folder, *nodes):
        fields = [
            {"node_id": node_id, "pid": pid, "address": f"127.0.0.1:{node_id}", "mark": mark}
            for node_id, (pid, mark) in enumerate(nodes, 1)
        ]
        state = {"folder": str(folder), "version": "4.3.0", "bootstrap": "127.0.0.1:1", "nodes": fields}
        (folder / "cluster.json").write_text(json.dumps(state))

    pid, mark = stranger
    record(tmp_path, (pid, "/another" + mark))
    assert json.loads(kafka("status", "--dir", tmp_path, "--format=json").stdout)["state"] == "stopped"
    assert "Nothing is running" in kafka("down", "--dir", tmp_path).stdout
    assert is_running(pid, mark)

    record(tmp_path, stranger, (stranger[0], "/gone"))
    assert detached.status(tmp_path).state == "partly running"
    result = kafka("up", "--dir", tmp_path)
    assert result.exit_code == 1
    assert "not running: [2]" in result.stderr
    assert "sparkonce broker down" in result.stderr


def test_delete_takes_only_what_is_ours(tmp_path):
    folder = tmp_path / "broker"
    Cluster(folder=folder).brokers[0].write_properties()
    (folder / "notes.txt").write_text("mine")
    assert kafka("down", "--dir", folder, "--delete").exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "num.partitions"], "is not KEY=VALUE"),
        (["--set", "=3"], "is not KEY=VALUE"),
        (["--topic", "orders:many"], "is not NAME or NAME:PARTITIONS"),
        (["--topic", "orders:0"], "is not NAME or NAME:PARTITIONS"),
        (["--topic", ":3"], "is not NAME or NAME:PARTITIONS"),
        (["--version", "not a version"], "is not group:artifact:version"),
    ],
)
def test_a_mistake_is_a_message_and_not_a_traceback(tmp_path, arguments, message):
    result = kafka("up", "--dir", tmp_path, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output
