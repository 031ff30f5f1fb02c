from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.protocol.state import Phase
from sparkonce_lab.checkers import judge
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import OBSERVED, ROWS, Event, EventKind, History
from sparkonce_lab.report import figures as numbers_of
from sparkonce_lab.report.figures import EXIT_CODES, WORDS, Story, spread
from sparkonce_lab.report.page import render, write
from sparkonce_lab.report.words import FAMILIES, PHASES, STAGE_OF, times
from sparkonce_lab.schedule import Step
from sparkonce_lab.verdicts import Anomaly, Verdict

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
VOID = {"meta", "br", "hr", "wbr"}


def summary(history: History, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return numbers_of.summary(Story(history), verdicts)


def event(at_ms: int, kind: EventKind, **fields: Any) -> Event:
    return Event(at_ms, kind, fields)


def batch(at_ms: int, driver: int, number: int, writing_s: float, **fields: Any) -> Event:
    rows = {"kafka": 10, "postgres": 10}
    usual = {"rows": rows, "transactions": 4, "recovered": False, "healed": 0}
    seconds = {Phase.WRITING.value: writing_s, Phase.DECIDING.value: 0.5}
    return event(at_ms, EventKind.BATCH, driver=driver, batch=number, **{**usual, "seconds": seconds, **fields})


def step(number: int, fault: Fault, phase: Phase, system: str = "") -> dict[str, Any]:
    return Step(number=number, fault=fault, phase=phase.name, system=system).to_json()


def struck(at_ms: int, number: int, fault: Fault, where: Phase, **fields: Any) -> Event:
    usual = {"system": "", "request": "", "driver": 1, "batch": 1, "aimed": where.name, "held": True}
    told = {"step": number, "fault": fault.value, "phase": where.name, **usual, **fields}
    return Event(at_ms, EventKind.FAULT, told)


def small(*events: Event, finished: bool = True, systems: Sequence[str] = ("kafka", "postgres")) -> History:
    schedule = [
        step(1, Fault.CUT, Phase.WRITING, "kafka"),
        step(2, Fault.DRIVER_KILLED, Phase.DECIDING),
        step(3, Fault.CUT, Phase.READING, "postgres"),
        step(4, Fault.WORKER_KILLED, Phase.IDLE),
    ]
    rows = [("row", 1, n, 5, 1) for n in range(6)] + [("sum", 1, 0, 30, 6)]
    expected = pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], schema=ROWS)
    told = [
        event(0, EventKind.BEGAN, seed=3, systems=list(systems), guarantee="exactly-once", schedule=schedule),
        event(1_000, EventKind.START, driver=1, pid=10, slots=2, master="local[2]"),
        batch(3_000, 1, 0, 1.0),
        struck(4_000, 1, Fault.CUT, Phase.WRITING, system="kafka"),
        event(5_500, EventKind.OVER, step=1),
        batch(6_000, 1, 1, 2.0),
        event(6_000, EventKind.RECOVERED, step=1, driver=1, batch=1),
        struck(7_000, 2, Fault.DRIVER_KILLED, Phase.FINISHING, aimed="DECIDING", batch=2, held=False),
        event(7_100, EventKind.ENDED, driver=1, code=-9),
        event(7_200, EventKind.START, driver=2, pid=11, slots=2, master="local[2]"),
        struck(10_000, 3, Fault.CUT, Phase.READING, system="postgres", driver=2, batch=2),
        batch(13_000, 2, 2, 3.0, recovered=True, healed=1),
        event(13_000, EventKind.RECOVERED, step=2, driver=2, batch=2),
        event(13_100, EventKind.RECOVERED, step=3, driver=2, batch=2),
        event(14_000, EventKind.SKIPPED, step=4, fault="worker-killed", why="no worker was there"),
        batch(15_000, 2, 3, 4.0),
        event(16_000, EventKind.FED, rows=5),
        event(17_000, EventKind.FED, rows=6),
        event(18_000, EventKind.ENDED, driver=2, code=0),
        *events,
    ]
    told += [event(20_000, EventKind.FINISHED)] if finished else []
    return History(events=told, expected=expected, observed={name: observed(expected) for name in systems})


