from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sparkonce
from sparkonce.cli.main import app


@pytest.mark.parametrize("command", [["-m", "sparkonce"], ["-c", "from sparkonce.cli.main import app; app()"]])
def test_the_version_is_said(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"sparkonce {sparkonce.__version__}\n"


def test_the_broker_has_its_old_name_beside_its_new_one() -> None:
    commands = CliRunner().invoke(app, ["--help"]).stdout
    assert " broker " in commands
    assert " kafka " not in commands
    assert CliRunner().invoke(app, ["kafka", "status", "--dir", "/nowhere"]).stdout.startswith("No broker was ever")


def test_errors_are_found_by_the_package_alone() -> None:
    code = "import sparkonce; sparkonce.errors.PreflightError"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_project_is_written_and_nothing_is_written_over(tmp_path: Path) -> None:
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


def test_a_project_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["new", str(tmp_path / "file" / "job")])
    assert done.exit_code == 1
    assert "cannot be written" in done.stderr
