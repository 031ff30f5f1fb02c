"""Common user mistakes and their error messages. Tests run each of them and keep docs/mistakes.md up to date.

``RENEW_MISTAKES=1 python3 dev.py run pytest tests/spark/test_mistakes.py`` rewrites the page.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkonce.errors import ConfigurationError, PrepareError, SparkonceError

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
NOTHING = "Nothing: it starts, and is not refused."


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a user's program.

    Attributes:
        code: A Python expression, or a description in words if `run` is set.
        words: A text that the message must contain, or `NOTHING` if there is no message.
        kind: The class of the error. A class that is not ours belongs to Python or Spark, whose message is sufficient.
            `Warning` stands for code that is accepted and logs a warning.
        run: Names the function that makes the mistake, if an expression cannot.
    """

    code: str
    words: str
    kind: type[Exception] = ConfigurationError
    run: str = ""


class _Warned(logging.Handler):
    """Collects the warnings of this thread. Threads of a query may log at any time and are ignored."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []
        self._of = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._of:
            self.told.append(record.getMessage())


def said(mistake: Mistake, names: Mapping[str, Any], do: Callable[[], str] | None = None) -> str:
    """Makes the mistake, and returns the class of the error with its message, or ``Warning`` with the logged message.

    Args:
        mistake: The mistake.
        names: The names that its code may use.
        do: Makes the mistake instead of its code, and returns the message.
    """
    warned = _Warned()
    logger = logging.getLogger("sparkonce")
    logger.addHandler(warned)
    try:
        told = do() if do is not None else NOTHING
        if do is None:
            eval(mistake.code, dict(names))  # noqa: S307 - from the tables of these tests
    except Exception as error:  # noqa: BLE001 - the error is the result
        told = str(error).strip()
        return f"{type(error).__name__}: {told if isinstance(error, SparkonceError) else told.partition(chr(10))[0]}"
    finally:
        logger.removeHandler(warned)
    return f"{Warning.__name__}: {' '.join(warned.told)}" if told == NOTHING and warned.told else told


def wrong(mistake: Mistake, told: str) -> str:
    """Returns how the message differs from what is expected, or an empty string."""
    ours = issubclass(mistake.kind, SparkonceError)
    if mistake.words not in told:
        return f"{mistake.words!r} is missing"
    if told == NOTHING:
        return ""
    if not told.startswith(f"{mistake.kind.__name__}: "):
        return f"not {mistake.kind.__name__}"
    if ours and mistake.kind is not PrepareError and not re.search(r"[.!?…] Next: \S.*[.!?…]$", told, re.DOTALL):
        return "no next step"
    return "a traceback" if "Traceback" in told or "Py4J" in told else ""


def plain(told: str, folder: Path) -> str:
    """Removes everything that changes from run to run."""
    told = told.replace(str(folder), "/data")
    told = re.sub(r"127\.0\.0\.1:\d{4,5}", "broker:9092", told)
    told = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>", told)
    told = re.sub(r"\b([0-9a-f]{32}|(?=[0-9a-f]*\d)[0-9a-f]{12})\b", "<id>", told)
    told = re.sub(r"\(/\S+/test_mistakes\.py, line \d+", "(job.py, line 7", told)
    told = re.sub(r"\brun (\d+)-[0-9a-f]{8}\b", r"run \1-<id>", told)
    told = re.sub(r"\b(in|after|within) \d+(\.\d+)? s\b", r"\1 some s", told)
    told = re.sub(r"Handshake failed: .*?\(_ssl\.c:\d+\)", "Handshake failed: …", told)
    told = re.sub(r" at 0x[0-9a-f]+", "", told)
    told = re.sub(r"(missing|target|source|c)-[0-9a-f]{8}\b", r"\1", told)
    return " ".join(told.split())


def check(rows: Sequence[tuple[Mistake, str]]) -> None:
    """Fails if a message differs from what is expected."""
    failed = [f"{one.code}: {why}: {told}" for one, told in rows if (why := wrong(one, told))]
    assert not failed, "\n".join(failed)


def keep(section: str, rows: Sequence[tuple[Mistake, str]], folder: Path) -> None:
    """Compares a section of the page with the messages, or writes it if the page is being renewed.

    The page omits the name of the usual error.

    Args:
        section: The name of the section.
        rows: Each mistake and its message.
        folder: The temporary folder of the test. Its paths are shown as ``/data``.
    """
    check(rows)
    begin, end = f"<!-- {section}: made by the tests -->\n", f"<!-- {section}: end -->"
    page = PAGE.read_text()
    assert page.count(begin) == page.count(end) == 1, section
    told = [(one, plain(message, folder).removeprefix("ConfigurationError: ")) for one, message in rows]
    cells = "".join(f"| {_code(one)} | {_cell(message)} |\n" for one, message in told)
    made = f"{begin}\n| mistake | message |\n| --- | --- |\n{cells}\n{end}"
    before, kept = page.index(begin), page.index(end) + len(end)
    if os.environ.get("RENEW_MISTAKES"):
        PAGE.write_text(page[:before] + made + page[kept:])
        return
    renew = "RENEW_MISTAKES=1 python3 dev.py run pytest tests/spark/test_mistakes.py"
    differing = sorted(set(page[before:kept].splitlines()) ^ set(made.splitlines()))
    assert page[before:kept] == made, "\n".join(["docs/mistakes.md is not what is said now", *differing, renew])


def _code(mistake: Mistake) -> str:
    return mistake.code if mistake.run else f"`` {mistake.code.replace('|', chr(92) + '|')} ``"


def _cell(text: str) -> str:
    for mark, escaped in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("_", "\\_"), ("`", "\\`")):
        text = text.replace(mark, escaped)
    return text.replace("[", "\\[")
