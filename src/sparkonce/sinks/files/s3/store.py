"""A bucket's prefix as a `FileStore`: stages, publishes and discards files.

A file is staged as a multipart upload, sent part by part from a writer's thread. Any process can complete or abort the
upload; see the package for how that publishes the file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from sparkonce.errors import ConfigurationError, OutageError, PrepareError, UnknownOutcomeError
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.files.s3.requests import (
    DONE,
    LOOK,
    NO_SUCH_UPLOAD,
    TRANSACTION,
    UPLOAD,
    Answer,
    Present,
    ask,
    head_object,
    is_own,
    list_uploads,
    name_text,
    outcome_by_object,
    read,
    read_object,
)
from sparkonce.sinks.files.s3.settings import MIB, S3Settings, client, read_location, read_settings
from sparkonce.sinks.files.store import Fields, FileState, FileStore, Staged, StagedFile
from sparkonce.storage.files import Landed, PutUnknownError, SmallFiles, Taken

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Finished
    from sparkonce.sinks.files.s3.preflight import Findings


T = TypeVar("T")

_TAKEN = 412
_AWS = re.compile(r"https?://s3[.a-z0-9-]*\.amazonaws\.com(\.cn)?/?")


class S3Store(FileStore):
    """A prefix of a bucket as a store, see `FileStore`.

    An upload that is not completed costs money until it is aborted. Bucket owners should therefore have a lifecycle
    rule (``AbortIncompleteMultipartUpload``) abort such uploads after some days; see `timeout_s`.

    Args:
        location: ``s3://bucket/prefix``.
        settings: See `sparkonce.sinks.files.s3.settings.S3Settings`.
        page: The page size of listings, at most 1,000.
    """

    keeps_manifests = False
    next_step = "Check that the store can be reached, and the user's rights."

    def __init__(self, location: str, settings: Mapping[str, Any] | None = None, *, page: int = 1_000) -> None:
        self.location = location.rstrip("/")  # Readers append "/" and a file's path.
        self.bucket, self.prefix = read_location(location)
        self.settings = read_settings(settings or {})
        self.page = page
        self._start()

    def _start(self) -> None:
        self.small = S3Files(self)
        self._uploader: Uploader | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._findings: Findings | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("location", "bucket", "prefix", "settings", "page")}

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
        # AWS has an endpoint for each region, but bucket names are globally unique.
        own = "aws" if self._is_aws() else str(reached.meta.endpoint_url)
        return {"endpoint": own, "bucket": self.bucket, "folder": self.prefix}

    def _is_aws(self) -> bool:
        return bool(_AWS.fullmatch(str(client(self.settings).meta.endpoint_url)))

    def doubt(self, folder: str) -> Finished | None:  # noqa: ARG002 - each file's fields name bucket and key
        """Returns None: a bucket cannot be unmounted."""
        return None

    def timeout_s(self) -> float | None:
        """Returns the shortest age at which a lifecycle rule aborts uploads here."""
        return self._inspect().timeout_s

    def conditions(self) -> Sequence[str]:
        from sparkonce.sinks.files.s3.preflight import ALWAYS

        return (*ALWAYS, *(self._findings.notes if self._findings is not None else ()))

    def _inspect(self) -> Findings:
        from sparkonce.sinks.files.s3.preflight import inspect_bucket

        if self._findings is None:
            self._findings = inspect_bucket(client(self.settings), self.bucket, self.prefix)
        return self._findings

    # --- files --------------------------------------------------------------------------------------------------------

    def stage(self, name: TransactionName, path: str) -> StagedFile:
        """Stages a file whose path comes from `file_path`: `list_staged` reads the transaction's name in it."""
        if name_in(path) != name:
            raise ConfigurationError(f"{path!r} is not a path of {name}.", next_step="Make it with file_path.")
        if self._uploader is None:
            discard = self._finisher().discard
            once = client(self.settings, attempts=1)
            self._uploader = Uploader(client(self.settings), once, self.settings, self.bucket, discard)
        return S3StagedFile(self._uploader, self.prefix, path)

    def states(self, files: Sequence[Fields]) -> Sequence[FileState]:
        """See `FileStore.states`. Sends one request for a staged file, and two for any other."""
        seen = self.each(self._finisher().state, files)
        for one in seen:
            if not isinstance(one, FileState):
                raise UnknownOutcomeError(f"{self.location}: {one.reason}", next_step=self.next_step)
        return [one for one in seen if isinstance(one, FileState)]

    def publish(self, files: Sequence[Fields]) -> Sequence[Finished]:
        return self.each(self._finisher().publish, files)

    def discard(self, files: Sequence[Fields]) -> Sequence[Finished]:
        return self.each(self._finisher().discard, files)

    def list_staged(self) -> Iterable[Staged]:
        seen: set[str] = set()
        # MinIO lists uploads only for a full key or for the whole bucket.
        for prefix in [self.prefix] if self._is_aws() else [self.prefix, ""]:
            for found in list_uploads(client(self.settings), self.bucket, prefix, self.page):
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

    def close(self) -> None:
        """Leaves the connections open, because the process's other stores share them."""
        uploader, pool = self._uploader, self._pool
        self._uploader = self._pool = None
        for one in (uploader, pool):
            if isinstance(one, Uploader):
                one.close()
            elif one is not None:
                one.shutdown()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _finisher(self) -> S3Finisher:
        return S3Finisher(
            client(self.settings), client(self.settings, attempts=1), if_none_match=self.settings.if_none_match
        )

    def each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if len(items) <= 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.settings.finish_threads, thread_name_prefix="sparkonce-s3-finish")
        return list(self._pool.map(work, items))

    def _unsure(self, request: str, answer: Answer) -> UnknownOutcomeError:
        return UnknownOutcomeError(f"{self.location}: {read(answer, request).reason}", next_step=self.next_step)


