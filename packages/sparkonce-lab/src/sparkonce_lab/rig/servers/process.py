"""The base of all servers: they start, die, come back with their data, and end with us."""

from __future__ import annotations

import abc
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import PreflightError
from sparkonce_lab.rig.ports import HOST as HOST
from sparkonce_lab.rig.ports import free_port as free_port
from sparkonce_lab.rig.process import POLL_S, Restartable, ServerProcess, last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

UP_WITHIN_S = 60.0


class Server(Restartable, abc.ABC):
    """A server that keeps its port and its data when it is started again. Use as a context manager.

    Args:
        folder: For its data and its log. Its path must be in `command`: that is how the process is known.
        port: By default a free one.

    Attributes:
        user: The user that runs it, by default ours.
        up_within_s: The longest time that its start may take.
    """

    user: str | None = None
    up_within_s = UP_WITHIN_S

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = free_port() if port is None else port

    @abc.abstractmethod
    def initialise(self) -> None:
        """Makes its data. Called before each start; must leave alone what is there."""

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Returns the program and its arguments."""

    @abc.abstractmethod
    def is_up(self) -> bool:
        """Tells whether it answers."""

    def env(self) -> Mapping[str, str] | None:
        """Returns the server's environment; None for ours."""
        return None

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self) -> None:
        """Starts it, and waits until it answers.

        Raises:
            PreflightError: with the end of its log, if it does not.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.initialise()
        self._process = ServerProcess(
            list(self.command()),
            mark=str(self.folder),
            log=self.log,
            dies_with_parent=True,
            user=self.user,
            env=self.env(),
        )
        give_up_at = time.monotonic() + self.up_within_s
        while not self.is_up():
            ended = self._process.exit_code
            if ended is not None or time.monotonic() >= give_up_at:
                self.kill()
                raise PreflightError(
                    f"{self.command()[0]} did not come up on port {self.port} within {self.up_within_s:g} s (exit code "
                    f"{ended}). The end of {self.log}:\n{last_lines(self.log, 20)}\n",
                    next_step="Read the log, and start the server again.",
                )
            time.sleep(POLL_S)

    def restart(self) -> None:
        """Kills it and starts it again with its data."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_program(name: str, *more: Path) -> Path | None:
    """Finds a server's program: on PATH, in the folders of root's path, or in one of these folders."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/local/sbin", *map(str, more)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None
