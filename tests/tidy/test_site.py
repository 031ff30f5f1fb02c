"""Checks that the documentation site builds without warnings, shows its pages correctly, and can be searched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from tidy.sources import ROOT


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
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Seen]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        if "reports" not in path.parts:
            found[path.relative_to(site).as_posix()] = seen = Seen()
            seen.feed(path.read_text())
    return found


def test_every_page_is_in_the_menu(site):
    """Checks the URL of each page against the front page, which contains the whole menu."""
    front = (site / "index.html").read_text()
    made = {path.parent.name for path in site.rglob("index.html")} - {site.name}
    assert len(made) > 25
    assert {page for page in made if f'href="{page}/"' not in front} == set()


def test_nothing_that_was_written_is_taken_for_an_element(pages):
    """``array<struct<…>>`` without backquotes would become an unknown element, which browsers do not show."""
    known = (
        "a abbr article aside b blockquote body br button code dd del details div dl dt em figure footer form h1 h2 h3 "
        "h4 h5 h6 head header hr html i img input label li link main meta nav noscript ol p path pre script section "
        "small span strong style sub summary sup svg table tbody td template th thead title tr u ul"
    )
    strange = {name: seen.elements - set(known.split()) for name, seen in pages.items()}
    assert {name: found for name, found in strange.items() if found} == {}


def test_pages_load_nothing_from_elsewhere(pages):
    """Pages must work behind a firewall, and must not report their readers to anyone."""
    foreign = {name: [one for one in seen.loads if "//" in one] for name, seen in pages.items()}
    assert {name: found for name, found in foreign.items() if found} == {}


def test_the_api_names_what_users_call_and_no_more(pages):
    headings = [one for name, seen in pages.items() if name.startswith("api") for one in seen.headings]
    names = {one.rpartition(".")[2] for one in headings}
    called = ["ExactlyOnce", "start", "KafkaSink", "read_kafka", "PreflightError", "TwoPhaseCommitSink", "prepare"]
    assert set(called) <= names
    assert not {one for one in names if one.startswith("_")}
    assert not {one for one in headings if one.endswith(("KafkaSink.writer", "PostgresSink.committer"))}


def test_the_reference_of_commands_has_each_with_its_options(site):
    page = (site / "cli" / "index.html").read_text()
    for command in ("new", "checkpoint show", "transactions resolve", "files compact", "verify", "broker up"):
        assert f"sparkonce {command}" in page
    assert "<code>--accept-loss</code>" in page


def test_the_site_names_no_address_that_it_does_not_have(site, pages):
    """Without a `site_url` in mkdocs.yml, there are no canonical links and no sitemap, and the 404 page has its CSS."""
    assert [name for name in pages if 'rel="canonical"' in (site / name).read_text()] == []
    assert not (site / "sitemap.xml").exists()
    assert [one for one in pages["404.html"].loads if not (site / one.lstrip("/")).exists()] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt install chromium)")
def test_search_has_the_right_page_first(site, tmp_path):
    searches = {
        "read_committed": {"readers/"},
        "SupersededError": {"troubleshooting/"},
        "performance": {"benchmark/"},
        "topic does not exist": {"kafka-source/", "operations/", "troubleshooting/"},
        "spark connect": {"formats/", "connect/"},
    }

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser = Browser(tmp_path)
        try:
            browser.open(f"{address}?q={next(iter(searches))}")
            for query, answers in searches.items():
                browser.until("!!document.querySelector('.md-search-result__item > a')")
                browser.run(
                    "((box) => {"
                    f"box.value = {query!r}; box.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}));"
                    "})(document.querySelector('[data-md-component=search-query]'))"
                )
                browser.until(
                    "document.querySelector('.md-search-result__item > a')?.pathname",
                    lambda found, answers=answers: str(found).lstrip("/") in answers,
                )
        finally:
            browser.close()
            server.shutdown()
