"""Pages of one kind have the same order, complete tables, and a question on the front page that leads to them."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import sparkonce
import sparkonce_pravega
import sparkonce_rabbitmq
from sparkonce import errors
from sparkonce.sinks.files.s3.settings import S3Settings
from tidy.sources import MODULES, ROOT, nobody
from tidy.sources import name as where_in_src
from tidy.sources import text as source

DOCS = ROOT / "docs"
PUBLIC = (sparkonce, sparkonce_pravega, sparkonce_rabbitmq)
"""Packages from which users import."""


PROPERTIES: dict[str, list[str]] = {
    "kafka": ["KafkaSink"],
    "files": ["FilesSink"],
    "s3": ["store_options"],
    "postgres": ["PostgresSink"],
    "mysql": ["MySQLSink"],
    "redis": ["RedisSink"],
    "rabbitmq": ["RabbitMQStreamSink", "RabbitMQQueueSink", "RabbitMQ"],
    "tables": ["DeltaSink", "IcebergSink"],
    "pravega": ["PravegaSink", "Pravega"],
    "write-ahead": ["WriteAheadSink"],
}
"""The pages about systems, and the classes whose parameters each page lists."""


def headings(text: str) -> list[str]:
    """Returns the second-level headings of a page, ignoring code blocks."""
    return re.findall(r"^## (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)


def parameters(name: str) -> set[str]:
    if name == "store_options":
        return set(inspect.signature(S3Settings).parameters)
    called: Any = next(getattr(one, name) for one in PUBLIC if name in one.__all__)
    return set(inspect.signature(called).parameters)


def listed(text: str, name: str) -> set[str]:
    """Returns the names in the first column of the tables whose header names this class."""
    part = text.partition("\n## Every property\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\|.*(?:\n\|.*)*", part, re.M)
    named: set[str] = set()
    for head, _, *rows in (table.splitlines() for table in tables):
        if re.search(rf"`{name}(?:\(…\))?`", head.split("|")[1]):
            named |= {one for row in rows for one in re.findall(r"`(\w+)`", row.split("|")[1])}
    return named


def property_gaps(page: str, text: str) -> Iterator[str]:
    names = PROPERTIES[page]
    all_of_them = set().union(*map(parameters, names))
    for name in names:
        found = listed(text, name)
        # A table for two classes may list the parameters of either.
        known = all_of_them if page == "tables" else parameters(name)
        yield from (f"{page}.md: {name}({one}) is missing" for one in sorted(parameters(name) - found))
        yield from (f"{page}.md: {name} has no {one}" for one in sorted(found - known))


def menu_pages(entries: Any) -> Iterator[str]:
    """Yields each page in the menu of mkdocs.yml."""
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from menu_pages(entry)


def menu() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    return set(menu_pages(yaml.safe_load(text[text.index("\nnav:") :])["nav"]))


def linked(text: str) -> set[str]:
    """Returns the names of the pages that a page of docs/ links to, as they are on the site."""
    outside = {f"../{file}": page for file, page in runpy.run_path(str(ROOT / "docs_hook.py"))["PAGES"].items()}
    found = set(re.findall(r"\]\(([^)#\s]+\.md)", text))
    return {outside.get(one, one) for one in found}


def unnamed_errors(text: str) -> list[str]:
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.SparkonceError)]
    assert len(classes) > 15
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    return sorted(one.__name__ for one in classes if f"`{one.__name__}`" not in rows)


@pytest.mark.parametrize("page", PROPERTIES)
def test_a_page_about_a_system_has_the_order_of_all(page: str) -> None:
    # The first headings of each page about a target system.
    order = ["How it works", "Setup", "Every property", "What to watch", "When things go wrong"]
    assert headings((DOCS / f"{page}.md").read_text())[: len(order)] == order


def test_every_property_is_in_its_page() -> None:
    nobody(
        (one for page in PROPERTIES for one in property_gaps(page, (DOCS / f"{page}.md").read_text())),
        "keep the table below Every property",
    )


def test_every_sink_has_a_page() -> None:
    sinks = {one for package in PUBLIC for one in package.__all__ if one.endswith("Sink")}
    assert {name for names in PROPERTIES.values() for name in names} >= sinks


def test_messages_lead_to_pages_and_headings_that_are_there() -> None:
    def anchors(page: Path) -> set[str]:
        """Returns the anchors of a page's headings, as both the site and GitHub generate them."""
        titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def lost_addresses(texts: dict[str, str]) -> Iterator[str]:
        """Yields links in messages and docstrings that point to a page or a heading that does not exist."""
        for where, text in texts.items():
            for page, anchor in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", text):
                if not (DOCS / page).is_file() or (anchor and anchor not in anchors(DOCS / page)):
                    yield f"{where}: docs/{page}#{anchor}"

    nobody(
        lost_addresses({where_in_src(path): source(path) for path in MODULES}),
        "name the page and heading that it is now",
    )
    said = {"a": "see docs/kafka.md#readers, docs/kafka.md#reader and docs/nowhere.md."}
    assert list(lost_addresses(said)) == ["a: docs/kafka.md#reader", "a: docs/nowhere.md#"]


def test_every_error_is_in_troubleshooting() -> None:
    assert unnamed_errors((DOCS / "troubleshooting.md").read_text()) == []


def test_the_front_page_leads_to_every_page() -> None:
    pages = menu() - {"index.md"}
    assert len(pages) > 35
    assert pages - linked((DOCS / "index.md").read_text()) == set()
