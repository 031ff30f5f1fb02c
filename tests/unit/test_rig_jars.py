import os
import stat

import pytest

from sparkonce.errors import ConfigurationError, PreflightError
from sparkonce_lab.rig.java import _java_major, find_java
from sparkonce_lab.rig.kafka import jars

COORDINATE = "org.example:thing:1.0"

# Stands in for Java. It prints a version, records each run of Ivy, and handles the files as Ivy would.
FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025-01-01' >&2; exit 0; fi
for last in "$@"; do :; done
echo run >>"{runs}"
{ivy}
"""
FETCHES = 'mkdir -p "$(dirname "$last")" && echo x >"$(dirname "$last")/thing-1.0.jar"'
FINDS_NOTHING = """
echo '		module not found: org.example#thing;1.0'
echo '		::          UNRESOLVED DEPENDENCIES         ::'
echo '		:: org.example#thing;1.0: not found'
exit 1"""


@pytest.fixture
def java(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKONCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARKONCE_IVY_SETTINGS", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    _java_major.cache_clear()
    runs = tmp_path / "runs"
    runs.touch()

    def install(ivy=FETCHES, version="17.0.15"):
        program = tmp_path / "bin" / "java"
        program.parent.mkdir(exist_ok=True)
        program.write_text(FAKE_JAVA.format(version=version, runs=runs, ivy=ivy))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return runs

    yield install
    _java_major.cache_clear()


def test_what_was_fetched_once_is_there_without_java(java, tmp_path, monkeypatch):
    runs = java()
    first = jars.resolve([COORDINATE])
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert jars.resolve([COORDINATE]) == first
    assert [jar.name for jar in first] == ["thing-1.0.jar"]
    assert first[0].is_relative_to(tmp_path / "cache")
    assert runs.read_text() == "run\n"


def test_what_cannot_be_had_is_named_with_ivys_own_words_and_leaves_nothing(java, tmp_path):
    java(FINDS_NOTHING)
    with pytest.raises(PreflightError) as caught:
        jars.resolve([COORDINATE])
    assert COORDINATE in caught.value.message
    assert "org.example#thing;1.0: not found" in caught.value.message
    assert "SPARKONCE_IVY_SETTINGS" in caught.value.next_step
    assert list((tmp_path / "cache" / "jars").iterdir()) == []

    java(FINDS_NOTHING)
    with pytest.raises(PreflightError):
        jars.resolve([COORDINATE])
    java(FETCHES)
    assert jars.resolve([COORDINATE])


def test_a_fetch_that_hangs_ends_at_its_deadline(java):
    java("exec sleep 600")
    with pytest.raises(PreflightError, match=r"Fetching org\.example:thing:1\.0 took longer than 1 s"):
        jars.resolve([COORDINATE], timeout_s=1)


def test_a_lock_that_is_never_freed_ends_the_wait(java, tmp_path):
    java()
    lock = tmp_path / "cache" / "ivy.lock"
    with jars.file_lock(lock, 0), pytest.raises(PreflightError, match=r"ivy\.lock"):
        jars.resolve([COORDINATE], timeout_s=0.2)


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11), ("16", 16)])
def test_java_that_is_too_old_is_refused(java, version, major):
    java(version=version)
    with pytest.raises(ConfigurationError, match=f"is Java {major}; Java 17 is needed"):
        find_java()


def test_java_that_is_missing_or_does_not_run(java, tmp_path, monkeypatch):
    java()
    (tmp_path / "bin" / "java").write_text("#!/no/such/interpreter\n")
    with pytest.raises(ConfigurationError, match="does not run"):
        find_java()

    java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "empty"))
    with pytest.raises(ConfigurationError, match="JAVA_HOME"):
        find_java()

    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="no java on PATH") as caught:
        jars.resolve([COORDINATE])
    assert "Java 17" in caught.value.next_step