class S3Files(SmallFiles):
    """The small files of a bucket, see `SmallFiles`."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    @property
    def location(self) -> str:
        return self._store.location

    def read(self, path: str) -> bytes | None:
        store = self._store
        answer = ask(read_object, client=client(store.settings), bucket=store.bucket, key=store.prefix + path)
        if not isinstance(answer, Answer):
            return bytes(answer["Body"])
        if answer.status == 404 and answer.code != "NoSuchBucket":
            return None
        raise self._failed("GetObject", answer)

    def names(self, folder: str) -> Sequence[str]:
        store = self._store
        prefix = f"{store.prefix}{folder.strip('/')}/" if folder.strip("/") else store.prefix
        asked: dict[str, Any] = {"Prefix": prefix, "Delimiter": "/", "MaxKeys": store.page}
        found: list[str] = []
        while True:
            answer = self._sure("ListObjectsV2", "list_objects_v2", **asked)  # boto3 decodes these keys itself.
            found += [one["Key"].removeprefix(prefix) for one in answer.get("Contents", ()) if one["Key"] != prefix]
            if not answer.get("IsTruncated"):
                return [name for name in found if not name.startswith(".")]
            asked["ContinuationToken"] = answer["NextContinuationToken"]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        """See `SmallFiles.put`. boto3 may retry the request, and then find its own object."""
        store = self._store
        asked = {"Bucket": store.bucket, "Key": store.prefix + path, "Body": data, **store.settings.encryption()}
        answer = ask(client(store.settings).put_object, **asked, IfNoneMatch="*")
        if not isinstance(answer, Answer):
            return Landed()
        if answer.status == _TAKEN and (standing := self.read(path)) is not None:
            return Taken(standing=standing)
        raise PutUnknownError(read(answer, "PutObject").reason)

    def replace(self, path: str, data: bytes) -> None:
        key, encryption = self._store.prefix + path, self._store.settings.encryption()
        self._sure("PutObject", "put_object", Key=key, Body=data, **encryption)

    def delete(self, paths: Iterable[str]) -> None:
        # Send one request for each file, because not every store has DeleteObjects.
        keys = [self._store.prefix + path for path in paths]
        self._store.each(lambda key: self._sure("DeleteObject", "delete_object", Key=key), keys)

    def _sure(self, request: str, method: str, **arguments: Any) -> Mapping[str, Any]:
        answer = ask(getattr(client(self._store.settings), method), Bucket=self._store.bucket, **arguments)
        if isinstance(answer, Answer):
            raise self._failed(request, answer)
        return answer

    def _failed(self, request: str, answer: Answer) -> OSError:
        return OSError(errno.EIO, read(answer, request).reason, self.location)


log = logging.getLogger(__name__)

MOST_PARTS = 10_000
"""S3's limit for the number of an upload's parts."""

LARGEST_PART_BYTES = 5 * 1024 * MIB
PARTS_OF_ONE_SIZE = 1_000
_MD5 = re.compile(r"[0-9a-f]{32}")


def part_size(number: int, first_bytes: int) -> int:
    """Returns the size of a part, numbered from 1.

    The size doubles every 1,000 parts, so a 5 TiB file needs fewer than 10,000 parts.
    """
    return min(first_bytes << ((number - 1) // PARTS_OF_ONE_SIZE), LARGEST_PART_BYTES)


def final_etag(etags: Sequence[str]) -> str:
    """Returns the ETag of the whole object; only a hash of its parts' ETags if those are not MD5s, as with SSE-KMS."""
    if not all(_MD5.fullmatch(etag) for etag in etags):
        return f"sha256:{hashlib.sha256(','.join(etags).encode()).hexdigest()}"
    whole = hashlib.md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(etags)}"


