import ast
import json
import os
import re
import shlex
from importlib.metadata import EntryPoints

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import sparkonce
from integration.files_scene import Life
from sparkonce.cli.main import app
from sparkonce.cli.output import OutputFormat, show_checks
from sparkonce.operate.checkpoint import Check
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files.sink import FilesSink


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "is not KEY=VALUE"),
        ("spark.master=yarn", "--conf spark.master: only the way to the checkpoint's store"),
        ("spark.hadoop.fs.defaultFS=hdfs://nn", "--conf spark.hadoop.fs.defaultFS: only"),
        ("spark.password=very-secret", "--conf spark.password: only"),
    ],
)
def test_a_setting_that_is_not_the_stores_is_refused_by_name(given, said):
    done = CliRunner().invoke(app, ["explain", "s3a://bucket/a", "--conf", given])
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())
    assert "very-secret" not in done.output


def test_a_long_cell_is_wrapped_for_a_terminal_and_no_line_has_trailing_blanks(capsys, monkeypatch):
    checks = [
        Check(name="Java", ok=True, says="It is Java 17."),
        Check(name="next start", ok=False, says="words that go on " * 20, next_step="Restore it."),
    ]
    assert show_checks(checks, OutputFormat.TABLE) is False
    whole = capsys.readouterr().out.splitlines()
    assert [line for line in whole if line != line.rstrip()] == []
    assert max(map(len, whole)) > 300, "programs get whole lines"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((100, 24)))
    show_checks(checks, OutputFormat.TABLE)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert ([line for line in shown if line != line.rstrip()], max(map(len, shown)) <= 100) == ([], True)


def test_version_and_help_are_commands_too_and_a_folder_that_is_not_there_is_called_so(tmp_path):
    assert CliRunner().invoke(app, ["version"]).stdout == f"sparkonce {sparkonce.__version__}\n"
    assert "checkpoint" in CliRunner().invoke(app, ["help"]).stdout
    done = CliRunner().invoke(app, ["checkpoint", "show", str(tmp_path / "gone")])
    assert (done.exit_code, "does not exist, or is no folder" in done.stderr) == (1, True)


def test_a_command_whose_package_is_not_installed_says_what_brings_it(monkeypatch):
    monkeypatch.setattr("sparkonce.cli.main.entry_points", lambda **_: EntryPoints())
    assert "pip install ./packages/sparkonce-lab" in " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    for line in (["demo"], ["verify", "--faults", "3"], ["broker", "up", "--help"]):
        done = CliRunner().invoke(app, line)
        assert (done.exit_code, f"The command '{line[0]}' is in a package" in done.stderr) == (1, True)
        assert "Next: pip install ./packages/sparkonce-lab, in the clone" in done.stderr


@pytest.mark.parametrize(
    ("typo", "meant"), [("verfy", "'verify'"), ("demos", "'demo'"), ("explian", "'explain'"), ("brocker", "'broker'")]
)
def test_a_misspelled_command_is_suggested_whoever_brings_it(typo, meant):
    done = CliRunner().invoke(app, [typo])
    assert (done.exit_code, f"No such command '{typo}'. Did you mean {meant}?" in done.stderr) == (2, True)

    done = CliRunner().invoke(app, ["qqqq"])
    assert (done.exit_code, "No such command 'qqqq'." in done.stderr) == (2, True)
    assert "Did you mean" not in done.stderr


def test_a_project_is_written_and_nothing_is_written_over(tmp_path):
    folder = tmp_path / "a new" / "job"
    assert CliRunner().invoke(app, ["new", str(folder)]).exit_code == 0
    assert sorted(one.name for one in folder.iterdir()) == [".gitignore", "README.md", "job.py", "requirements.txt"]
    ast.parse((folder / "job.py").read_text())
    (folder / "job.py").write_text("mine")
    again = CliRunner().invoke(app, ["new", str(folder)])
    assert again.exit_code == 1
    assert "job.py" in again.stderr
    assert "Next: Name another folder." in again.stderr
    assert (folder / "job.py").read_text() == "mine"

    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["new", str(tmp_path / "file" / "job")])
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr


def test_staged_files_are_listed_by_their_transactions(tmp_path):
    life = Life(FilesSink(str(tmp_path), format="json", name="out"))
    rows = pa.table({"n": [1, 2]})
    handle, _ = life.prepare(rows, batch=3, slot=1), life.run_batch(rows, batch=2)
    command = ["transactions", "list", "--system", "files", "--settings", f"path={shlex.quote(str(tmp_path))}"]
    (one,) = json.loads(CliRunner().invoke(app, [*command, "--format=json"]).output)
    assert (one["name"], one["kind"], one["batch"], one["slot"], one["age_s"]) == (handle["name"], "staged", 3, 1, -1)
    assert one["run"] == "7-deadbeef"
    assert len(one["holds"]) == 1
    assert str(handle["name"]) in CliRunner().invoke(app, command).output
    assert life.commit(handle) == [Outcome.COMMITTED]
    assert "Nothing of sparkonce is open" in CliRunner().invoke(app, command).output


def test_files_are_compacted_and_both_formats_say_so(tmp_path):
    life = Life(FilesSink(str(tmp_path), name="out"))
    command = ["files", "compact", str(tmp_path), "--keep-batches", "2"]
    assert "There are no whole batches here." in CliRunner().invoke(app, command).output
    for batch in range(5):
        life.run_batch(pa.table({"n": [batch]}), batch=batch)
    shown = CliRunner().invoke(app, [*command, "--dry-run"]).output
    assert "3 to 1" in shown
    (one,) = json.loads(CliRunner().invoke(app, [*command, "--format", "json"]).output)
    assert (one["sink"], one["rows"], one["files_before"], one["files_after"], one["left"]) == ("out", 3, 3, 1, 3)
    (one,) = json.loads(CliRunner().invoke(app, [*command, "--delete-after", "0", "--format", "json"]).output)
    assert (one["deleted"], one["left"], one["done"]) == (3, 0, True)
    refused = CliRunner().invoke(app, [*command, "--settings", "region_name=x"])
    assert (refused.exit_code, "A local folder has no options" in refused.output) == (1, True)


@pytest.mark.parametrize(("line", "words"), [("path", "no '='"), ("path='x", "Close the quotes")])
def test_a_line_of_settings_that_cannot_be_read_is_refused(line, words):
    refused = CliRunner().invoke(app, ["transactions", "list", "--system", "files", "--settings", line])
    assert (refused.exit_code, words in refused.output) == (1, True)
