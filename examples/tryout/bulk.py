"""Tests the examples of the write-ahead sink: generates orders, provides targets that fail, and counts the output."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FILES = 12
ROWS_PER_FILE = 50


def make_orders(folder: Path, files: int = FILES) -> list[int]:
    """Writes files of orders, and returns the orders' ids."""
    folder.mkdir(parents=True)
    ids = range(files * ROWS_PER_FILE)
    for number in range(files):
        lines = [json.dumps(order(each)) for each in ids[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]]
        (folder / f"{number:04d}.json").write_text("\n".join(lines))
    return list(ids)


def order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"customer-{number % 7}", "amount": number % 100}


def totals_of(ids: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Returns the expected number of orders and total of each customer."""
    orders, total = Counter[str](), Counter[str]()
    for one in map(order, ids):
        orders[one["customer"]] += 1
        total[one["customer"]] += one["amount"]
    return {customer: (orders[customer], total[customer]) for customer in orders}


def show(sent: Sequence[Any], found: Sequence[Any]) -> int:
    """Prints the counts, and returns the exit code: 0 if every expected row occurs once, and no other row does."""
    wanted, seen = Counter(sent), Counter(found)
    missing, surplus = (wanted - seen).total(), (seen - wanted).total()
    print(f"expected {len(sent)}, found {len(found)}: {missing} missing, {surplus} too many")
    print("exactly once" if wanted == seen else "NOT exactly once")
    return 0 if wanted == seen else 1


@dataclass
class Forgetful:
    """Calls a function, but raises an error after every nth call although it has succeeded."""

    work: Callable[..., object]
    every: int
    calls: int = 0
    failed: int = 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        self.work(*arguments)
        if self.calls % self.every == 0:
            self.failed += 1
            raise ConnectionError("the reply to the commit was lost")


@dataclass
class BulkServer:
    """An HTTP API that stores rows by idempotency key, and cuts off every third reply. Use it as a context manager."""

    every: int = 3
    requests: int = 0
    cut: int = 0
    taken: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __enter__(self) -> BulkServer:
        api, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                with lock:
                    api.requests += 1
                    # Keep the rows of a key that was seen before, so that a repeated request is harmless.
                    api.taken.setdefault(
                        self.headers["Idempotency-Key"], [json.loads(line) for line in body.splitlines()]
                    )
                    if api.requests % api.every == 0:
                        api.cut += 1
                        self.close_connection = True
                        return
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/orders"

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.taken.values() for row in rows]
