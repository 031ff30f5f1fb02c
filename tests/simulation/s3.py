"""A bucket: uploads that no reader sees, and objects. The product's `S3Store` and `Finisher` use boto3's methods.

- Completing an upload creates the object and forgets the upload. Completing it again, or after an abort: NoSuchUpload.
  A gateway such as versitygw reports success instead, without a checksum, if any object exists under the key.
- A lifecycle rule aborts uploads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectionError  # noqa: A004

from simulation.spark import BATCHES_APART_MS
from simulation.systems import System, Writer
from sparkonce.errors import PrepareError
from sparkonce.sinks.files.committer import FilesCommitter
from sparkonce.sinks.files.names import file_path, name_in
from sparkonce.sinks.files.s3.requests import NO_SUCH_UPLOAD, TRANSACTION, UPLOAD, name_text
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce.sinks.files.store import fields_of

if TYPE_CHECKING:
    from simulation.engine import Simulation
    from simulation.oracle import Key
    from sparkonce.protocol.handles import Scalar

BUCKET, PREFIX = "b", "t/"


class Upload:
    """An upload, or the object that it became."""

    __slots__ = ("key", "mark", "number", "parts", "text")

    def __init__(self, number: str, key: str) -> None:
        self.number, self.key = number, key
        self.text, self.mark = name_text(key), f"m{number}"
        self.parts = 0


class S3(System):
    """A bucket.

    Args:
        simulation: The schedule.
        name: ``s3``, or ``s3-gateway`` for one that responds like versitygw.
    """

    facts: Mapping[str, str] = {"prefix": "p", "folder": PREFIX}
    refusals = (ClientError,)

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.copies = _Writer
        self.uploads: dict[str, Upload] = {}
        self.objects: dict[str, Upload] = {}
        self.says_done = name == "s3-gateway"
        self.begun = 0

    def committer(self) -> FilesCommitter:
        store = S3Store.__new__(S3Store)
        store.location, store.bucket, store.prefix = f"s3://{BUCKET}/{PREFIX}", BUCKET, PREFIX
        store.settings = Client(self)
        store.page = 1000
        store._start()
        return FilesCommitter(store, self.name, manifest=False)

    def lingering(self) -> list[Key]:
        return [(self.name, one.key) for one in self.uploads.values()]

    def expire(self) -> Callable[[], None] | None:
        def end(number: str) -> None:
            gone = self.uploads.pop(number)
            self.simulation.say(self.called, "a rule aborts", gone.key)
            self.simulation.oracle.lost((self.name, str(name_in(gone.key))))

        return self.one_of(list(self.uploads), end)

    def no_answer(self) -> Exception:
        return ConnectionError(error="no answer")

    def refused(self) -> Exception:
        return refusal(403, "AccessDenied")

    # --- requests -----------------------------------------------------------------------------------------------------

    def complete(self, number: str, key: str, only_new: bool) -> Mapping[str, Any]:
        upload = self.uploads.get(number)
        if upload is None:
            if self.says_done and key in self.objects:
                return {"ETag": f'"{self.objects[key].mark}"'}
            raise refusal(404, NO_SUCH_UPLOAD)
        if only_new and key in self.objects:
            raise refusal(412, "PreconditionFailed")
        if key in self.objects:
            self.simulation.oracle.vanished(key)
        del self.uploads[number]
        self.objects[key] = upload
        name = name_in(key)
        if name is not None:
            rows = (name.batch, name.slot, self.name, upload.parts)
            self.simulation.oracle.shown((self.name, str(name)), rows)
        return {"ETag": f'"{upload.mark}"', "ChecksumType": "COMPOSITE"}

    def abort(self, number: str) -> Mapping[str, Any]:
        upload = self.uploads.pop(number, None)
        if upload is None:
            raise refusal(404, NO_SUCH_UPLOAD)
        if upload.parts == 2:
            self.simulation.oracle.aborted((self.name, str(name_in(upload.key))))
        return {}

    def parts(self, number: str) -> Mapping[str, Any]:
        upload = self.uploads.get(number)
        if upload is None:
            raise refusal(404, NO_SUCH_UPLOAD)
        return {"Parts": [{"ETag": f'"e{part}"'} for part in range(upload.parts)]}

    def head(self, key: str) -> Mapping[str, Any]:
        found = self.objects.get(key)
        if found is None:
            raise refusal(404, "404")
        return {
            "ContentLength": found.parts,
            "ETag": f'"{found.mark}"',
            "Metadata": {TRANSACTION: found.text, UPLOAD: found.mark},
        }


def refusal(status: int, code: str) -> ClientError:
    """The error that boto3 raises."""
    meta = {"HTTPStatusCode": status, "HTTPHeaders": {}}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": meta}, "request")


class Client:
    """A boto3 client, with the settings that it was created with."""

    if_none_match = True
    finish_threads = 4
    meta = SimpleNamespace(endpoint_url="http://s3-gateway")

    def __init__(self, bucket: S3) -> None:
        self._bucket, self._ask = bucket, bucket.ask

    def complete_multipart_upload(self, Key: str, UploadId: str, **more: Any) -> Any:  # noqa: N803 - boto3's names
        only_new = "IfNoneMatch" in more
        return self._ask(("completes", Key), lambda: self._bucket.complete(UploadId, Key, only_new))

    def abort_multipart_upload(self, Key: str, UploadId: str, **_: Any) -> Any:  # noqa: N803
        return self._ask(("aborts", Key), lambda: self._bucket.abort(UploadId))

    def list_parts(self, Key: str, UploadId: str, **_: Any) -> Any:  # noqa: N803
        return self._ask(("lists the parts of", Key), lambda: self._bucket.parts(UploadId))

    def head_object(self, Key: str, **_: Any) -> Any:  # noqa: N803
        return self._ask(("looks at", Key), lambda: self._bucket.head(Key))

    def list_multipart_uploads(self, **_: Any) -> Any:
        def listed() -> Any:
            return {"Uploads": [{"Key": one.key, "UploadId": one.number} for one in self._bucket.uploads.values()]}

        return self._ask(("lists uploads",), listed)


REPLACED: tuple[tuple[str, str, Any], ...] = (("store", "client", lambda settings, attempts=None: settings),)
"""Replaces boto3's clients, by module."""


