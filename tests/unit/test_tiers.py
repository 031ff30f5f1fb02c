"""The first tier leaves tests out, and every run keeps the time it took: seen in pytest runs of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tiers import AT_MOST_IN_RUNS, IN_ALL, rank

TESTS = Path(__file__).parent.parent
MARKED = """
import pytest

@pytest.mark.drawn(2)
@pytest.mark.parametrize("number", range(12))
def test_of_many(number): pass

@pytest.mark.drawn(1, "both")
def test_one(): pass

@pytest.mark.drawn(1, "both")
def test_other(): pass

@pytest.mark.slow
@pytest.mark.drawn(1, "both")
def test_long_form(): pass

@pytest.fixture
def server(): return 1

def test_always(server): pass
"""


def collected(folder: Path, *arguments: str, text: str = MARKED) -> tuple[set[str], str]:
    """Returns the names of the tests that a run takes, and what it prints."""
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text('pytest_plugins = ("tiers", "timings")\n')
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\nmarkers =\n  slow: long\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    if "-n" in arguments:
        command += ["-p", "xdist"]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    said = run.stdout
    return set(re.findall(r"test_it\.py::(\S+) PASSED", said)), said


def test_a_group_is_drawn_and_what_is_not_marked_always_runs(tmp_path: Path) -> None:
    found, said = collected(tmp_path, "-m", "not slow", "--draw", "abc")
    assert len([one for one in found if one.startswith("test_of_many")]) == 2
    assert len(found & {"test_one", "test_other"}) == 1
    assert "test_always" in found
    assert len(found) == 4
    assert "drawn by abc: 3 of 14 tests in 2 groups. The same again: python3 dev.py test --draw abc." in said


def test_processes_of_xdist_draw_the_same_together(tmp_path: Path) -> None:
    alone, _ = collected(tmp_path, "-m", "not slow", "--draw", "abc")
    _, said = collected(tmp_path, "-m", "not slow", "--draw", "abc", "-n", "2", "--dist", "loadgroup")
    assert "4 passed" in said
    assert {name for name in alone if name in said} == alone
    assert "drawn by abc: 3 of 14 tests" in said


def test_the_second_tier_draws_from_the_dearest_groups_only(tmp_path: Path) -> None:
    text = MARKED.replace("drawn(2)", "drawn(2, 'the verifier')")
    found, said = collected(tmp_path, "-m", "not slow", "--all", "--draw", "abc", text=text)
    assert len([one for one in found if one.startswith("test_of_many")]) == IN_ALL["the verifier"]
    assert found >= {"test_one", "test_other", "test_always"}
    assert "drawn by abc: 3 of 12 tests in 1 groups. The same again: python3 dev.py test --all --draw abc." in said


def test_the_dearest_groups_are_groups() -> None:
    sources = {file.name: file.read_text() for file in TESTS.rglob("test_*.py")}
    sources["injuries.py"] = (TESTS / "spark" / "injuries.py").read_text()
    for group in IN_ALL:
        file, _, function = group.partition("::")
        if function:
            assert f"def {function}(" in sources[file]
        else:
            assert any(f'"{group}")' in source for source in sources.values()), group


def test_without_a_seed_all_are_run(tmp_path: Path) -> None:
    assert len(collected(tmp_path)[0]) == 16


def test_a_group_of_which_too_few_are_drawn_is_refused(tmp_path: Path) -> None:
    found, said = collected(tmp_path, "--draw", "abc", text=MARKED.replace("range(12)", "range(25)"))
    assert found == set()
    assert "drawn(2) of 25 tests, fewer than one in 12. Draw 3 or more." in said


def test_every_test_of_a_group_comes_up() -> None:
    keys = [f"test[{number}]" for number in range(AT_MOST_IN_RUNS)]
    drawn = [min(keys, key=lambda key, seed=f"commit {run}": rank(seed, key)) for run in range(100)]
    assert set(drawn) == set(keys)


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    """Groups as tests/conftest.py does: by file, unless a test names another group."""
    noting = "import os, pathlib, pytest\n\n@pytest.mark.parametrize('number', range(6))\ndef test_it(number):\n"
    noting += "    pathlib.Path(__file__).with_suffix(f'.{os.environ[\"PYTEST_XDIST_WORKER\"]}').touch()\n"
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(noting)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\nmarkers =\n  killed: killed\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300).stdout
    assert "12 passed" in said
    workers = {name: [one.suffix for one in tmp_path.glob(f"test_{name}.gw*")] for name in ("one", "two")}
    assert {name: len(found) for name, found in workers.items()} == {"one": 1, "two": 1}


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("tests/a.py::test[x@y]@group", "tests/a.py::test[x@y]"),
        ("tests/a.py::test[x@y]", "tests/a.py::test[x@y]"),
        ("tests/a.py::test@spark", "tests/a.py::test"),
    ],
)
def test_a_group_is_no_part_of_a_name(node: str, name: str) -> None:
    from timings import without_group

    assert without_group(node) == name


def test_what_each_test_and_fixture_took_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "first.jsonl"
    _, said = collected(tmp_path, "--timings", str(kept), "-n", "2", "--dist", "loadgroup")
    assert "16 passed" in said
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"setup", "call", "teardown", "fixture"}
    assert len([line for line in lines if line["kind"] == "call"]) == 16
    assert {line["name"] for line in lines if line["kind"] == "fixture"} >= {"server", "number"}
    assert list(kept.parent.iterdir()) == [kept]


def test_they_are_summed_compared_and_kept_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timings

    run = tmp_path / "first.jsonl"
    mutant = "tests/model/test_mutants.py::test_a_broken_rule_is_found[commits early]"
    lines = [
        {"kind": "call", "name": mutant, "seconds": 2.0},
        {"kind": "setup", "name": mutant, "seconds": 0.5},
        {"kind": "call", "name": "tests/model/test_mutants.py::test_other", "seconds": 1.0},
        {"kind": "fixture", "name": "broker", "seconds": 4.0},
    ]
    run.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recorded = timings.Recorded.read(run)
    kept = tmp_path / "timings.csv"
    timings.keep(recorded, "all", kept)
    assert timings.read_kept(kept) == {"model/test_mutants.py": {"all": 3.5}}
    said = timings.summary(recorded, {"model/test_mutants.py": {"first": 3.0}}, "first")
    assert "2 tests, 4 s of workers" in said
    assert re.search(r"4\.0  broker", said)
    assert "3 s before, 4 now" in said
    assert re.search(r"\+0\.5  model/test_mutants\.py", said)


def test_mutants_are_kept_beside_what_they_took_before(tmp_path: Path) -> None:
    import timings

    kept, test = tmp_path / "mutants.csv", "model/test_mutants.py::test_a_broken_rule_is_found"
    found = [timings.Test(*f"{test}[{mutant}]".split("::"), 2.5) for mutant in ("commits early", "new")]
    kept.write_text(f"broken,mutant,caught by,before,seconds\nprotocol,commits early,{test},9.0,\n")
    timings.keep_mutants(timings.Recorded(tuple(found), Counter()), kept)
    rows = [f"protocol,commits early,{test},9.0,2.5", f"protocol,new,{test},,2.5"]
    assert kept.read_text().splitlines()[1:] == rows


def test_what_was_proved_is_drawn_until_something_changes(tmp_path: Path) -> None:
    from tiers import Proved

    file, test = tmp_path / "rule.py", tmp_path / "test_rule.py"
    file.write_text("RIGHT = True\n")
    test.write_text("def test_it(): pass\n")
    proved = Proved(tmp_path / "rule.digest", (file, test), also="4.0")
    assert proved.drawn(1, "rules") == []
    assert proved.prove("-q", str(test)) == 0
    assert [mark.args for mark in proved.drawn(1, "rules")] == [(1, "rules")]
    assert Proved(proved.kept, proved.files, also="4.1").drawn(1, "rules") == []
    file.write_text("RIGHT = False\n")
    assert proved.drawn(1, "rules") == []


def test_what_fails_is_not_kept_as_proved(tmp_path: Path) -> None:
    from tiers import Proved

    test = tmp_path / "test_rule.py"
    test.write_text("def test_it(): assert False\n")
    proved = Proved(tmp_path / "rule.digest", (test,))
    proved.kept.write_text(proved.digest())
    assert proved.prove("-q", str(test)) == 1
    assert proved.drawn(1, "rules") == []
