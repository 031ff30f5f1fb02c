"""A minimal transactional system: each transaction is a file of numbers, and its state is the folder the file is in.

A rename from one folder to another is atomic, so the server process can be killed at any time. ``python folder.py ROOT
PORT`` serves such folders. A request is one line of words, the first of which names a folder below the root, and the
reply is one line.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from pathlib import Path

STATES = ("open", "prepared", "committed", "aborted")


class Folder:
    """The system. A request is a verb with arguments, and a response is text."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ask(self, verb: str, *words: str) -> str:
        answer: str = getattr(self, verb)(*words)
        return answer

    def close(self) -> None:
        pass

    def make(self) -> str:
        for state in STATES:
            (self._root / state).mkdir(parents=True, exist_ok=True)
        return ""

    def write(self, name: str, *numbers: str) -> str:
        """Adds numbers to an open transaction, and opens it if necessary."""
        if self._state(name) in ("", "open"):
            self.write_directly(name, *numbers, state="open")
        return self._state(name)

    def write_directly(self, name: str, *numbers: str, state: str = "committed") -> str:
        with (self._root / state / name).open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)
        return state

    def prepare(self, name: str) -> str:
        return "prepared" if self._move(name, "open", "prepared") else self._state(name)

    def commit(self, name: str) -> str:
        if self._move(name, "prepared", "committed"):
            return "committed"
        return {"committed": "already", "aborted": "lost"}.get(self._state(name), "unknown")

    def abort(self, name: str) -> str:
        if self._state(name) == "committed":
            return "already"
        if not self._move(name, "open", "aborted") and not self._move(name, "prepared", "aborted"):
            (self._root / "aborted" / name).touch()
        return "aborted"

    def append(self, name: str) -> str:
        """Adds the rows to the committed data again with every call. For broken sinks."""
        if not (state := self._state(name)):
            return "unknown"
        self.write_directly(f"{name}+", *(self._root / state / name).read_text().split())
        self._move(name, state, "aborted")
        return "committed"

    def names(self, *states: str) -> str:
        return " ".join(path.name for state in states for path in (self._root / state).iterdir())

    def see(self) -> str:
        return " ".join(path.read_text().replace("\n", " ") for path in (self._root / "committed").iterdir())

    def _state(self, name: str) -> str:
        return next((state for state in STATES if (self._root / state / name).exists()), "")

    def _move(self, name: str, before: str, after: str) -> bool:
        try:
            (self._root / before / name).rename(self._root / after / name)
        except FileNotFoundError:
            return False
        return True


def serve(root: Path, port: int) -> None:
    folders: dict[str, Folder] = {}
    one_asks = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if not line.endswith(b"\n"):
                    return  # the connection was closed before the request was complete
                name, *words = line.decode().split()
                with one_asks:
                    if name not in folders:
                        folders[name] = Folder(root / name)
                        folders[name].make()
                    answer = folders[name].ask(*words)
                try:
                    self.wfile.write(f"{answer}\n".encode())
                except OSError:
                    return

    class Served(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has disconnected is not an error."""

    with Served(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