class Uploader:
    """The threads and the memory for parts in progress, shared by all files of a worker process.

    Args:
        client: A boto3 client that retries repeatable requests.
        begin_client: A client that sends each request once, because this class retries these requests itself.
        settings: Sizes and numbers.
        bucket: The bucket.
        discard: Aborts an upload.
    """

    def __init__(
        self, client: Any, begin_client: Any, settings: S3Settings, bucket: str, discard: Callable[[Fields], Finished]
    ) -> None:
        self.client = client
        self.settings = settings
        self.bucket = bucket
        self.discard = discard
        self._begin_client = begin_client
        self._pool = ThreadPoolExecutor(settings.upload_threads, thread_name_prefix="sparkonce-s3-upload")
        self._slots = threading.BoundedSemaphore(settings.upload_threads)

    def begin(self, key: str, name: str, mark: str) -> Future[str]:
        """Begins an upload, in the background."""
        return self._pool.submit(self._begin, key, name, mark)

    def send(self, key: str, upload: Future[str], number: int, body: bytes | bytearray) -> Future[str]:
        """Waits until there is memory for a part, then uploads it in the background. The future returns its ETag."""
        # This wait always ends: every part has a timeout and releases its memory at the end.
        self._slots.acquire()
        try:
            future = self._pool.submit(self._send, key, upload, number, body)
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Ends the threads once they have finished the parts in progress."""
        self._pool.shutdown()

    def _begin(self, key: str, name: str, mark: str) -> str:
        attempt = 1
        while True:
            answer = ask(
                self._begin_client.create_multipart_upload,
                Bucket=self.bucket,
                Key=key,
                Metadata={TRANSACTION: name, UPLOAD: mark},
                ContentType="application/octet-stream",
                **self.settings.object_options(),
            )
            if not isinstance(answer, Answer):
                return str(answer["UploadId"])
            finished = read(answer, "CreateMultipartUpload")
            if finished.outcome is not Outcome.RETRY or attempt == self.settings.attempts:
                raise _not_whole(key, finished)
            # If only the response was lost, the upload exists, and the next sweep finds it.
            time.sleep(min(0.05 * 2**attempt, 2.0))
            attempt += 1

    def _send(self, key: str, upload: Future[str], number: int, body: bytes | bytearray) -> str:
        # A part waits only for an earlier task of the same queue, so threads cannot wait for each other forever.
        answer = ask(
            self.client.upload_part, Bucket=self.bucket, Key=key, UploadId=upload.result(), PartNumber=number, Body=body
        )
        if isinstance(answer, Answer):
            raise _not_whole(key, read(answer, "UploadPart"))
        return str(answer["ETag"]).strip('"')


def _not_whole(key: str, finished: Finished) -> PrepareError:
    kind = OutageError if finished.outcome is Outcome.RETRY else PrepareError
    return kind(f"The file {key} could not be uploaded. {finished.reason}", outcome=finished.outcome.value)


class S3StagedFile(StagedFile):
    """A file that is being uploaded to a bucket. One call at a time, from any thread.

    The file will be published at ``path``, which is relative to the prefix of the sink's keys.
    """

    def __init__(self, uploader: Uploader, prefix: str, path: str) -> None:
        self._uploader = uploader
        self._prefix = prefix
        self._path = path
        self._key = prefix + path
        self._mark = secrets.token_hex(8)
        self._upload = uploader.begin(self._key, name_text(path), self._mark)
        self._parts: list[Future[str]] = []
        self._buffer = bytearray()
        self._size = 0
        self._stream = _Stream(self._write, self.size)

    @property
    def stream(self) -> BinaryIO:
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        return self._size

    def seal(self) -> Fields:
        """Waits until all parts have arrived. The object does not exist yet."""
        if self._buffer or not self._parts:  # S3 completes no upload without parts.
            self._send_part()
        etags = [part.result() for part in self._parts]
        # Keep all ETags: the request that completes the upload must list them. That request may be sent after the
        # upload is gone, when ListParts no longer returns them.
        return {**self._fields(self._upload.result()), "checksum": final_etag(etags), "etags": ",".join(etags)}

    def _fields(self, upload: str) -> dict[str, str | int]:
        return {
            "bucket": self._uploader.bucket,
            "prefix": self._prefix,
            "path": self._path,
            "upload_id": upload,
            "mark": self._mark,
            "size": self._size,
        }

    def discard(self) -> None:
        """Leaves an upload that cannot be aborted now to a sweep."""
        self._stream.close()
        self._buffer = bytearray()
        for part in self._parts:
            part.cancel()
        wait_for(self._parts)  # The store would keep, and bill, a part that arrives after the abort.
        try:
            upload = self._upload.result()
        except PrepareError:
            return
        finished = self._uploader.discard({**self._fields(upload), "checksum": ""})
        if finished.outcome is not Outcome.ABORTED:
            log.warning("The upload of %s is not aborted (%s): %s", self._key, finished.outcome.value, finished.reason)

    def _write(self, data: memoryview) -> None:
        while data:
            full = part_size(len(self._parts) + 1, self._uploader.settings.part_size_bytes)
            taken = data[: full - len(self._buffer)]
            self._buffer += taken
            self._size += len(taken)
            data = data[len(taken) :]
            if len(self._buffer) == full:
                self._send_part()

    def _send_part(self) -> None:
        number = len(self._parts) + 1
        if number > MOST_PARTS:
            raise PrepareError(
                f"The file {self._key} has more than {MOST_PARTS} parts at {self._size} bytes.",
                next_step="Raise part_size_bytes, or write smaller files.",
            )
        for part in (self._upload, *self._parts[-2 * self._uploader.settings.upload_threads :]):
            if part.done():
                part.result()  # This raises the part's error as early as possible.
        body, self._buffer = self._buffer, bytearray()
        self._parts.append(self._uploader.send(self._key, self._upload, number, body))


class _Stream(io.RawIOBase):
    """Receives pyarrow's bytes in sequence."""

    def __init__(self, write: Callable[[memoryview], None], position: Callable[[], int]) -> None:
        self._write = write
        self._position = position

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position()

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("The file is sealed or discarded.")
        view = memoryview(data).cast("B")
        self._write(view)
        return len(view)


