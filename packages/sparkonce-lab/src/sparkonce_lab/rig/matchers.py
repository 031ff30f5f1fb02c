"""Recognises requests for a fault proxy by what came before, or by Kafka's numbers."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from sparkonce_lab.rig.proxy import Matcher

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 22, 24, 26
"""Kafka's API keys, see https://kafka.apache.org/protocol#protocol_api_keys"""


def after(first: bytes | re.Pattern[bytes], then: bytes, *, always: bool = False) -> Callable[[], Matcher]:
    """Recognises the next request with ``then`` after a piece with ``first``; with ``always`` each."""
    before = first if isinstance(first, re.Pattern) else re.compile(re.escape(first))

    def new() -> Matcher:
        armed = False

        def match(piece: bytes) -> int | None:
            nonlocal armed
            place = piece.find(then)
            if armed and place >= 0:
                armed = always
                return place
            armed = armed or before.search(piece) is not None
            return None

        return match

    return new


def kafka_request(api_key: int) -> Callable[[], Matcher]:
    """Recognises a request to Kafka by its API key, which follows the four bytes of the request's length."""

    def new() -> Matcher:
        rest = b""
        skip = 0

        def match(piece: bytes) -> int | None:
            nonlocal rest, skip
            data, before, place, found = rest + piece, len(rest), skip, None
            while place + 6 <= len(data):
                length, key = struct.unpack_from(">ih", data, place)
                if key == api_key and found is None:
                    found = max(0, place - before)
                place += 4 + length
            rest, skip = (b"", place - len(data)) if place > len(data) else (data[place:], 0)
            return found

        return match

    return new
