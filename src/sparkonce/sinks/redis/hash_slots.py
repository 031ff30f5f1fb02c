"""Computes which of a cluster's 16384 hash slots a key belongs to, and makes keys of a given slot.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model
"""

from __future__ import annotations

import base64
import zlib
from binascii import crc_hqx
from functools import lru_cache
from itertools import product, repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

HASH_SLOTS = 16384
_TAG = r"(?s)^[^{]*\{(?P<tag>[^}]+)\}"
"""Matches the text between the first ``{`` and the next ``}``, unless it is empty."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"


def hash_slots(keys: pa.Array) -> npt.NDArray[np.uint16]:
    """Returns the hash slot of each binary key: CRC16 (XMODEM) of the key or, if it has one, of its hash tag."""
    hashed = keys
    if pc.any(pc.greater_equal(pc.find_substring(keys, b"{"), 0)).as_py():
        hashed = pc.coalesce(pc.extract_regex(keys, pattern=_TAG).field("tag"), keys)
        # A key without a tag has the empty text there, and no tag is empty.
        hashed = pc.if_else(pc.equal(pc.binary_length(hashed), 0), keys, hashed)
    codes = np.fromiter(map(crc_hqx, hashed.to_pylist(), repeat(0)), np.uint16, len(hashed))
    return codes & np.uint16(HASH_SLOTS - 1)


def hash_slot(key: bytes) -> int:
    """Returns the hash slot of one key."""
    return int(hash_slots(pa.array([key], pa.binary()))[0])


@lru_cache(maxsize=1)
def tags() -> tuple[str, ...]:
    """Returns a short text that belongs to it, for each hash slot."""
    found: dict[int, str] = {}
    for length in range(1, 5):
        for letters in product(_LETTERS, repeat=length):
            text = bytes(letters)
            found.setdefault(crc_hqx(text, 0) % HASH_SLOTS, text.decode())
            if len(found) == HASH_SLOTS:
                return tuple(found[slot] for slot in range(HASH_SLOTS))
    raise RuntimeError("four letters do not reach every hash slot")


def pack_slots(slots: Iterable[int]) -> str:
    """Packs hash slots into a short text: some 20 letters for nearly all slots, 2,800 at most."""
    bits = np.zeros(HASH_SLOTS, np.uint8)
    bits[list(slots)] = 1
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def unpack_slots(text: str) -> list[int]:
    """Unpacks the text of `pack_slots`; no slots if it is empty."""
    if not text:
        return []
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8))
    return [int(slot) for slot in np.flatnonzero(bits)]
