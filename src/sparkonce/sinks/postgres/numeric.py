"""Decimals as PostgreSQL's numeric in binary: groups of four decimal digits, all rows at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sparkonce.sinks.postgres.encode import Fixed

_GROUP = 4
_BASE = 10_000
_NEGATIVE = 0x4000
_INT64_DIGITS = 18
_LIMBS = 5
"""The number of limbs of 32 bits: 38 digits and up to three zeros behind them take 137 bits."""


def numeric(values: pa.Array) -> Fixed:
    """Returns each decimal as ``ndigits, weight, sign, dscale`` and its groups; a null as anything.

    All rows of a column take the same width, with leading zeros, which the server strips (``make_result`` in its
    ``numeric.c``).

    Args:
        values: A decimal128 array with a scale of 0 or more.
    """
    precision, scale = values.type.precision, values.type.scale
    behind = -(-scale // _GROUP)
    before = -(-(precision - scale) // _GROUP)
    zeros = behind * _GROUP - scale
    words = np.frombuffer(values.buffers()[1], "<u8", 2 * len(values), 16 * values.offset).reshape(-1, 2)
    negative = words[:, 1] >> np.uint64(63) != 0
    digits = _small if precision + zeros <= _INT64_DIGITS else _large
    groups = digits(words, negative, 10**zeros, before + behind)
    out = np.empty(
        len(values),
        np.dtype(
            [("count", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">i2"), ("groups", ">i2", len(groups))]
        ),
    )
    out["count"] = len(groups)
    out["weight"] = before - 1
    out["sign"] = np.where(negative, _NEGATIVE, 0)
    out["scale"] = scale
    for place, group in enumerate(reversed(groups)):
        out["groups"][:, place] = group
    return out


def _small(words: Fixed, negative: Fixed, factor: int, groups: int) -> list[Fixed]:
    """Returns the groups, the least first, of numbers that fit into 64 bits."""
    number = words[:, 0].view(np.int64)
    rest = np.where(negative, -number, number) * factor
    found = []
    for _ in range(groups):
        rest, group = np.divmod(rest, _BASE)
        found.append(group)
    return found


def _large(words: Fixed, negative: Fixed, factor: int, groups: int) -> list[Fixed]:
    limbs = _multiplied(_absolute(words, negative), factor)
    found = []
    for _ in range(groups):
        rest = np.zeros(len(words), np.uint64)
        for place in range(_LIMBS - 1, -1, -1):
            limbs[place], rest = np.divmod(rest << np.uint64(32) | limbs[place], np.uint64(_BASE))
        found.append(rest)
    return found


def _absolute(words: Fixed, negative: Fixed) -> list[Fixed]:
    """Returns 128-bit numbers without their sign, as four limbs of 32 bits, the least first."""
    low = np.where(negative, ~words[:, 0] + np.uint64(1), words[:, 0])
    carry = (words[:, 0] == 0).astype(np.uint64)
    high = np.where(negative, ~words[:, 1] + carry, words[:, 1])
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return [low & mask, low >> half, high & mask, high >> half]


def _multiplied(limbs: list[Fixed], factor: int) -> list[Fixed]:
    carry = np.zeros(len(limbs[0]), np.uint64)
    product = []
    for limb in limbs:
        whole = limb * np.uint64(factor) + carry
        product.append(whole & np.uint64(0xFFFFFFFF))
        carry = whole >> np.uint64(32)
    return [*product, carry]
