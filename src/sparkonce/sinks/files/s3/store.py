"""The prefix as a `FileStore`; see the package for how a file is published."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from sparkonce.errors import ConfigurationError, UnknownOutcomeError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.files.s3.finish import Finisher
from sparkonce.sinks.files.s3.listing import list_uploads
from sparkonce.sinks.files.s3.outcomes import Answer, read
from sparkonce.sinks.files.s3.requests import ask, read_object
from sparkonce.sinks.files.s3.settings import client, read_location, read_settings
from sparkonce.sinks.files.s3.writing import S3StagedFile, Uploader
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Finished
    from sparkonce.sinks.files.s3.preflight import Findings

T = TypeVar("T")

_TAKEN = 412
_ASK_AGAIN = "See whether the store can be reached, and with which rights."
_AWS = re.compile(r"https?://s3[.a-z0-9-]*\.amazonaws\.com(\.cn)?/?")


class S3Store(FileStore):
    """See `FileStore`.

    An upload that is not completed costs money until it is aborted. So bucket owners should let a lifecycle rule
    (``AbortIncompleteMultipartUpload``) abort it after some days; see `timeout_s`.

    Args:
        location: ``s3://bucket/prefix``.
        settings: See `sparkonce.sinks.files.s3.settings.S3Settings`.
        page: How many names to ask for at once, at most 1,000.

    Raises:
        ConfigurationError: for a location or setting that cannot be used.
    """

    keeps_manifests = False

    def __init__(self, location: str, settings: Mapping[str, Any] | None = None, *, page: int = 1_000) -> None:
        self.location = location.rstrip("/")  # readers append "/" and a file's path
        self.bucket, self.prefix = read_location(location)
        self.settings = read_settings(settings or {})
        self._page = page
        self._start()

    def _start(self) -> None:
        self._uploader: Uploader | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._findings: Findings | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("location", "bucket", "prefix", "settings", "_page")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    # --- at a start ---------------------------------------------------------------------------------------------------

    def check(self) -> Mapping[str, str]:
        """See `FileStore.check`. Begins and aborts an upload, and puts and deletes a small hidden object."""
        from sparkonce.sinks.files.s3.preflight import check

        reached = client(self.settings)
        self._findings = check(reached, self.settings, self.bucket, self.prefix)
        # AWS has an endpoint for each region, and bucket names are unique in all of them.
        own = "aws" if self._is_aws() else str(reached.meta.endpoint_url)
        return {"endpoint": own, "bucket": self.bucket, "folder": self.prefix}

    def _is_aws(self) -> bool:
        return bool(_AWS.fullmatch(str(client(self.settings).meta.endpoint_url)))

    def doubt(self, folder: str) -> Finished | None:  # noqa: ARG002 - each file's fields name bucket and key
        """See `FileStore.doubt`. A bucket is not unmounted."""
        return None

    def timeout_s(self) -> float | None:
        """See `FileStore.timeout_s`. The shortest lifecycle rule that aborts uploads here decides."""
        return self._look_around().timeout_s

    def conditions(self) -> Sequence[str]:
        """See `FileStore.conditions`."""
        from sparkonce.sinks.files.s3.preflight import ALWAYS

        return (*ALWAYS, *(self._findings.notes if self._findings is not None else ()))

    def _look_around(self) -> Findings:
        from sparkonce.sinks.files.s3.preflight import look_around

        if self._findings is None:
            self._findings = look_around(client(self.settings), self.bucket, self.prefix)
        return self._findings

    # --- files --------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:
        """See `FileStore.stage`. The path must be made by `file_path`: `list_staged` reads the name in it."""
        if name_in(path) != name:
            raise ConfigurationError(f"{path!r} is no path of {name}.", next_step="Make it with file_path.")
        if self._uploader is None:
            discard = self._finisher().discard
            once = client(self.settings, attempts=1)
            self._uploader = Uploader(client(self.settings), once, self.settings, self.bucket, discard)
        return S3StagedFile(self._uploader, self.prefix, path)

    def look(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.look`. Sends one request for a staged file, two for others."""
        seen = self._each(self._finisher().look, files)
        for one in seen:
            if not isinstance(one, FileState):
                raise UnknownOutcomeError(f"{self.location}: {one.reason}", next_step=_ASK_AGAIN)
        return [one for one in seen if isinstance(one, FileState)]

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.publish`."""
        return self._each(self._finisher().publish, files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        """See `FileStore.discard`."""
        return self._each(self._finisher().discard, files)

    def list_staged(self) -> Iterable[Staged]:
        """See `FileStore.list_staged`."""
        seen: set[str] = set()
        # MinIO shows an upload below its whole key, or in its whole bucket.
        for prefix in [self.prefix] if self._is_aws() else [self.prefix, ""]:
            for found in list_uploads(client(self.settings), self.bucket, prefix, self._page):
                if isinstance(found, Answer):
                    raise self._unsure("ListMultipartUploads", found)
                key, upload = found
                path = key.removeprefix(self.prefix)
                name = name_in(path)
                if name is not None and key.startswith(self.prefix) and upload not in seen:
                    seen.add(upload)
                    fields = {"bucket": self.bucket, "prefix": self.prefix, "path": path, "upload_id": upload}
                    yield Staged(name=name, fields=fields)
            if seen:
                return

    # --- small files --------------------------------------------------------------------------------------------------

    def put(self, path: str, content: bytes) -> None:
        """See `FileStore.put`."""
        options = self.settings.encryption()
        self._sure("PutObject", "put_object", Bucket=self.bucket, Key=self.prefix + path, Body=content, **options)

    def _create(self, path: str, content: bytes) -> None:
        options = self.settings.encryption()
        asked = {"Bucket": self.bucket, "Key": self.prefix + path, "Body": content, "IfNoneMatch": "*", **options}
        answer = ask(client(self.settings).put_object, **asked)
        if isinstance(answer, Answer) and answer.status != _TAKEN:
            raise self._unsure("PutObject", answer)

    def get(self, path: str) -> bytes | None:
        """See `FileStore.get`."""
        answer = ask(read_object, client=client(self.settings), bucket=self.bucket, key=self.prefix + path)
        if not isinstance(answer, Answer):
            return bytes(answer["Body"])
        if answer.status == 404 and answer.code != "NoSuchBucket":
            return None
        raise self._unsure("GetObject", answer)

    def list_names(self, folder: str) -> Sequence[str]:
        """See `FileStore.list_names`."""
        prefix = f"{self.prefix}{folder.strip('/')}/" if folder.strip("/") else self.prefix
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": self._page}
        names: list[str] = []
        while True:
            answer = self._sure("ListObjectsV2", "list_objects_v2", **asked)  # boto3 decodes these keys by itself
            names += [one["Key"].removeprefix(prefix) for one in answer.get("Contents", ()) if one["Key"] != prefix]
            if not answer.get("IsTruncated"):
                return names
            asked["ContinuationToken"] = answer["NextContinuationToken"]

    def delete(self, paths: Sequence[str]) -> None:
        """See `FileStore.delete`."""
        # A request for each: not every store has DeleteObjects.
        keys = [self.prefix + path for path in paths]
        self._each(lambda key: self._sure("DeleteObject", "delete_object", Bucket=self.bucket, Key=key), keys)

    def close(self) -> None:
        """See `FileStore.close`. Leaves the connections open, which the process's other stores share."""
        uploader, pool = self._uploader, self._pool
        self._uploader = self._pool = None
        for one in (uploader, pool):
            if isinstance(one, Uploader):
                one.close()
            elif one is not None:
                one.shutdown()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _finisher(self) -> Finisher:
        return Finisher(
            client(self.settings),
            client(self.settings, attempts=1),
            if_none_match=self.settings.if_none_match,
        )

    def _each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if len(items) <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.settings.finish_threads, thread_name_prefix="sparkonce-s3-finish")
        return list(self._pool.map(work, items))

    def _sure(self, request: str, method: str, **arguments: Any) -> Mapping[str, Any]:
        answer = ask(getattr(client(self.settings), method), **arguments)
        if isinstance(answer, Answer):
            raise self._unsure(request, answer)
        return answer

    def _unsure(self, request: str, answer: Answer) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"{self.location}: {read(answer, request).reason}",
            next_step=_ASK_AGAIN,
        )
