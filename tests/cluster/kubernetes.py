"""The part of Kubernetes' API that spark-submit talks to: it takes what it is sent, and runs nothing."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Kubernetes:
    """A server on loopback. Use as a context manager.

    Attributes:
        url: For Spark's ``master``, after ``k8s://``.
        sent: The objects that were sent, in order, each with the ``path`` that it was sent to.
    """

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        taken = self.sent

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                taken.append({**sent, "path": self.path})
                sent["metadata"]["uid"] = f"{len(taken)}"
                self._answer(201, sent)

            do_PATCH = do_PUT = do_POST  # noqa: N815 - named by the server's base

            def do_GET(self) -> None:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})

            def _answer(self, code: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, kind: str) -> dict[str, Any]:
        """Returns the last object of a kind."""
        return next(one for one in reversed(self.sent) if one["kind"] == kind)