NO_UPLOAD = Answer(status=404, code=NO_SUCH_UPLOAD)
_ABORT_WITHIN_S = 10.0
_POLL_S = 0.1
_STATES: Mapping[Outcome, FileState] = {
    Outcome.COMMITTED: FileState.PUBLISHED,
    Outcome.ALREADY_COMMITTED: FileState.PUBLISHED,
    Outcome.LOST: FileState.GONE,
}


class S3Finisher:
    """Publishes, checks and discards one file at a time.

    Args:
        client: A boto3 client that retries repeatable requests.
        once_client: A client that sends each request once, for completions, because each of their responses matters.
        if_none_match: True to complete an upload only if no object is at its key.
    """

    def __init__(self, client: Any, once_client: Any, *, if_none_match: bool) -> None:
        self._client = client
        self._once = once_client
        self._condition = {"IfNoneMatch": "*"} if if_none_match else {}

    def publish(self, fields: Fields) -> Finished:
        """Completes the upload with one request, followed by one for the object if the response is not enough."""
        answer = self._complete(fields)
        if not isinstance(answer, Answer):
            # Only the completion that created the object gets a response with a checksum (see `requests`).
            if answer.get("ChecksumType") and not _differs(answer, fields):
                return Finished(outcome=Outcome.COMMITTED)
            answer = Answer(status=200, code=DONE)
        if answer.code not in LOOK:
            return read(answer, "CompleteMultipartUpload")
        if answer.code == NO_SUCH_UPLOAD and (parts := self._list_parts(fields)) != NO_UPLOAD:
            if isinstance(parts, Answer):
                return read(parts, "ListParts")
            return Finished(outcome=Outcome.RETRY, reason="The upload is there after all.")
        # Look up the object last, so that the result reflects every completion so far.
        found = head_object(self._client, str(fields["bucket"]), key_of(fields))
        return outcome_by_object(answer.code, found, fields)

    def state(self, fields: Fields) -> FileState | Finished:
        """Returns the file's state, or RETRY or UNKNOWN with the reason if the store does not report it."""
        etags = self._list_parts(fields)
        if not isinstance(etags, Answer):
            return FileState.STAGED if etags == str(fields["etags"]).split(",") else FileState.UNKNOWN
        if etags != NO_UPLOAD:
            return read(etags, "ListParts")
        # The upload is gone. Only another attempt to complete it shows whether an earlier one is still in progress.
        finished = self.publish(fields)
        if finished.outcome is not Outcome.UNKNOWN:
            return _STATES.get(finished.outcome, finished)
        present = head_object(self._client, str(fields["bucket"]), key_of(fields))
        return FileState.UNKNOWN if isinstance(present, Present) or present.deleted else finished

    def discard(self, fields: Fields) -> Finished:
        """Aborts the upload until no part is left, because a part may arrive during an abort (S3's manual)."""
        give_up_at = time.monotonic() + _ABORT_WITHIN_S
        answer = ask(self._client.abort_multipart_upload, **_upload(fields))
        if isinstance(answer, Answer):
            return self._after_abort(answer, fields)
        while (parts := self._list_parts(fields)) not in (NO_UPLOAD, []):
            if isinstance(parts, Answer):
                return read(parts, "ListParts")
            if time.monotonic() >= give_up_at:
                return Finished(outcome=Outcome.RETRY, reason="Parts are still arriving at the aborted upload.")
            time.sleep(_POLL_S)
            again = ask(self._client.abort_multipart_upload, **_upload(fields))
            if isinstance(again, Answer) and again.code != NO_SUCH_UPLOAD:
                return read(again, "AbortMultipartUpload")
        if "mark" not in fields:
            return Finished(outcome=Outcome.ABORTED)  # A listing showed the upload, so it was open.
        return self._after_abort(NO_UPLOAD, fields)

    def _after_abort(self, answer: Answer, fields: Fields) -> Finished:
        """Returns ALREADY_COMMITTED if the upload is gone because it was published."""
        if answer.code != NO_SUCH_UPLOAD:
            return read(answer, "AbortMultipartUpload")
        found = head_object(self._client, str(fields["bucket"]), key_of(fields))
        if isinstance(found, Present):
            published = is_own(found, fields)
            return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)
        if found.status == 404 and found.code != "NoSuchBucket":
            return Finished(outcome=Outcome.ABORTED)
        return read(found, "HeadObject")

    def _complete(self, fields: Fields) -> Mapping[str, Any] | Answer:
        etags = enumerate(str(fields["etags"]).split(","), 1)
        parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in etags]
        return ask(
            self._once.complete_multipart_upload, **_upload(fields), MultipartUpload={"Parts": parts}, **self._condition
        )

    def _list_parts(self, fields: Fields) -> list[str] | Answer:
        etags: list[str] = []
        marker = 0
        while True:
            answer = ask(self._client.list_parts, **_upload(fields), PartNumberMarker=marker)
            if isinstance(answer, Answer):
                return NO_UPLOAD if answer.code == NO_SUCH_UPLOAD else answer
            etags += [str(part["ETag"]).strip('"') for part in answer.get("Parts", ())]
            if not answer.get("IsTruncated"):
                return etags
            marker = int(answer["NextPartNumberMarker"])


def _upload(fields: Fields) -> dict[str, Any]:
    return {"Bucket": fields["bucket"], "Key": key_of(fields), "UploadId": fields["upload_id"]}


def _differs(answer: Mapping[str, Any], fields: Fields) -> bool:
    """Returns True if the store's ETag differs from the one that S3 would compute from the parts."""
    etag = str(answer.get("ETag", "")).strip('"')
    return ":" not in str(fields["checksum"]) and etag != fields["checksum"]


def key_of(fields: Fields) -> str:
    """Returns the key at which the file is published."""
    return f"{fields['prefix']}{fields['path']}"
