"""A headless browser that tests control over DevTools, through a pipe: real pages, keys and screenshots."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventually import LIMIT_S, eventually

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "ArrowLeft": 37}


class Browser:
    """A browser with one page.

    Attributes:
        said: The page's console messages and errors.
        asked: The URL of every request that the page made.
    """

    def __init__(self, profile: Path) -> None:
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        flags += ["--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", "about:blank"]
        pipes = f'exec "$0" "$@" 3<&{theirs_read} 4>&{theirs_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", pipes, str(CHROMIUM), *flags],
            pass_fds=(theirs_read, theirs_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._write, self._read = os.fdopen(ours_write, "wb", buffering=0), os.fdopen(ours_read, "rb", buffering=0)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._number = 0
        self._session = ""
        self.said: list[str] = []
        self.asked: list[str] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = queue.Queue()
        asked = {"id": self._number, "method": method, "params": params}
        asked |= {"sessionId": self._session} if self._session else {}
        self._write.write(json.dumps(asked).encode() + b"\0")
        found = answer.get(timeout=LIMIT_S)
        assert "error" not in found, (method, found)
        result: dict[str, Any] = found["result"]
        return result

    def run(self, code: str) -> Any:
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        self.prefer(prefers_color_scheme="light")
        self.resize(width=1280)
        self.call("Page.navigate", url=url)

    def leave(self) -> None:
        """Leaves the page, and clears `said` and `asked`."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.said.clear()
        self.asked.clear()

    def resize(self, *, width: int, scale: float = 1) -> None:
        """Resizes the window. A width of 640 at scale 2 corresponds to 1280 pixels at 200 % zoom."""
        size = {"width": width, "height": 900, "deviceScaleFactor": scale}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **size)

    def prefer(self, **features: str) -> None:
        """Sets CSS media features, such as ``prefers_color_scheme="dark"``."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def key(self, name: str) -> None:
        code: dict[str, Any] = {"key": name, "windowsVirtualKeyCode": KEYS[name]}
        code |= {"text": "\r"} if name == "Enter" else {}  # buttons are found by their text
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **code)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def until(self, code: str, is_good: Callable[[Any], bool] = bool) -> Any:
        """Waits until an expression's value meets the condition, and returns it."""
        last: list[Any] = [None]

        def ask() -> bool:
            last[0] = self.run(code)
            return is_good(last[0])

        eventually(ask, f"{code}: {last}")
        return last[0]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        self._write.close()
        self._read.close()

    def _listen(self) -> None:
        kept = b""
        while data := self._read.read(1 << 20):
            *messages, kept = (kept + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if "id" in message:
            self._answers.pop(message["id"]).put(message)
        elif message["method"] == "Runtime.consoleAPICalled":
            self.said.append(str([one.get("value") for one in params["args"]]))
        elif message["method"] == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded":
            self.said.append(params["entry"]["text"])
        elif message["method"] == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
