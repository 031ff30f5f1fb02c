"""Sentences of README and docs: short, on lines that fit an editor, and in the field's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tidy.snippets import PAGES
from tidy.sources import ROOT, nobody

MOST_WORDS = 30
MOST_COLUMNS = 120
GENERATED = {ROOT / "docs" / "mistakes.md"}
OTHERS_TABLES = {ROOT / "docs" / "explain.md", ROOT / "docs" / "simulation.md"}
"""Their tables repeat what tests print."""
PROSE = [page for page in PAGES if page not in GENERATED]

DIALECT = re.compile(
    r"\b(?:without a word|for ever|whoever|to be had|of before|one's own|held against|way on"
    r"|(?:go|goes|went|gone) on|(?:is|are|was|were) told|told of|(?:stands?|stood) (?:in|there)|takes? away|taken away"
    r"|asked is|not a byte)\b",
    re.IGNORECASE,
)
"""Say instead: silently, forever, anyone, available, earlier, your own, compared with, remedy; continue, is asked or
gets, reports, is in, remove."""

_FENCE = re.compile(r"^ *```")
_APART = re.compile(r"[|#<]|!\[|\[!\[|!!!|\?\?\?|:::|options:")
"""What begins a line that is no prose: a table, a heading, an image, what mkdocs reads."""
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_CODE = re.compile(r"``[^`]+``|`[^`]*`")
_QUOTED = re.compile(r'"[^"]*"')
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\")*_]*\s+(?=[\"(*_\[]*(?:[A-Z0-9]|sparkonce|librdkafka|kafka-python))")


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each line outside code, with its number."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields each paragraph and item of a list, with the number of its first line."""
    first, said, last = 0, "", 0
    for number, line in lines(text):
        bare = line.strip()
        item = _ITEM.match(bare)
        if not bare or item or _APART.match(bare) or number != last + 1:
            yield first, said
            first, said = number, ""
        if not _APART.match(bare):
            said = f"{said} {_ITEM.sub('', bare, count=1) if item else bare}".strip()
        last = number
    yield first, said


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    for number, paragraph in paragraphs(text):
        for sentence in _END.split(_LINK.sub(r"\1", _CODE.sub("CODE", paragraph))):
            words = sum(bool(re.search(r"\w", word)) for word in sentence.split())
            if words > MOST_WORDS:
                yield number, f"{words} words: {sentence[:80]}"


def long_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields what an editor would wrap, but for tables and images."""
    for number, line in lines(text):
        if len(line) > MOST_COLUMNS and not _APART.match(line.strip()):
            yield number, f"{len(line)} columns"


def tables(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in lines(text) if line.startswith("|"))


def dialect(parts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yields this project's private words, but for what is quoted: a message, or a setting."""
    for number, said in parts:
        for one in DIALECT.finditer(_QUOTED.sub("", _CODE.sub("", said))):
            yield number, one[0]


def found(page: Path) -> Iterator[str]:
    text = page.read_text()
    wrong = [*long_sentences(text), *long_lines(text), *dialect(paragraphs(text))]
    if page not in OTHERS_TABLES:
        wrong += dialect(tables(text))
    return (f"{page.relative_to(ROOT)}:{number}: {what}" for number, what in wrong)


def test_pages_are_said_in_short_sentences_and_the_fields_words() -> None:
    assert len(PROSE) > 30
    nobody((one for page in PROSE for one in found(page)), "split it, wrap it, or use the field's word")


LONG = " ".join(["word"] * (MOST_WORDS + 1))


@pytest.mark.parametrize("text", [f"{LONG}.", f"- {LONG}.", f"Short. {LONG}.", f"1. **{LONG}**\n   more.", f'"{LONG}"'])
def test_a_long_sentence_is_found(text: str) -> None:
    assert list(long_sentences(text))
    assert not list(long_sentences(text.replace("word word", "word. Word")))


@pytest.mark.parametrize("text", [f"```\n{LONG}\n```", f"| {LONG} |", f"`{LONG}`", f"[a page]({LONG})"])
def test_code_tables_and_addresses_are_no_sentences(text: str) -> None:
    assert not list(long_sentences(text))


def test_long_lines_and_dialect_are_found() -> None:
    assert [number for number, _ in long_lines("a\n" + "b" * 121 + "\n| " + "c" * 121 + " |")] == [2]
    said = 'It goes on, without a\nword, `for ever`: "went\non".\n\n| a | whoever |'
    assert [one for _, one in dialect(paragraphs(said))] == ["goes on", "without a word"]
    assert list(dialect(tables(said))) == [(5, "whoever")]