def observed(expected: pa.Table) -> pa.Table:
    places = {"batch": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
    table = expected
    for name, kind in places.items():
        table = table.append_column(name, pa.array([0] * len(expected), kind))
    return table.cast(OBSERVED)


OF_THE_RUN = {Anomaly.TORN, Anomaly.STATE_DIFFERS, Anomaly.STUCK, Anomaly.STOPPED, Anomaly.GROWING}


def judged(bad: Mapping[tuple[Anomaly, str], tuple[int, Sequence[str]]] | None = None) -> list[Verdict]:
    return [
        Verdict(anomaly=anomaly, system=system, looked_at=50_192, count=count, examples=tuple(examples))
        for anomaly in Anomaly
        for system in ([""] if anomaly in OF_THE_RUN else ["kafka", "postgres"])
        for count, examples in [(bad or {}).get((anomaly, system), (0, ()))]
    ]


BAD = {
    (Anomaly.MISSING, "kafka"): (
        1_204,
        ["row: key 17, number 2,045, amount 311", "row: key 3, number 2,046, amount -7"],
    ),
    (Anomaly.DOUBLED, "postgres"): (3, ["sum: key 5, window 1700000120000: 2 times, by batches 61 and 62"]),
    (Anomaly.EARLY, "postgres"): (1, ["batch 61 was seen at 01:52.310, when batch 60 was the newest that was decided"]),
    (Anomaly.STATE_DIFFERS, ""): (1, ["4,321 rows of state; undisturbed: 4,318"]),
}


def looked(system: str = "kafka", *, anomalies: Sequence[Anomaly] = tuple(Anomaly), at: int = 7) -> list[Verdict]:
    return [Verdict(anomaly=anomaly, system=system, looked_at=at, count=0) for anomaly in anomalies]


BOTH = [*looked("kafka"), *looked("postgres")]


def test_faults_are_counted_where_they_struck():
    faults = summary(small(), BOTH)["faults"]
    assert faults["by_phase"] == {"cut": {"READING": 1, "WRITING": 1}, "driver-killed": {"FINISHING": 1}}
    assert {name: faults[name] for name in ("asked", "struck", "as_aimed", "held", "recovered")} == {
        "asked": 4,
        "struck": 3,
        "as_aimed": 2,
        "held": 2,
        "recovered": 3,
    }
    assert faults["skipped"] == [{"step": 4, "fault": "worker-killed", "system": "", "why": "no worker was there"}]

    assert [(one["outage_ms"], one["recovery_ms"]) for one in faults["steps"]] == [
        (1_500, 500),
        (None, 6_000),
        (None, 3_100),
        (None, None),
    ]
    assert faults["recovery_ms"]["by_fault"] == {
        "cut": {"count": 2, "min": 500, "median": 1_800, "p95": 3_100, "max": 3_100},
        "driver-killed": {"count": 1, "min": 6_000, "median": 6_000, "p95": 6_000, "max": 6_000},
    }
    assert faults["recovery_ms"]["all"]["median"] == 3_100

    history = small(struck(16_000, 5, Fault.SLOWED, Phase.WRITING, system="kafka"), finished=False)
    faults = summary(history, BOTH)["faults"]
    assert (faults["struck"], faults["recovered"]) == (4, 3)
    assert faults["recovery_ms"]["by_fault"]["slowed"] == spread([])
    assert "0 of 1" in render(history, BOTH)

    history = small(struck(16_000, 5, Fault.CUT, Phase.WRITING, phase=Phase.DECIDING.value))
    assert summary(history, BOTH)["faults"]["by_phase"]["cut"]["DECIDING"] == 1


def verdict(history: History, verdicts: Sequence[Verdict]) -> tuple[str, str]:
    said = summary(history, verdicts)["verdict"]
    return said["outcome"], said["sentence"]


def test_a_run_without_anomalies_passes():
    assert verdict(small(), BOTH) == (
        "passed",
        "Nothing is missing, doubled or unexpected in kafka and postgres: of 7 expected rows each is there once, and "
        "nothing else. 3 of 4 faults struck the running query; 2 drivers finished 4 batches in 20.0 s.",
    )

    assert summary(small(), BOTH)["verdict"]["words"] == "exactly once"
    assert EXIT_CODES.keys() == WORDS.keys()
    assert {outcome for outcome, code in EXIT_CODES.items() if code == 0} == {"passed"}
    assert {outcome for outcome, code in EXIT_CODES.items() if code == 1} == {"failed"}

    history = small()
    of_faults = (EventKind.FAULT, EventKind.OVER, EventKind.RECOVERED, EventKind.SKIPPED)
    began, *calm = (one for one in history.events if one.kind not in of_faults)
    outcome, sentence = verdict(replace(history, events=[began, *calm]), BOTH)
    assert outcome == "nothing proved"
    assert "was not disturbed: this proves nothing. 0 of 4 faults struck" in sentence
    unplanned = event(0, EventKind.BEGAN, **{**began.fields, "schedule": []})
    outcome, sentence = verdict(replace(history, events=[unplanned, *calm]), BOTH)
    assert outcome == "passed"
    assert "No fault was planned" in sentence


def test_what_is_missing_when_the_recording_breaks_off_proves_nothing():
    half = small(finished=False)
    half = replace(half, observed={name: rows.slice(3) for name, rows in half.observed.items()})
    outcome, sentence = verdict(half, judge(half))
    assert outcome == "unfinished"
    assert "This proves nothing. What is early, lingering, missing, state differs or torn is unknown." in sentence
    doubled = replace(half, observed={**half.observed, "kafka": pa.concat_tables([half.observed["kafka"]] * 2)})
    outcome, sentence = verdict(doubled, judge(doubled))
    assert outcome == "failed"
    assert sentence.startswith("4 anomalies were found: doubled (4 in kafka).")
    assert "The run was not finished: its recording breaks off after 00:18.0." in sentence


@pytest.mark.parametrize(
    ("verdicts", "named"),
    [
        ([], "“missing” in kafka, “missing” in postgres, “doubled” in kafka or 3 more"),
        (looked("kafka"), "“missing” in postgres, “doubled” in postgres or “unexpected” in postgres"),
        ([*looked("kafka"), *looked("postgres", at=0)], "“missing” in postgres"),
        ([*BOTH, *looked("", anomalies=[Anomaly.STATE_DIFFERS], at=0)], "for “state differs”: this"),
        ([*BOTH, *looked("", anomalies=[Anomaly.LINGERING, Anomaly.GROWING], at=0)], "for “lingering”: this"),
    ],
)
def test_a_verdict_on_nothing_proves_nothing(verdicts, named):
    outcome, sentence = verdict(small(), verdicts)
    assert outcome == "nothing proved"
    assert named in sentence
    assert "this proves nothing" in sentence


def test_what_could_not_be_read_is_told_with_its_reason():
    history = small(event(19_000, EventKind.UNREAD, what="the rows in postgres", why="connection refused"))
    history = replace(history, observed={"kafka": history.observed["kafka"]})
    outcome, sentence = verdict(history, judge(history))
    assert outcome == "nothing proved"
    assert "“missing” in postgres" in sentence
    assert "Not read: the rows in postgres (connection refused)." in sentence


def test_a_weaker_guarantee_is_not_asked_for_more():
    history = small()
    began = history.events[0]
    events = [event(0, EventKind.BEGAN, **{**began.fields, "guarantee": "at-least-once"}), *history.events[1:]]
    weaker = History(events=events, expected=history.expected, observed=history.observed)
    wanted = [Anomaly.MISSING, Anomaly.UNEXPECTED]
    verdicts = [*looked("kafka", anomalies=wanted), *looked("postgres", anomalies=wanted)]
    outcome, sentence = verdict(weaker, verdicts)
    assert outcome == "passed"
    assert "Nothing is missing or unexpected" in sentence
    assert "doubled" not in sentence
    assert verdict(history, verdicts)[0] == "nothing proved"


class Page(HTMLParser):
    """Reads a page, and is strict about what browsers forgive."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    good = small()
    return {
        "good": render(good, BOTH),
        "bad": render(good, judged(BAD)),
        "unfinished": render(replace(good, events=good.events[:5], observed={}), judged()),
        "nothing": render(History(events=[], expected=ROWS.empty_table(), observed={}), []),
    }


NAMES = ["good", "bad", "unfinished", "nothing"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed(pages, name):
    page = Page(pages[name])
    assert len(page.ids) == len(set(page.ids))
    targets = {value for _, attribute, value in page.attributes if attribute == "href"}
    assert {str(target)[1:] for target in targets} <= set(page.ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_nothing_else(pages, name):
    page = Page(pages[name])
    assert not {tag for tag, _, _ in page.attributes} & {"link", "img", "iframe", "object", "embed", "image", "use"}
    assert not [attribute for _, attribute, _ in page.attributes if attribute in {"src", "srcset", "style"}]
    assert all(str(value).startswith("#") for _, attribute, value in page.attributes if attribute == "href")
    assert not re.findall(r"https?://|url\(|@import|@font-face", pages[name])


@pytest.mark.parametrize("evil", ["<script>alert('&')</script>", '" onclick="alert(1)', "{{ 6 * 7 }}{% alert( %}"])
def test_everything_from_the_history_is_escaped(evil):
    history = small(
        event(15_100, EventKind.STOPPED, driver=2, error=evil, message=evil),
        event(15_200, EventKind.LOG, driver=2, level=evil, message=evil),
        struck(15_300, 5, Fault.SLOWED, Phase.WRITING, system=evil, request=evil, phase=evil, aimed=evil),
        event(15_400, EventKind.PHASE, driver=2, phase=evil, batch=4),
        event(15_500, EventKind.SEEN, system=evil, batch=1, decided=1),
        event(15_600, EventKind.SKIPPED, step=6, fault=evil, why=evil),
        event(15_700, EventKind.STUCK, step=5, what=evil),
        event(15_800, EventKind.RESOURCES, driver=2, role=evil, pid=1, rss_mib=1, handles=1),
        event(15_900, EventKind.FOLDER, name=evil, files=1, bytes=1),
        batch(16_000, 2, 4, 1.0, seconds={evil: 1.0}),
        systems=("kafka", evil),
    )
    began = history.events[0].fields
    names = {"guarantee": evil, "versions": {evil: evil}, "limits": {evil: evil}, "seed": evil}
    events = [event(0, EventKind.BEGAN, **{**began, **names}), *history.events[1:]]
    history = History(events=events, expected=history.expected, observed=history.observed)
    verdicts = [Verdict(anomaly=Anomaly.TORN, system=evil, looked_at=1, count=1, examples=(evil,))]
    text = render(history, verdicts)
    page = Page(text)
    assert "alert(" in text
    assert (evil in text) == (escape(evil) == evil)
    assert "<script>alert" not in text
    assert text.count("<script") == 1
    assert not [attribute for _, attribute, _ in page.attributes if attribute.startswith("on")]
    assert evil in page.text
    assert evil in {value for _, attribute, value in page.attributes if attribute == "data-fault"}


def test_page_and_numbers_are_written(tmp_path):
    history = small()
    for _ in range(2):
        page, numbers = write(tmp_path / "new", history, BOTH)
    assert page.read_text(encoding="utf-8") == render(history, BOTH)
    assert numbers == summary(history, BOTH) == json.loads((tmp_path / "new" / "report.json").read_text("utf-8"))

    figures = summary(history, judged(BAD))
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_shows_it(pages, tmp_path):
    # The tooltip at the start of the first driver's lifetime, and the step to whose fault it belongs.
    probe = """<script>
    document.querySelector('#timeline').scrollIntoView();
    const box = document.querySelector('svg.strip .phase').getBoundingClientRect();
    const under = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    console.log('shown: ' + document.querySelector('.verdict b').textContent + ' ' +
      under.closest('g').querySelector('title').textContent);
    </script></body>"""
    file = tmp_path / "report.html"
    file.write_text(pages["good"].replace("</body>", probe), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={tmp_path}/profile", "--dump-dom", file.as_uri()]
    done = subprocess.run([str(CHROMIUM), *flags], capture_output=True, text=True, timeout=120, check=True)
    (said,) = re.findall(r'CONSOLE[^"]*"(.*)", source', done.stderr)
    assert said.startswith("shown: ✓ Exactly once")
    assert "driver 1: starting, from 00:01.0" in said


def test_every_phase_and_fault_has_its_words():
    assert {phase.name for phase in Phase} <= set(PHASES)
    assert {phase.name for phase in Phase} <= set(STAGE_OF)
    assert {fault for one in FAMILIES for fault in one.faults} == set(Fault)
    assert sum(len(one.faults) for one in FAMILIES) == len(Fault)

    assert [times(count, "batch", "batches") for count in (0, 1, 2_000)] == ["0 batches", "1 batch", "2,000 batches"]
