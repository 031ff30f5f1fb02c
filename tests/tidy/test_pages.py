"""Pages of one kind have the same order and complete tables, and a question on the front page links to them."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import sparkonce
import sparkonce_pravega
import sparkonce_rabbitmq
from sparkonce import errors
from sparkonce.sinks.files.s3.settings import S3Settings
from tidy.sources import MODULES, ROOT
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


@pytest.mark.parametrize("page", PROPERTIES)
def test_a_page_about_a_system_has_the_order_of_all(page):
    order = ["How it works", "Setup", "Every property", "What to watch", "When things go wrong"]
    text = re.sub(r"^```.*?^```$", "", (DOCS / f"{page}.md").read_text(), flags=re.M | re.S)
    assert re.findall(r"^## (.+)$", text, re.M)[: len(order)] == order


@pytest.mark.parametrize("page", PROPERTIES)
def test_every_property_is_in_its_page(page):
    text = (DOCS / f"{page}.md").read_text().partition("\n## Every property\n")[2].partition("\n## ")[0]
    tables = [table.splitlines() for table in re.findall(r"^\|.*(?:\n\|.*)*", text, re.M)]
    parameters: dict[str, set[str]] = {}
    for name in PROPERTIES[page]:
        called: Any = S3Settings
        if name != "store_options":
            called = next(getattr(one, name) for one in PUBLIC if name in one.__all__)
        parameters[name] = set(inspect.signature(called).parameters)
    for name, own in parameters.items():
        listed = {
            one
            for head, _, *rows in tables
            if re.search(rf"`{name}(?:\(…\))?`", head.split("|")[1])
            for row in rows
            for one in re.findall(r"`(\w+)`", row.split("|")[1])
        }
        # A table for two classes may list parameters of either one.
        known = set().union(*parameters.values()) if page == "tables" else own
        assert (own - listed, listed - known) == (set(), set()), name


def test_every_sink_has_a_page():
    sinks = {one for package in PUBLIC for one in package.__all__ if one.endswith("Sink")}
    assert {name for names in PROPERTIES.values() for name in names} >= sinks


def test_messages_lead_to_pages_and_headings_that_are_there():
    def anchors(page: Path) -> set[str]:
        """Returns the anchors of a page's headings, as both the site and GitHub generate them."""
        titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    lost = [
        f"{where_in_src(path)}: docs/{page}#{anchor}"
        for path in MODULES
        for page, anchor in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", source(path))
        if not (DOCS / page).is_file() or (anchor and anchor not in anchors(DOCS / page))
    ]
    assert lost == [], "name the page and heading that it is now"


def test_every_error_is_in_troubleshooting():
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.SparkonceError)]
    assert len(classes) > 15
    lines = (DOCS / "troubleshooting.md").read_text().splitlines()
    rows = "\n".join(line.split("|")[1] for line in lines if line.startswith("|"))
    assert sorted(one.__name__ for one in classes if f"`{one.__name__}`" not in rows) == []


def test_the_front_page_leads_to_every_page():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = set(re.findall(r"[\w-]+\.md", menu)) - {"index.md"}
    assert len(pages) > 35
    outside = {f"../{file}": page for file, page in runpy.run_path(str(ROOT / "docs_hook.py"))["PAGES"].items()}
    linked = re.findall(r"\]\(([^)#\s]+\.md)", (DOCS / "index.md").read_text())
    assert pages - {outside.get(one, one) for one in linked} == set()
