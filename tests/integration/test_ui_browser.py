from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from page_scene import PageScene, many, now_ms, served, watched
from sparkonce.protocol.state import Phase
from sparkonce.ui.server import PageServer
from sparkonce.watch.figures import WatchedEvent

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt install chromium)"),
    pytest.mark.xdist_group("browser of the live page"),
]

ROWS = "document.querySelectorAll('#batch-rows tr').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def scene(tmp_path) -> PageScene:
    made = PageScene(tmp_path / "totals")
    started = WatchedEvent(at_ms=now_ms() - 50_000, kind="started", batch=None, text="Run 5 begins.")
    made.write(many(60, now_ms() - 1000), [started])
    return made


@contextmanager
def showing(browser: Browser, server: PageServer) -> Iterator[None]:
    browser.leave()
    browser.open(server.url)
    try:
        browser.until(f"{ROWS} > 0 && document.getElementById('chart').dataset.all > 0")
        yield
        assert browser.said == []
        assert [one for one in browser.asked if not one.startswith(server.url)] == []
    finally:
        browser.leave()


def text(browser: Browser, name: str) -> str:
    return str(browser.run(f"document.getElementById('{name}').textContent"))


def shown(browser: Browser) -> dict[str, str]:
    found: dict[str, str] = browser.run("({...document.getElementById('chart').dataset})")
    return found


