"""Checks that the documentation site builds without warnings, shows its pages correctly, and can be searched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from tidy.sources import ROOT

HTML = set(
    re.findall(
        r"\w+",
        "a abbr article aside b blockquote body br button code dd del details div dl dt em figure footer form h1 h2 h3 "
        "h4 h5 h6 head header hr html i img input label li link main meta nav noscript ol p path pre script section "
        "small span strong style sub summary sup svg table tbody td template th thead title tr u ul",
    )
)
"""The elements that a page may contain.

``array<struct<…>>`` without backquotes would become an unknown element, which browsers do not show.
"""


class Seen(HTMLParser):
    """Collects the element names, heading ids and loaded URLs of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.headings: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        given = dict(attrs)
        if tag in {"h1", "h2", "h3", "h4", "h5"}:
            self.headings.append(given.get("id") or "")
        if tag in {"script", "img", "link"} and given.get("rel") != "canonical":
            self.loads += [address for address in (given.get("src"), given.get("href")) if address]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[str, Seen]]:
    for path in sorted(site.rglob("*.html")):
        if "reports" not in path.parts:
            seen = Seen()
            seen.feed(path.read_text())
            yield path.relative_to(site).as_posix(), seen


def test_every_page_is_in_the_menu(site: Path) -> None:
    """Checks the URL of each page against the front page, which contains the whole menu."""
    front = (site / "index.html").read_text()
    made = {path.parent.name for path in site.rglob("index.html")} - {site.name}
    assert len(made) > 25
    assert {page for page in made if f'href="{page}/"' not in front} == set()


def test_nothing_that_was_written_is_taken_for_an_element(site: Path) -> None:
    strange = {name: seen.elements - HTML for name, seen in pages(site)}
    assert {name: found for name, found in strange.items() if found} == {}


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """Pages must work behind a firewall, and must not report their readers to anyone."""
    foreign = {name: [one for one in seen.loads if "//" in one] for name, seen in pages(site)}
    assert {name: found for name, found in foreign.items() if found} == {}


def test_the_api_names_what_users_call_and_no_more(site: Path) -> None:
    headings = [one for name, seen in pages(site) if name.startswith("api") for one in seen.headings]
    names = {one.rpartition(".")[2] for one in headings}
    assert {
        "ExactlyOnce",
        "start",
        "KafkaSink",
        "read_kafka",
        "PreflightError",
        "TwoPhaseCommitSink",
        "prepare",
    } <= names
    assert not {one for one in names if one.startswith("_")}
    assert not {one for one in headings if one.endswith(("KafkaSink.writer", "PostgresSink.committer"))}


def test_the_reference_of_commands_has_each_with_its_options(site: Path) -> None:
    page = (site / "cli" / "index.html").read_text()
    for command in ("new", "checkpoint show", "transactions resolve", "files compact", "verify", "broker up"):
        assert f"sparkonce {command}" in page
    assert "<code>--accept-loss</code>" in page


def test_the_site_names_no_address_that_it_does_not_have(site: Path) -> None:
    """Without a `site_url` in mkdocs.yml, there are no canonical links and no sitemap, and the 404 page has its CSS."""
    assert [name for name, _ in pages(site) if 'rel="canonical"' in (site / name).read_text()] == []
    assert not (site / "sitemap.xml").exists()
    missing = Seen()
    missing.feed((site / "404.html").read_text())
    assert [one for one in missing.loads if not (site / one.lstrip("/")).exists()] == []


SEARCHES = {
    "read_committed": {"readers/"},
    "topic does not exist": {"kafka-source/", "operations/", "troubleshooting/"},
    "SupersededError": {"troubleshooting/"},
    "performance": {"benchmark/"},
    "spark connect": {"formats/", "connect/"},
}
"""What people search for, and the page or pages that answer it."""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt install chromium)")
def test_search_has_the_right_page_first(site: Path, tmp_path: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    found = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser = Browser(tmp_path)
        try:
            for query in SEARCHES:
                browser.open(f"{address}?q={query}")
                typed = "document.querySelector('[data-md-component=search-query]')?.value"
                first = "document.querySelector('.md-search-result__item > a')"
                link = browser.until(f"{typed} === {query!r} && {first} && {first}.href")
                found[query] = link.removeprefix(address).partition("?")[0].partition("#")[0]
        finally:
            browser.close()
            server.shutdown()
    wrong = {query: page for query, page in found.items() if page not in SEARCHES[query]}
    assert wrong == {}
