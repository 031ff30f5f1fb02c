"""The live page in a real browser: what is drawn, what is said, and how it is reached."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from page_scene import PageScene, many, now_ms, served, watched
from sparkonce.page.server import PageServer
from sparkonce.protocol.state import Phase
from sparkonce.watch.figures import WatchedEvent

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt install chromium)"),
    pytest.mark.xdist_group("browser of the live page"),
]

HOSTILE = "<img src=x onerror=\"document.title='struck'\">"
ROWS = "document.querySelectorAll('#batch-rows tr').length"
ALARMS = "[...document.querySelectorAll('#alarm-list h3')].map(one => one.lastChild.textContent)"
CONTRAST = """(() => {
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
      .map((colour) => light(parts(colour))).sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
})()"""
BRIGHTEST_LABEL = """(() => {
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [50, 300];
  const pen = copy.getContext('2d', {willReadFrequently: true});
  pen.drawImage(document.getElementById('canvas'), 0, 0);
  const all = pen.getImageData(0, 0, 50, 300).data;
  let most = 0;
  for (let i = 0; i < all.length; i += 4) if (all[i + 3] > 200) most = Math.max(most, all[i]);
  return most;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def scene(tmp_path: Path) -> PageScene:
    made = PageScene(tmp_path / "totals")
    started = WatchedEvent(at_ms=now_ms() - 50_000, kind="started", batch=None, text="Run 5 begins.")
    made.write(many(60, now_ms() - 1000), [started])
    return made


def open_page(browser: Browser, server: PageServer, **size: Any) -> None:
    browser.said.clear()
    browser.asked.clear()
    browser.prefer(prefers_color_scheme="light")
    browser.open(server.url, **size)
    browser.until(f"{ROWS} > 0 && document.getElementById('chart').dataset.all > 0")


@contextmanager
def showing(browser: Browser, server: PageServer, **size: Any) -> Iterator[None]:
    """Opens the page. It is left before its server ends; until then it has no error and has asked nobody else."""
    open_page(browser, server, **size)
    yield
    assert browser.said == []
    assert browser.asked
    assert [one for one in browser.asked if not one.startswith(server.url)] == []
    browser.call("Page.navigate", url="about:blank")


def shown(browser: Browser) -> dict[str, str]:
    found: dict[str, str] = browser.run("({...document.getElementById('chart').dataset})")
    return found


def focused(browser: Browser) -> str:
    return str(browser.run("document.activeElement.id || document.activeElement.textContent"))


def middle(browser: Browser, part: float = 0.5) -> tuple[float, float]:
    box = browser.run("(() => { const b = document.getElementById('chart').getBoundingClientRect();"
                      "return [b.left, b.top, b.width, b.height]; })()")  # fmt: skip
    return box[0] + box[2] * part, box[1] + box[3] * 0.7


def test_ten_thousand_batches_are_drawn_and_fetched_once(browser: Browser, scene: PageScene) -> None:
    scene.write(many(10_000, now_ms() - 1000))
    with served(scene) as server, showing(browser, server):
        assert (shown(browser)["all"], browser.run(ROWS)) == ("10000", 50)
        assert int(shown(browser)["batches"]) < 100  # the newest, from the start on
        browser.run("document.getElementById('all').click()")
        found = shown(browser)
        assert found["batches"] == "10000"
        assert 100 < int(found["columns"]) < 1000
        assert "10,000 of 10,000 batches" in browser.run("document.getElementById('drawn').textContent")
        browser.run("document.getElementById('newest').click()")
        scene.add(watched(10_000, now_ms()))
        browser.until("document.getElementById('chart').dataset.all > 10000")
        fetched = [one for one in browser.asked if "/api/timeline" in one]
        assert len([one for one in fetched if one.endswith("after=0")]) == 1


def test_an_alarm_appears_and_goes_while_one_looks(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        assert (browser.run("document.title"), browser.run(ALARMS)) == ("sparkonce", [])
        assert browser.run("document.getElementById('icon').getAttribute('href')") == "/icon/0.svg"
        error = WatchedEvent(at_ms=now_ms(), kind="stopped", batch=60, text="LogError: it is so.", next_step="mend it.")
        scene.change([error], phase=Phase.STOPPED.value, since_ms=now_ms())
        browser.until("document.title", lambda title: title == "(1) sparkonce")
        assert browser.run(ALARMS) == ["totals: the run has stopped"]
        text = browser.run("document.getElementById('alarm-list').textContent")
        assert "LogError: it is so." in text
        assert "Next: Mend it." in text
        assert f"sparkonce checkpoint show {scene.path}" in text
        assert browser.run("document.getElementById('icon').getAttribute('href')") == "/icon/1.svg"
        assert "Alarm: totals: the run has stopped" in browser.run("document.getElementById('news').textContent")
        assert browser.run("document.getElementById('news').getAttribute('aria-live')") == "polite"
        scene.change(phase=Phase.IDLE.value, since_ms=now_ms())
        browser.until("document.title", lambda title: title == "sparkonce")
        assert "Over: totals: the run has stopped" in browser.run("document.getElementById('news').textContent")


def test_the_keyboard_reaches_a_batch_and_its_row(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        for _ in range(30):
            browser.key("Tab")
            if focused(browser) == "chart":
                break
        assert focused(browser) == "chart"
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        browser.key("End")
        browser.key("ArrowLeft")
        browser.key("ArrowLeft")
        assert (shown(browser)["chosen"], browser.run("document.getElementById('chosen-head').textContent")) == (
            "57",
            "Batch 57",
        )
        assert Phase.WRITING.value in browser.run("document.getElementById('chosen').textContent")
        assert "Batch 57" in browser.run("document.getElementById('news').textContent")
        browser.key("Enter")
        assert focused(browser) == "57"
        row = "document.activeElement.closest('tr')"
        assert browser.run(f"{row}.className") == "chosen-row"
        assert "16" in browser.run(f"{row}.textContent")
        browser.key("Tab")
        browser.key("Enter")  # the next row's button
        assert shown(browser)["chosen"] == "56"
        browser.run("document.getElementById('chart').focus()")
        browser.key("Home")
        assert shown(browser)["chosen"] == "0"


def test_what_is_chosen_and_focused_stays_while_batches_come(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        browser.run("document.querySelectorAll('#batch-rows button')[3].focus()")
        browser.key("Enter")
        assert (focused(browser), shown(browser)["chosen"]) == ("56", "56")
        scene.write([*many(60, now_ms() - 2000), watched(60, now_ms())])
        browser.until("document.querySelector('#batch-rows button').textContent", lambda text: text == "60")
        assert (focused(browser), shown(browser)["chosen"]) == ("56", "56")


def test_mouse_and_wheel_zoom_move_and_tell(browser: Browser, scene: PageScene) -> None:
    def span() -> float:
        return float(shown(browser)["to"]) - float(shown(browser)["from"])

    with served(scene) as server, showing(browser, server):
        browser.run("document.getElementById('chart').scrollIntoView({block: 'center', behavior: 'instant'})")
        x, y = middle(browser)
        browser.mouse("mouseMoved", x, y)
        browser.until("!document.getElementById('tip').hidden")
        assert "kafka" in browser.run("document.getElementById('tip').textContent")
        before = span()
        browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
        browser.until("document.getElementById('chart').dataset.to - document.getElementById('chart').dataset.from",
                      lambda now: now < before * 0.8)  # fmt: skip
        begin = float(shown(browser)["from"])
        browser.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        browser.mouse("mouseMoved", x + 150, y, button="left", buttons=1)
        browser.mouse("mouseReleased", x + 150, y, button="left", clickCount=1)
        assert float(shown(browser)["from"]) < begin
        assert browser.run("document.getElementById('newest').getAttribute('aria-pressed')") == "false"
        browser.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        browser.mouse("mouseReleased", x, y, button="left", clickCount=1)
        assert shown(browser)["chosen"]


def test_a_hostile_name_stays_text(browser: Browser, scene: PageScene) -> None:
    scene.name = HOSTILE
    event = WatchedEvent(at_ms=now_ms(), kind="stopped", batch=1, text=HOSTILE, next_step=HOSTILE)
    scene.write([replace(one, rows={HOSTILE: 1}) for one in many(3, now_ms())], [event], phase=Phase.STOPPED.value)
    with served(scene) as server, showing(browser, server):
        browser.run("document.getElementById('chart').focus()")
        browser.key("End")
        assert browser.run("document.querySelector('.card h3').textContent") == HOSTILE
        assert browser.run("document.querySelectorAll('main img').length") == 0
        assert HOSTILE in browser.run("document.getElementById('alarm-list').textContent")
        assert HOSTILE in browser.run("document.getElementById('chosen').textContent")
        assert browser.run("document.title") == "(1) sparkonce"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(browser: Browser, scene: PageScene, scheme: str) -> None:
    event = WatchedEvent(at_ms=now_ms(), kind="stopped", batch=1, text="It is so.", next_step="Mend it.")
    scene.write(many(60, now_ms()), [event], phase=Phase.STOPPED.value)
    with served(scene) as server, showing(browser, server):
        browser.prefer(prefers_color_scheme=scheme)
        browser.key("Tab")
        browser.run("document.getElementById('chart').focus()")
        browser.key("End")
        assert browser.run(CONTRAST) == []


def test_dark_is_drawn_otherwise_than_light(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        back = browser.run("getComputedStyle(document.body).backgroundColor")
        assert browser.run(BRIGHTEST_LABEL) < 120
        browser.prefer(prefers_color_scheme="dark")
        browser.until(BRIGHTEST_LABEL, lambda bright: bright > 150)
        assert browser.run("getComputedStyle(document.body).backgroundColor") != back


@pytest.mark.parametrize(("width", "scale"), [(400, 1), (640, 2), (320, 4), (1280, 1)])
def test_nothing_runs_over_the_side(browser: Browser, scene: PageScene, width: int, scale: int) -> None:
    """A window of 640 is one of 1280 at 200 %."""
    scene.change([WatchedEvent(at_ms=1, kind="stopped", batch=1, text="x" * 300)], phase=Phase.STOPPED.value)
    with served(scene) as server, showing(browser, server, width=width, scale=scale):
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_a_screen_reader_finds_landmarks_heads_and_tables(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    found = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes if not one["ignored"]]
    assert {"banner", "main", "navigation", "contentinfo"} <= {role for role, _ in found}
    assert {"Alarms", "Queries", "Timeline of totals", "Newest batches", "Open transactions"} <= {
        name for role, name in found if role == "heading"
    }
    assert ("table", "The newest 50 batches of totals, the newest first") in found
    assert [role for role, name in found if role in {"button", "link", "table"} and not name] == []
    assert ("application", "Batches by time") in found


def test_a_page_without_its_server_says_so(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server:
        open_page(browser, server)
    browser.until("document.title", lambda title: title == "(?) sparkonce")
    assert "No contact with this page's server since" in browser.run("document.getElementById('lost').textContent")
    assert browser.run("document.getElementById('icon').getAttribute('href')") == "/icon/lost.svg"
    assert [one for one in browser.said if "Failed to load resource" not in one] == []
    browser.call("Page.navigate", url="about:blank")


def test_motion_is_reduced_where_it_is_asked_for(browser: Browser, scene: PageScene) -> None:
    with served(scene) as server, showing(browser, server):
        browser.prefer(prefers_reduced_motion="reduce")
        assert browser.run("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
        assert browser.run("document.getAnimations().length") == 0


def test_another_query_in_the_folder_takes_the_place_of_the_first(
    browser: Browser, scene: PageScene, tmp_path: Path
) -> None:
    other = PageScene(tmp_path / "other", name="another", batches=4)
    other.write(many(2, now_ms()))
    with served(scene) as server, showing(browser, server):
        browser.run("document.querySelectorAll('#batch-rows button')[3].click()")
        browser.run("document.getElementById('nearer').click()")
        assert "Batch 56" in browser.run("document.getElementById('chosen-head').textContent")
        shutil.rmtree(scene.path)
        other.path.rename(scene.path)  # with its timeline: else its log would be shown first
        browser.until(
            "document.getElementById('timeline-head').textContent", lambda text: text == "Timeline of another"
        )
        browser.until(ROWS, lambda rows: rows == 2)
        assert shown(browser)["all"] == "2"
        assert (shown(browser)["batches"], shown(browser)["chosen"]) == ("2", "")
        assert browser.run("document.getElementById('chosen').textContent").startswith("Choose a batch")


def test_of_several_queries_each_has_its_timeline(browser: Browser, scene: PageScene, tmp_path: Path) -> None:
    other = PageScene(tmp_path / "clicks", name="clicks")
    other.write(many(7, now_ms()))
    with served(scene, other) as server, showing(browser, server):
        assert browser.run("[...document.querySelectorAll('.card h3')].map(one => one.textContent)") == [
            "totals",
            "clicks",
        ]
        browser.run("document.querySelectorAll('.card button')[1].click()")
        browser.until("document.getElementById('timeline-head').textContent", lambda text: text == "Timeline of clicks")
        browser.until("document.getElementById('chart').dataset.all", lambda all_: all_ == "7")
        assert browser.run(ROWS) == 7