def test_a_user_looks_at_batches_with_mouse_and_keyboard(browser, scene):
    def focused(browser: Browser) -> str:
        return str(browser.run("document.activeElement.id || document.activeElement.textContent"))

    scene.write(many(10_000, now_ms() - 1000))
    with served(scene) as server, showing(browser, server):
        # All batches are there, and the newest are shown.
        assert (shown(browser)["all"], browser.run(ROWS)) == ("10000", 50)
        assert int(shown(browser)["batches"]) < 100
        browser.run("document.getElementById('all').click()")
        found = shown(browser)
        assert (found["batches"], 100 < int(found["columns"]) < 1000) == ("10000", True)
        assert "10,000 of 10,000 batches" in text(browser, "drawn")
        browser.run("document.getElementById('newest').click()")

        # Hovering over a batch describes it, and the mouse wheel zooms.
        browser.run("document.getElementById('chart').scrollIntoView({block: 'center', behavior: 'instant'})")
        left, top, width, height = browser.run(
            "(() => { const b = document.getElementById('chart').getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = left + width / 2, top + height * 0.7
        browser.mouse("mouseMoved", x, y)
        browser.until("!document.getElementById('tip').hidden")
        assert "kafka" in text(browser, "tip")
        span = "document.getElementById('chart').dataset.to - document.getElementById('chart').dataset.from"
        before = browser.run(span)
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
        browser.until(span, lambda now: now < before * 0.8)
        begin = float(shown(browser)["from"])
        browser.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        browser.mouse("mouseMoved", x + 150, y, button="left", buttons=1)
        browser.mouse("mouseReleased", x + 150, y, button="left", clickCount=1)
        assert float(shown(browser)["from"]) < begin, "dragging moves"
        assert browser.run("document.getElementById('newest').getAttribute('aria-pressed')") == "false"

        # The keyboard can reach a batch, its row, and the next row.
        browser.run("document.body.tabIndex = -1; document.body.focus()")
        for _ in range(30):
            browser.key("Tab")
            if focused(browser) == "chart":
                break
        assert focused(browser) == "chart"
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for key in ("End", "ArrowLeft", "ArrowLeft"):
            browser.key(key)
        assert (shown(browser)["chosen"], text(browser, "chosen-head")) == ("9997", "Batch 9997")
        assert Phase.WRITING.value in text(browser, "chosen")
        assert "Batch 9997" in text(browser, "news")
        browser.key("Enter")
        assert browser.run("document.activeElement.closest('tr').className") == "chosen-row"
        browser.key("Tab")
        browser.key("Enter")
        assert (focused(browser), shown(browser)["chosen"]) == ("9996", "9996")

        # When a new batch arrives, only that one is fetched, and the selection and the focus stay.
        scene.add(watched(10_000, now_ms()))
        browser.until("document.querySelector('#batch-rows button').textContent", lambda newest: newest == "10000")
        assert (focused(browser), shown(browser)["chosen"]) == ("9996", "9996")
        fetched = [one for one in browser.asked if "/api/timeline" in one]
        assert len([one for one in fetched if one.endswith("after=0")]) == 1


@pytest.mark.slow
def test_a_user_is_alarmed_and_can_read_why(browser, scene):
    hostile = "<img src=x onerror=\"document.title='struck'\">"
    alarms = "[...document.querySelectorAll('#alarm-list h3')].map(one => one.lastChild.textContent)"
    icon = "document.getElementById('icon').getAttribute('href')"
    low_contrast = """(() => {
      const parts = (text) => text.match(/[\\d.]+/g).map(Number);
      const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
        .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
      const found = [];
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const node = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
        if (!text || node.closest('noscript, .unseen') || !node.checkVisibility()) continue;
        let back = node;
        while (back && (parts(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
        const [one, other] = [getComputedStyle(node).color, getComputedStyle(back || document.body).backgroundColor]
          .map((color) => light(parts(color))).sort((a, b) => b - a);
        const ratio = (one + 0.05) / (other + 0.05);
        if (ratio < 4.5) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
      }
      return found;
    })()"""

    def accessible() -> list[tuple[str, str]]:
        nodes = [one for one in browser.call("Accessibility.getFullAXTree")["nodes"] if not one["ignored"]]
        return [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes]

    with served(scene) as server:
        with showing(browser, server):
            assert (browser.run("document.title"), browser.run(alarms)) == ("sparkonce", [])
            assert browser.run(icon) == "/icon/0.svg"
            assert browser.run("document.getElementById('news').getAttribute('aria-live')") == "polite"

            # After the run stops, the title, icon, list and screen reader show it, and hostile text is not executed.
            error = WatchedEvent(at_ms=now_ms(), kind="stopped", batch=60, text=f"LogError: {hostile}", next_step="Go.")
            scene.change([error], phase=Phase.STOPPED.value, since_ms=now_ms())
            browser.until("document.title", lambda title: title == "(1) sparkonce")
            assert browser.run(alarms) == ["totals: the run has stopped"]
            assert browser.run(icon) == "/icon/1.svg"
            for part in (f"LogError: {hostile}", "Next: Go.", f"sparkonce checkpoint show {scene.path}"):
                assert part in text(browser, "alarm-list")
            assert browser.run("document.querySelectorAll('main img').length") == 0
            assert "Alarm: totals: the run has stopped" in text(browser, "news")

            # The page is readable in both color schemes, on a phone, enlarged, without animation, and with a screen
            # reader.
            for scheme in ("light", "dark"):
                browser.prefer(prefers_color_scheme=scheme)
                assert browser.run(low_contrast) == []
            for width, scale in ((400, 1), (640, 2), (320, 4), (1280, 1)):
                browser.resize(width=width, scale=scale)
                browser.until(f"document.documentElement.scrollWidth <= {width}")
            browser.prefer(prefers_reduced_motion="reduce")
            assert browser.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
            assert browser.run("document.getAnimations().length") == 0
            found = accessible()
            assert {"banner", "main", "navigation", "contentinfo"} <= {role for role, _ in found}
            headings = {name for role, name in found if role == "heading"}
            assert {"Alarms", "Queries", "Timeline of totals", "Newest batches", "Open transactions"} <= headings
            assert ("table", "The newest 50 batches of totals, the newest first") in found
            assert ("application", "Batches by time") in found
            assert [role for role, name in found if role in {"button", "link", "table"} and not name] == []

            # The next run continues.
            scene.change(phase=Phase.IDLE.value, since_ms=now_ms())
            browser.until("document.title", lambda title: title == "sparkonce")
            assert "Over: totals: the run has stopped" in text(browser, "news")

        browser.open(server.url)
        browser.until(f"{ROWS} > 0")
    browser.until("document.title", lambda title: title == "(?) sparkonce")
    assert "No contact with this page's server since" in text(browser, "lost")
    assert browser.run(icon) == "/icon/lost.svg"
    browser.leave()


@pytest.mark.slow
def test_a_user_watches_several_queries(browser, scene, tmp_path):
    hostile = "<img src=x>"
    clicks, later = PageScene(tmp_path / "clicks", name="clicks"), PageScene(tmp_path / "later", name="another")
    clicks.write([replace(one, rows={hostile: 1}) for one in many(7, now_ms())])
    later.write(many(2, now_ms()))
    cards: Any = "[...document.querySelectorAll('.card h3')].map(one => one.textContent)"
    head = "document.getElementById('timeline-head').textContent"
    with served(scene, clicks) as server, showing(browser, server):
        assert browser.run(cards) == ["totals", "clicks"]
        browser.run("document.querySelectorAll('.card button')[1].click()")
        browser.until(head, lambda title: title == "Timeline of clicks")
        browser.until("document.getElementById('chart').dataset.all", lambda count: count == "7")
        assert browser.run(ROWS) == 7
        browser.run("document.querySelectorAll('#batch-rows button')[0].click()")
        assert hostile in text(browser, "chosen")

        # Another query begins in the folder of the first.
        browser.run("document.querySelectorAll('.card button')[0].click()")
        browser.until(head, lambda title: title == "Timeline of totals")
        browser.until(ROWS, lambda rows: rows == 50)
        browser.run("document.querySelectorAll('#batch-rows button')[3].click()")
        assert "Batch 56" in text(browser, "chosen-head")
        shutil.rmtree(scene.path)
        later.path.rename(scene.path)  # write its timeline as well, because otherwise the page would show its log first
        browser.until(head, lambda title: title == "Timeline of another")
        browser.until(ROWS, lambda rows: rows == 2)
        assert (shown(browser)["all"], shown(browser)["batches"], shown(browser)["chosen"]) == ("2", "2", "")
        assert text(browser, "chosen").startswith("Choose a batch")
