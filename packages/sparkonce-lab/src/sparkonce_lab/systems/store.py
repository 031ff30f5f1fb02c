"""The store of the query's checkpoint, if it is not on a local disk: S3 that is started here, or the user's store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sparkonce.decision_log import FOLDER
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles
from sparkonce_lab.checkpoint import check_store, new_folder, open_store
from sparkonce_lab.faults import STORE
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.s3 import S3Server
from sparkonce_lab.systems.injections import Served

OWN = "s3"
"""The location that stands for a server that is started here."""
_MEGABYTES = 512
_S3A = "fs.s3a."
_BUCKET = "checkpoints"
_REQUESTS = {"put": re.compile(rf"PUT [^\r\n]*/{FOLDER}/records/".encode())}
"""The requests that can be struck, which put a record into the decision log."""


class CheckpointStore(Served):
    """A new folder in a store.

    Faults can strike connections to S3 if these are not encrypted (a setting ``fs.s3a.endpoint`` with ``http:``).

    Args:
        location: A folder of the user's, as a path or a URL; `OWN` to start a versitygw.
        conf: Spark's settings for the store.

    Attributes:
        location: The checkpoint's location.
        conf_names: The names of the user's settings.
        files: The checkpoint's files, available after the start. No fault strikes this client's connections.
        conf: Spark's settings for the query, available after the start.

    Raises:
        ConfigurationError: If a checkpoint cannot be in this location, or a setting has no counterpart.
    """

    name = STORE
    files: CheckpointFiles

    def __init__(self, location: str, conf: Mapping[str, str]) -> None:
        self.location = location
        self.conf_names = sorted(conf)
        self.conf = dict(conf)
        if location != OWN:
            self.files = open_store(new_folder(location, "verify"), conf)
        elif conf:
            raise ConfigurationError(
                f"--conf {' and '.join(conf)}: the checkpoint's store is a server that sparkonce starts.",
                next_step="Give a folder of your own with --checkpoint, or leave --conf out.",
            )

    def start(self, folder: Path) -> None:
        """Starts a server, or checks the user's store."""
        if self.location == OWN:
            self.conf = self._start_s3(folder)
            self.files = open_store(new_folder(f"s3a://{_BUCKET}", "verify"), self.conf)
        check_store(self.files)
        self.conf = {**self.conf, **self._proxied()}

    def stop(self) -> None:
        """Ends everything that was started here. The user's folder remains. May be called repeatedly."""
        self.close_proxy()
        self.stop_own()

    def _start_s3(self, folder: Path) -> dict[str, str]:
        from sparkonce.sinks.files.s3.settings import client, read_settings

        server = S3Server(folder)
        self.start_own(server, _MEGABYTES)
        settings = server.settings()
        s3 = client(read_settings(settings), attempts=3)
        s3.create_bucket(Bucket=_BUCKET)
        s3.close()
        settings = {
            "endpoint": server.url,
            "endpoint.region": settings["region_name"],
            "path.style.access": "true",
            "access.key": settings["aws_access_key_id"],
            "secret.key": settings["aws_secret_access_key"],
        }
        return {f"spark.hadoop.{_S3A}{name}": value for name, value in settings.items()}

    def _proxied(self) -> dict[str, str]:
        """Starts a proxy in front of S3 if its connections are not encrypted. Returns the settings for using it."""
        scheme, _, rest = self.files.location.partition("://")
        particular = f"spark.hadoop.{_S3A}bucket.{rest.partition('/')[0]}."
        names = (f"{particular}endpoint", f"spark.hadoop.{_S3A}endpoint")
        endpoint = urlsplit(next((self.conf[name] for name in names if name in self.conf), ""))
        if scheme != "s3a" or endpoint.scheme != "http":
            return {}
        proxy = self.start_proxy((endpoint.hostname or HOST, endpoint.port or 80), _REQUESTS)
        # Use path-style addresses, since a host name that begins with the bucket's name could not be resolved.
        return {f"{particular}endpoint": f"http://{HOST}:{proxy.port}", f"{particular}path.style.access": "true"}
