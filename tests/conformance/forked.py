"""Commits in another process, which is a fork of one that has everything imported and has never had a sink."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from socket import socket

from sparkonce.protocol.codec import decode_handle, encode_handle
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.sink import TwoPhaseCommitSink
from zygote import Zygote

_CLIENTS = ("boto3.", "botocore.", "redis.")
"""Client libraries that the sinks import lazily."""
_OF_EVERY_SINK = ("pandas", "pyarrow.pandas_compat", "pyarrow.parquet", "encodings.idna", "conformance.forked")


def commit_in_a_fork(zygote: Zygote, sink: TwoPhaseCommitSink, handles: Sequence[Handle]) -> list[Finished]:
    """Does the same as `sparkonce.testing.elsewhere.commit_elsewhere`, without importing everything again each time."""
    imported = [name for name in sys.modules if name.startswith(("sparkonce.sinks.", *_CLIENTS))]
    zygote.load([*_OF_EVERY_SINK, *(name for name in imported if "vendored" not in name)])
    _, channel = zygote.fork(partial(_commit, pickle.dumps(sink), [encode_handle(handle) for handle in handles]))
    with channel, channel.makefile() as answers:
        said = answers.read()
    assert said, f"the other process has failed; see {zygote.log}"
    return [Finished(outcome=Outcome(outcome), reason=reason) for outcome, reason in json.loads(said)]


def _commit(sink: bytes, handles: Sequence[str], channel: socket) -> None:
    committer = pickle.loads(sink).committer()  # noqa: S301 - pickled by the parent process
    try:
        answers = committer.commit([decode_handle(text) for text in handles])
    finally:
        committer.close()
    channel.sendall(json.dumps([(answer.outcome.value, answer.reason) for answer in answers]).encode())
