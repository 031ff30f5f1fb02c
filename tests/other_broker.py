"""Another implementation of a Kafka broker: franz-go's kfake, which the tests build with Go."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest

from sparkonce_lab.rig.kafka.jars import cache_folder

SOURCE = Path(__file__).parent / "kfake"


@cache
def program() -> Path:
    """Returns the path of the program, which is built once for each version of its source."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    source = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    built = cache_folder() / "bin" / f"kfake-{hashlib.sha256(source).hexdigest()[:16]}"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        mine = built.with_name(f"{built.name}.{os.getpid()}")
        subprocess.run(["go", "build", "-o", mine, "."], cwd=SOURCE, check=True, timeout=300)
        mine.replace(built)
    return built


class OtherBroker:
    """Brokers in one child process, which is killed together with this process. Use it as a context manager.

    Args:
        level: The Kafka version whose requests the brokers support.
        brokers: The number of brokers.
        rate: The fraction of transaction requests that are rejected. In addition, half that fraction are executed, but
            their replies are dropped.
        seed: The random seed for the rejected requests.

    Attributes:
        bootstrap: The bootstrap servers.
    """

    def __init__(self, level: str = "4.4", brokers: int = 1, rate: float = 0.0, seed: int = 0) -> None:
        arguments = [f"--level={level}", f"--brokers={brokers}", f"--rate={rate}", f"--seed={seed}"]
        command = [program(), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.bootstrap = self._next_line()

    def _next_line(self) -> str:
        return self._process.stdout.readline().strip()

    def rest(self) -> str:
        """Rejects nothing from now on. Returns how often each kind of request was rejected."""
        self._process.send_signal(signal.SIGUSR1)
        return self._next_line()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> OtherBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
