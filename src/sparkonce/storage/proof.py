"""Tests that an object store lets only one of two puts of the same name succeed, before a log relies on it.

A store may accept the condition of a put and ignore it, or check and put in two steps. So each new checkpoint begins
with races. The file ``sparkonce/proved`` records them with the store's address, because a bucket's data, including this
file, may be copied to another store.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Barrier

from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles, Landed, PutUnknownError, Taken

RACES = 20
PROVED = "sparkonce/proved"
_RACERS = 2
_TRIES = 3
"""How many times a race with an unknown outcome is repeated."""
_TOGETHER_WITHIN_S = 30.0


def prove(files: CheckpointFiles) -> None:
    """Lets pairs of puts race, unless the store needs no test, or has already passed it for this checkpoint.

    Raises:
        ConfigurationError: If a race has two winners or no known winner, or the store is unreachable.
    """
    if files.endpoint is None:
        return
    try:
        if not _is_proved(files):
            files.check()
            _prove(files)
    except OSError as error:
        raise ConfigurationError(
            f"checkpoint={files.location!r}: the store could not be asked to show that it can carry a decision log: "
            f"{error.strerror}.",
            next_step="See whether the store runs, and allows to read, list, put and delete there.",
            setting="checkpoint",
        ) from None


def _prove(files: CheckpointFiles) -> None:
    folder = f"sparkonce/.races-{secrets.token_hex(6)}"
    names = [f"{folder}/{number:03d}" for number in range(RACES * _TRIES)]
    tried = iter(names)
    try:
        with ThreadPoolExecutor(_RACERS) as pool:
            for _ in range(RACES):
                _race(files, pool, [next(tried) for _ in range(_TRIES)])
    finally:
        with suppress(OSError):  # leftovers are harmless, and the first error shows what is wrong
            files.delete(names)
    proof = {
        **_proved_for(files),
        "races": RACES,
        "at_ms": time.time_ns() // 1_000_000,
    }
    files.replace(PROVED, json.dumps(proof).encode())


def _proved_for(files: CheckpointFiles) -> dict[str, str | None]:
    return {"location": files.location, "client": type(files).__name__, "endpoint": files.endpoint}


def _is_proved(files: CheckpointFiles) -> bool:
    """Returns True if the store at this address has passed the races, with the current client."""
    try:
        proof = json.loads(files.read(PROVED) or b"")
        return all(proof[name] == value for name, value in _proved_for(files).items())
    except (ValueError, KeyError, TypeError):
        return False


def _race(files: CheckpointFiles, pool: ThreadPoolExecutor, names: Sequence[str]) -> None:
    """Lets two puts of the same name race. If the outcome is unknown, the race is repeated under another name."""
    reason = ""
    for name in names:
        start = Barrier(_RACERS)
        data = [secrets.token_bytes(16) for _ in range(_RACERS)]
        racing = [pool.submit(_put, files, name, one, start) for one in data]
        wait(racing)
        try:
            answers = [one.result() for one in racing]
        except PutUnknownError as error:
            reason = str(error)
            continue
        # A put that was sent twice has also succeeded if it finds its own bytes.
        landed = [
            one
            for one, answer in zip(data, answers, strict=True)
            if isinstance(answer, Landed) or answer.standing == one
        ]
        if len(landed) != 1 or any(isinstance(one, Taken) and one.standing != landed[0] for one in answers):
            raise _refusal(files, f"{len(landed)} of {_RACERS} puts of {name!r} at the same time landed")
        if files.read(name) != landed[0]:
            raise _refusal(files, f"{name!r} does not hold the bytes of the put that landed")
        return
    raise ConfigurationError(
        f"checkpoint={files.location!r}: the store did not say which of two puts at the same time landed, in "
        f"{len(names)} tries: {reason}.",
        next_step="See whether the store runs, and start again: nothing was written but the objects of this test.",
        setting="checkpoint",
    )


def _put(files: CheckpointFiles, name: str, data: bytes, start: Barrier) -> Landed | Taken:
    start.wait(_TOGETHER_WITHIN_S)
    return files.put(name, data)


def _refusal(files: CheckpointFiles, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"checkpoint={files.location!r}: this store cannot carry a decision log: {what}. Two drivers could both decide "
        "the same batch.",
        next_step="Use a store that keeps If-None-Match, or a mounted disk: see docs/checkpoints.md.",
        setting="checkpoint",
    )
