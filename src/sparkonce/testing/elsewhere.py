"""Finishes handles in another process, like a driver that was started after the first one died."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from collections.abc import Sequence

from sparkonce.protocol.codec import decode_handle, encode_handle
from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.sink import TwoPhaseCommitSink

LIMIT_S = 120.0


def commit_elsewhere(sink: TwoPhaseCommitSink, handles: Sequence[Handle]) -> list[Finished]:
    """Commits in a new Python process, which gets the pickled sink and the serialized handles.

    Raises:
        RuntimeError: If the process failed. The message has its output.
    """
    order = {
        "path": sys.path,
        "sink": base64.b64encode(pickle.dumps(sink)).decode(),
        "handles": [encode_handle(handle) for handle in handles],
    }
    done = subprocess.run(
        [sys.executable, "-m", "sparkonce.testing.elsewhere"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the other process ended with {done.returncode}: {done.stderr.strip()}")
    return [Finished(outcome=Outcome(outcome), reason=reason) for outcome, reason in json.loads(done.stdout)]


def main() -> None:
    """Reads the request from standard input and writes the outcomes to standard output."""
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]
    sink: TwoPhaseCommitSink = pickle.loads(base64.b64decode(order["sink"]))  # noqa: S301 - from our parent
    committer = sink.committer()
    try:
        answers = committer.commit([decode_handle(text) for text in order["handles"]])
    finally:
        committer.close()
    json.dump([(answer.outcome.value, answer.reason) for answer in answers], sys.stdout)


if __name__ == "__main__":
    main()