class _Writer(Writer):
    system: S3

    def __init__(self, system: S3, name: Any) -> None:
        super().__init__(system)
        self._name = name
        self._path = file_path("", name, 0, ".jsonl")
        self._upload: Upload | None = None

    def begin(self) -> None:
        self.system.begun += 1
        upload = Upload(str(self.system.begun), PREFIX + self._path)

        def begin() -> None:
            self.system.uploads[upload.number] = upload

        self.ask(("begins", upload.key), begin)
        self._upload = upload

    def write(self, parts: int) -> None:
        upload = self._mine()

        def send() -> bool:
            upload.parts += 1
            return upload.number in self.system.uploads

        if not self.ask(("sends a part of", upload.key), send):
            raise PrepareError(NO_SUCH_UPLOAD)

    def _mine(self) -> Upload:
        if self._upload is None:
            raise PrepareError("it was not begun")
        return self._upload

    def prepare(self) -> Mapping[str, Scalar]:
        upload = self._mine()
        file = {
            "bucket": BUCKET,
            "prefix": PREFIX,
            "path": self._path,
            "upload_id": upload.number,
            "mark": upload.mark,
            "size": 2,
            "checksum": upload.mark,
            "etags": "e0,e1",
            "rows": 1,
        }
        fields, _ = fields_of(self._name, [file], self._name.batch * BATCHES_APART_MS, PREFIX)
        return fields

    def abort(self) -> None:
        if self._upload is not None and self._upload.number in self.system.uploads:
            upload = self._upload
            with suppress(PrepareError):
                self.ask(("gives up", upload.key), lambda: self._give_up(upload))

    def _give_up(self, upload: Upload) -> None:
        if upload.number in self.system.uploads:
            self.system.abort(upload.number)
