"""versitygw, a server that provides a folder through the S3 protocol."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkonce.errors import ConfigurationError
from sparkonce_lab.rig.kafka.jars import cache_folder
from sparkonce_lab.rig.process import Server, find_program

ACCESS_KEY = "sparkonce"
SECRET_KEY = "sparkonce-secret"  # noqa: S105 - for a loopback server that exists only during a test
_WITHIN_S = 30.0


def find_versitygw() -> Path | None:
    """Finds versitygw on PATH, in sparkonce's cache, or where ``go install`` puts it."""
    return find_program("versitygw", cache_folder() / "bin", Path.home() / "go" / "bin")


class S3Server(Server):
    """versitygw with one administrator, `ACCESS_KEY`. Buckets are folders, and objects are files in them.

    The server does not support lifecycle rules. It keeps old versions if a bucket is configured to do so.
    """

    def initialise(self) -> None:
        for part in ("data", "users", "versions"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        return [
            *(
                str(_program()),
                "--port",
                self.address,
                "--quiet",
                "--keep-alive",
                "--iam-dir",
                str(self.folder / "users"),
            ),
            *("posix", "--versioning-dir", str(self.folder / "versions"), str(self.folder / "data")),
        ]

    def env(self) -> Mapping[str, str]:
        return {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}

    def is_up(self) -> bool:
        try:
            urllib.request.urlopen(self.url, timeout=1).close()  # noqa: S310 - http to loopback
        except urllib.error.HTTPError as refused:  # The server requires a signature, so it is up.
            refused.close()
            return True
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def settings(self, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
        return {
            "endpoint_url": self.url,
            "region_name": "us-east-1",
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
            "addressing_style": "path",
        }

    def add_user(self, access_key: str, secret_key: str) -> None:
        """Creates a user who has no permissions until a bucket's policy grants them."""
        command = [
            *(str(_program()), "admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", self.url),
            *("create-user", "--access", access_key, "--secret", secret_key, "--role", "user"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
        if run.returncode != 0:
            raise ConfigurationError(
                f"versitygw did not create user {access_key!r}: {run.stdout}{run.stderr}",
                next_step="Choose another name, or restart the server.",
            )


def _program() -> Path:
    found = find_versitygw()
    if found is None:
        raise ConfigurationError(
            "versitygw is not installed.", next_step="go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"
        )
    return found
