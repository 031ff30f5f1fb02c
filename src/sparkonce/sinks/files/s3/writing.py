"""One file while it is being staged: a multipart upload, sent part by part from a writer's thread."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sparkonce.errors import OutageError, PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files.s3.outcomes import TRANSACTION, UPLOAD, Answer, name_text, read
from sparkonce.sinks.files.s3.requests import ask
from sparkonce.sinks.files.s3.settings import MIB, S3Settings
from sparkonce.sinks.files.store import Fields, StagedFile

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Finished

log = logging.getLogger(__name__)

MOST_PARTS = 10_000
"""The limit of S3 itself."""

LARGEST_PART_BYTES = 5 * 1024 * MIB
PARTS_OF_ONE_SIZE = 1_000
_MD5 = re.compile(r"[0-9a-f]{32}")


def part_size(number: int, first_bytes: int) -> int:
    """Returns the size of part ``number``, from 1. It doubles after each 1,000 parts, so that 5 TiB take < 10,000."""
    return min(first_bytes << ((number - 1) // PARTS_OF_ONE_SIZE), LARGEST_PART_BYTES)


def final_etag(etags: Sequence[str]) -> str:
    """Returns the ETag of the whole object; a hash of its parts' ETags if those are not MD5s, as with SSE-KMS."""
    if not all(_MD5.fullmatch(etag) for etag in etags):
        return f"sha256:{hashlib.sha256(','.join(etags).encode()).hexdigest()}"
    whole = hashlib.md5(b"".join(map(bytes.fromhex, etags)), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(etags)}"


class Uploader:
    """The threads, and the memory of parts under way, that all files of a worker process share.

    Args:
        client: A boto3 client, which repeats what may be repeated.
        begin_client: A client that sends each request once: the repeats are made here.
        settings: Sizes and numbers.
        bucket: The bucket.
        discard: Aborts an upload.
    """

    def __init__(
        self,
        client: Any,
        begin_client: Any,
        settings: S3Settings,
        bucket: str,
        discard: Callable[[Fields], Finished],
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
        """Uploads a part, in the background once there is memory for it, and gives its ETag."""
        self._slots.acquire()  # freed by a part that ends, and those have timeouts
        try:
            future = self._pool.submit(self._send, key, upload, number, body)
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Ends the threads, once they have finished what is under way."""
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
            # If the answer was lost and the upload begun, the next sweep finds it.
            time.sleep(min(0.05 * 2**attempt, 2.0))
            attempt += 1

    def _send(self, key: str, upload: Future[str], number: int, body: bytes | bytearray) -> str:
        # A part waits only for an earlier task of the same queue, so threads cannot wait for each other forever.
        answer = ask(
            self.client.upload_part,
            Bucket=self.bucket,
            Key=key,
            UploadId=upload.result(),
            PartNumber=number,
            Body=body,
        )
        if isinstance(answer, Answer):
            raise _not_whole(key, read(answer, "UploadPart"))
        return str(answer["ETag"]).strip('"')


def _not_whole(key: str, finished: Finished) -> PrepareError:
    kind = OutageError if finished.outcome is Outcome.RETRY else PrepareError
    return kind(f"The file {key} could not be uploaded. {finished.reason}", outcome=finished.outcome.value)


class S3StagedFile(StagedFile):
    """A file under way to a bucket. One call at a time, from any thread.

    Args:
        uploader: This process's uploader.
        prefix: The prefix of the sink's keys.
        path: The path below the prefix at which it is to be published.
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
        """See `StagedFile.stream`."""
        return cast("BinaryIO", self._stream)

    def size(self) -> int:
        """See `StagedFile.size`."""
        return self._size

    def seal(self) -> Fields:
        """See `StagedFile.seal`. Waits until all parts have arrived; the object does not exist yet."""
        if self._buffer or not self._parts:  # S3 completes no upload without parts
            self._send_part()
        etags = [part.result() for part in self._parts]
        # All of them: a completion names them even if the upload is gone, and ListParts with it.
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
        """See `StagedFile.discard`. Leaves an upload that cannot be aborted now to a sweep."""
        self._stream.close()
        self._buffer = bytearray()
        for part in self._parts:
            part.cancel()
        wait_for(self._parts)  # a part that arrives after the abort would stay there and cost money
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
                part.result()  # raises its error as early as it is known
        body, self._buffer = self._buffer, bytearray()
        self._parts.append(self._uploader.send(self._key, self._upload, number, body))


class _Stream(io.RawIOBase):
    """Takes bytes in sequence, as pyarrow gives them."""

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
