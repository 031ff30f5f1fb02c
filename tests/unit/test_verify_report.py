"""The report on a verified run: its numbers, its verdict, and its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkonce.protocol.state import Phase
from sparkonce_lab.checkers import judge
from sparkonce_lab.faults import Fault
from sparkonce_lab.history import OBSERVED, ROWS, Event, EventKind, History
from sparkonce_lab.report import figures as numbers_of
from sparkonce_lab.report.figures import EXIT_CODES, WORDS, Story, spread
from sparkonce_lab.report.page import GUTTER, WIDTH, Strip, Timeline, render, write
from sparkonce_lab.report.words import FAMILIES, PHASES, STAGE_OF, clock, duration, listed, number, times
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
    """A history of 20 s with two drivers, four batches, three faults, and one that could not be injected."""
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


def long(faults: int, batches: int) -> History:
    """A history with one batch per second and all faults at regular intervals. A new driver continues after each."""
    systems = ("kafka", "postgres")
    struck_by = {
        (nth * batches) // (faults + 1): step(nth, fault, Phase.WRITING, "kafka" if fault.of_a_system else "")
        for nth, fault in zip(range(1, faults + 1), cycle(Fault), strict=False)
    }
    told = [
        event(
            0,
            EventKind.BEGAN,
            seed=7,
            systems=list(systems),
            guarantee="exactly-once",
            schedule=[*struck_by.values()],
            versions={"spark": "4.0.0"},
            limits={"step_s": 120},
        ),
        event(500, EventKind.START, driver=1, pid=4037, slots=4, master="local[4]"),
    ]
    driver = 1
    for done in range(batches):
        at = 1_000 * (done + 1)
        phases = (Phase.WRITING, Phase.DECIDING, Phase.FINISHING, Phase.IDLE)
        told += [
            event(at + 200 * place, EventKind.PHASE, driver=driver, phase=phase.name, batch=done)
            for place, phase in enumerate(phases)
        ]
        if done in struck_by:
            fault = struck_by[done]
            told += [
                struck(
                    at + 50,
                    fault["number"],
                    Fault(fault["fault"]),
                    Phase.WRITING,
                    system=fault["system"],
                    driver=driver,
                ),
                event(at + 60, EventKind.LOG, driver=driver, level="WARNING", message="no answer within 500 ms"),
                event(at + 70, EventKind.STOPPED, driver=driver, error="PrepareError", message="reset by its peer"),
                event(at + 80, EventKind.ENDED, driver=driver, code=1),
                event(at + 90, EventKind.START, driver=driver + 1, pid=4037 + driver, slots=4, master="local[4]"),
                event(at + 100, EventKind.OVER, step=fault["number"]),
                event(at + 900, EventKind.RECOVERED, step=fault["number"], driver=driver + 1, batch=done),
            ]
            driver += 1
        told += [event(at + 950, EventKind.SEEN, system=system, batch=done, decided=done) for system in systems]
        told.append(batch(at + 900, driver, done, 0.5, recovered=done in struck_by))
        if done % 10 == 0:
            roles = {"driver": 140, "jvm": 900, "worker": 160}
            told += [
                event(at, EventKind.RESOURCES, driver=driver, role=role, pid=driver, rss_mib=mib + done % 7, handles=40)
                for role, mib in roles.items()
            ]
            told.append(event(at, EventKind.FOLDER, name="log", files=20 + done % 5, bytes=40_000))
    end = 1_000 * (batches + 2)
    told += [event(end - 500, EventKind.FED, rows=6), event(end - 400, EventKind.ENDED, driver=driver, code=0)]
    told += [event(end - 300, EventKind.OPEN, system=system, names=[]) for system in systems]
    told += [event(end - 200, EventKind.STATE, disturbed=64, undisturbed=64), event(end, EventKind.FINISHED)]
    told.sort(key=lambda one: one.at_ms)
    return replace(small(), events=told)


OF_THE_RUN = {Anomaly.TORN, Anomaly.STATE_DIFFERS, Anomaly.STUCK, Anomaly.STOPPED, Anomaly.GROWING}


def judged(bad: Mapping[tuple[Anomaly, str], tuple[int, Sequence[str]]] | None = None) -> list[Verdict]:
    """Returns verdicts on every anomaly, for the whole run or for each system. Only the given ones are bad."""
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


def test_batches_are_counted() -> None:
    figures = summary(small(), BOTH)["batches"]
    assert {name: figures[name] for name in ("finished", "distinct", "recovered", "healed", "transactions")} == {
        "finished": 4,
        "distinct": 4,
        "recovered": 1,
        "healed": 1,
        "transactions": 16,
    }
    assert figures["seconds"]["WRITING"] == {"count": 4, "min": 1.0, "median": 2.5, "p95": 4.0, "max": 4.0}
    assert figures["seconds"]["whole"]["median"] == 3.0
    assert figures["longest_gap"] == {"length_ms": 7_000, "from_ms": 6_000, "to_ms": 13_000, "steps": [2, 3]}

    figures = summary(small(batch(16_000, 2, 3, 1.0, recovered=True)), BOTH)["batches"]
    assert (figures["finished"], figures["distinct"]) == (5, 4)

    figures = summary(small(event(60_000, EventKind.LOG, driver=2, message="x"), finished=False), BOTH)["batches"]
    assert figures["longest_gap"] == {"length_ms": 45_000, "from_ms": 15_000, "to_ms": 60_000, "steps": []}

    rows = summary(small(), BOTH)["rows"]
    assert rows == {
        "source": 6,
        "expected": {"row": 6, "sum": 1},
        "found": {"kafka": {"row": 6, "sum": 1}, "postgres": {"row": 6, "sum": 1}},
        "written": {"kafka": 40, "postgres": 40},
    }


def test_faults_are_counted_where_they_struck() -> None:
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


def test_drivers_and_how_they_ended() -> None:
    stopped = event(19_000, EventKind.STOPPED, driver=3, error="SupersededError", message="a newer run")
    drivers = summary(small(event(18_500, EventKind.START, driver=3), stopped), BOTH)["drivers"]
    assert drivers["started"] == 3
    assert drivers["ends"] == {
        "killed: SIGKILL": 1,
        "ended normally": 1,
        "stopped on its own: SupersededError": 1,
    }
    assert [one["batches"] for one in drivers["each"]] == [2, 2, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"count": 0, "min": None, "median": None, "p95": None, "max": None}),
        ([7], {"count": 1, "min": 7, "median": 7, "p95": 7, "max": 7}),
        (range(1, 101), {"count": 100, "min": 1, "median": 50.5, "p95": 95, "max": 100}),
        (range(20, 0, -1), {"count": 20, "min": 1, "median": 10.5, "p95": 19, "max": 20}),
    ],
)
def test_a_spread(values: Sequence[int], expected: dict[str, float]) -> None:
    assert spread(values) == expected


def verdict(history: History, verdicts: Sequence[Verdict]) -> tuple[str, str]:
    said = summary(history, verdicts)["verdict"]
    return said["outcome"], said["sentence"]


def test_a_run_without_anomalies_passes() -> None:
    assert verdict(small(), BOTH) == (
        "passed",
        "Nothing is missing, doubled or unexpected in kafka and postgres: of 7 expected rows each is there once, and "
        "nothing else. 3 of 4 faults struck the running query; 2 drivers finished 4 batches in 20.0 s.",
    )

    assert summary(small(), BOTH)["verdict"]["words"] == "exactly once"
    assert EXIT_CODES.keys() == WORDS.keys()
    assert {outcome for outcome, code in EXIT_CODES.items() if code == 0} == {"passed"}
    assert {outcome for outcome, code in EXIT_CODES.items() if code == 1} == {"failed"}

    outcome, sentence = verdict(long(faults=0, batches=3), judged())
    assert outcome == "passed"
    assert "No fault was planned" in sentence

    history = small()
    calm = replace(history, events=[one for one in history.events if one.kind is not EventKind.FAULT])
    outcome, sentence = verdict(calm, BOTH)
    assert outcome == "nothing proved"
    assert "was not disturbed: this proves nothing. 0 of 4 faults struck" in sentence


def test_anomalies_fail_it_and_are_named() -> None:
    found = [
        Verdict(anomaly=Anomaly.MISSING, system="kafka", looked_at=7, count=1_200),
        Verdict(anomaly=Anomaly.MISSING, system="postgres", looked_at=7, count=3),
        Verdict(anomaly=Anomaly.STUCK, system="", looked_at=1, count=1),
    ]
    outcome, sentence = verdict(small(), [*BOTH, *found])
    assert outcome == "failed"
    assert "1,204 anomalies were found: missing (1,200 in kafka and 3 in postgres); stuck (1)." in sentence
    stuck = small(event(19_000, EventKind.STUCK, step=3, what="no batch in 60 s"), finished=False)
    outcome, sentence = verdict(stuck, [*BOTH, *found])
    assert outcome == "failed"
    assert "before its deadline this did not happen after step 3: no batch in 60 s" in sentence


def test_what_is_missing_when_the_recording_breaks_off_proves_nothing() -> None:
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


def test_an_unfinished_run_proves_nothing() -> None:
    outcome, sentence = verdict(small(finished=False), BOTH)
    assert outcome == "unfinished"
    assert "its recording breaks off after 00:18.0" in sentence
    assert "proves nothing" in sentence

    outcome, sentence = verdict(small(event(19_000, EventKind.STUCK, step=3, what="no batch in 60 s")), BOTH)
    assert outcome == "unfinished"
    assert "after step 3: no batch in 60 s" in sentence


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
def test_a_verdict_on_nothing_proves_nothing(verdicts: Sequence[Verdict], named: str) -> None:
    outcome, sentence = verdict(small(), verdicts)
    assert outcome == "nothing proved"
    assert named in sentence
    assert "this proves nothing" in sentence


def test_what_could_not_be_read_is_told_with_its_reason() -> None:
    history = small(event(19_000, EventKind.UNREAD, what="the rows in postgres", why="connection refused"))
    history = replace(history, observed={"kafka": history.observed["kafka"]})
    outcome, sentence = verdict(history, judge(history))
    assert outcome == "nothing proved"
    assert "“missing” in postgres" in sentence
    assert "Not read: the rows in postgres (connection refused)." in sentence


def test_a_weaker_guarantee_is_not_asked_for_more() -> None:
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
    good = long(faults=24, batches=200)
    unfinished = History(events=good.events[: len(good.events) // 2], expected=good.expected, observed={})
    return {
        "good": render(good, judged()),
        "bad": render(good, judged(BAD)),
        "unfinished": render(unfinished, judged()),
        "small": render(small(), BOTH),
        "nothing": render(History(events=[], expected=ROWS.empty_table(), observed={}), []),
    }


NAMES = ["good", "bad", "unfinished", "small", "nothing"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert len(page.ids) == len(set(page.ids))
    targets = {value for _, attribute, value in page.attributes if attribute == "href"}
    assert {str(target)[1:] for target in targets} <= set(page.ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_nothing_else(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert not {tag for tag, _, _ in page.attributes} & {"link", "img", "iframe", "object", "embed", "image", "use"}
    assert not [attribute for _, attribute, _ in page.attributes if attribute in {"src", "srcset", "style"}]
    assert all(str(value).startswith("#") for _, attribute, value in page.attributes if attribute == "href")
    assert not re.findall(r"https?://|url\(|@import|@font-face", pages[name])


@pytest.mark.parametrize("evil", ["<script>alert('&')</script>", '" onclick="alert(1)', "{{ 6 * 7 }}{% alert( %}"])
def test_everything_from_the_history_is_escaped(evil: str) -> None:
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


@pytest.mark.slow
def test_an_hour_stays_small() -> None:
    text = render(long(faults=200, batches=3_000), judged())
    assert len(text.encode()) < 3_000_000
    page = Page(text)
    strips = [value for tag, name, value in page.attributes if (tag, name, value) == ("svg", "class", "strip")]
    assert len(strips) <= 12 + 200
    assert sum(one.startswith("step-") for one in page.ids) == 200


def test_what_stands_on_the_page(pages: dict[str, str]) -> None:
    text = Page(pages["unfinished"]).text
    assert "Nothing proved: not finished The run was not finished: its recording breaks off after 0" in text
    assert "the run did not reach it" in text
    assert "No system was read at the end" in text

    text = Page(pages["bad"]).text
    assert "✗ NOT exactly once" in text
    assert "✗ 1,204 of 50,192 looked at" in text
    assert "row: key 17, number 2,045, amount 311" in text
    assert "and 1,202 more" in text
    for anomaly in Anomaly:
        assert anomaly.words in text

    text = Page(pages["small"]).text
    assert "driver 1 was killed by SIGKILL and driver 2 was started." in text
    assert "finishing batch 2 not where it was aimed" in text
    assert "skipped: no worker was there" in text

    twice = [Verdict(anomaly=Anomaly.TORN, system="", looked_at=5, count=count) for count in (2, 0)]
    assert "✗ 2 of 10 looked at" in Page(render(small(), [*BOTH, *twice])).text


def test_the_timeline_shows_phases_batches_and_what_readers_saw() -> None:
    history = small(
        event(1_500, EventKind.PHASE, driver=1, phase="READING", batch=0),
        event(2_000, EventKind.PHASE, driver=1, phase="CLAIMING", batch=0),
        event(4_000, EventKind.PHASE, driver=1, phase="WRITING", batch=0),
        event(4_001, EventKind.PHASE, driver=1, phase="DECIDING", batch=0),
        event(4_002, EventKind.PHASE, driver=1, phase="IDLE", batch=0),
        event(3_500, EventKind.SEEN, system="kafka", batch=0, decided=0),
        event(3_600, EventKind.SEEN, system="kafka", batch=1, decided=0),
    )
    story = Story(history)
    second = WIDTH / 10
    first, last = Timeline(story).strips()
    assert [(one.from_ms, one.to_ms) for one in (first, last)] == [(0, 10_000), (10_000, 20_000)]
    assert [mark.step for mark in first.marks if mark.step is not None] == [1, 2]
    assert paths(first, "phase s-starting")[0].startswith(f"M{GUTTER + second:g} ")
    assert paths(first, "phase s-starting")[0].endswith(f"h{second / 2:g}")
    claiming = paths(first, "phase s-claiming")
    assert [path.partition("h")[2] for path in claiming] == [f"{second / 2:g}", f"{2 * second:g}"]
    assert not paths(first, "phase s-writing"), "too short for this scale"
    assert "driver 1: claiming, batch 0, from 00:02.0" in {mark.title for mark in first.marks}
    assert len(paths(first, "death")) == 1
    assert [path.count("M") for path in paths(first, "tick done")] == [2]
    assert not paths(first, "tick again")
    assert len(paths(first, "tick seen")) == len(paths(first, "tick early")) == 1
    assert len(paths(first, "base")) == 3, "batches, and a reader of each system"
    assert len(paths(last, "tick again")) == 1
    page = Page(render(history, BOTH)).text
    assert "Timeline from 00:03.5 to 00:06.5" in render(history, BOTH), "a step is drawn enlarged"
    assert "driver 1: claiming, batch 0, from 00:02.0" in page


def paths(strip: Strip, name: str) -> list[str]:
    return [path for mark in strip.marks for kind, path in mark.paths if kind == name]


def test_page_and_numbers_are_written(tmp_path: Path) -> None:
    history = small()
    for _ in range(2):
        page, numbers = write(tmp_path / "new", history, BOTH)
    assert page.read_text(encoding="utf-8") == render(history, BOTH)
    assert numbers == summary(history, BOTH) == json.loads((tmp_path / "new" / "report.json").read_text("utf-8"))

    figures = summary(long(faults=24, batches=200), judged(BAD))
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize(
    "name", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "small")]
)
def test_a_browser_shows_it(pages: dict[str, str], name: str, tmp_path: Path) -> None:
    def summary_sentence(page: str) -> str:
        found = re.search(r'class="verdict [a-z]+"><b>[^<]*</b><p>([^<]*)</p>', page)
        assert found
        return unescape(found.group(1))

    # What is under the pointer at the beginning of the first driver's life, and which step's fault it belongs to.
    probe = """<script>
    document.querySelector('#timeline').scrollIntoView();
    const box = document.querySelector('svg.strip .phase')?.getBoundingClientRect();
    const under = box && document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    console.log('shown: ' + document.querySelector('.verdict b').textContent + ' ' +
      (under?.closest('g').querySelector('title').textContent ?? ''));
    </script></body>"""
    file = tmp_path / "report.html"
    file.write_text(pages[name].replace("</body>", probe), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={tmp_path}/profile", "--dump-dom", file.as_uri()]
    done = subprocess.run([str(CHROMIUM), *flags], capture_output=True, text=True, timeout=120, check=True)
    said = re.findall(r'CONSOLE[^"]*"(.*)", source', done.stderr)
    word = {"good": "✓ Exactly once", "bad": "✗ NOT exactly once", "small": "✓ Exactly once"}
    assert len(said) == 1
    assert said[0].startswith(f"shown: {word.get(name, 'Nothing proved: not finished')}")
    if name == "small":
        assert "driver 1: starting, from 00:01.0" in said[0]
    assert summary_sentence(pages[name]) in done.stdout


def test_every_phase_and_fault_has_its_words() -> None:
    assert {phase.name for phase in Phase} <= set(PHASES)
    assert {phase.name for phase in Phase} <= set(STAGE_OF)
    assert {fault for one in FAMILIES for fault in one.faults} == set(Fault)
    assert sum(len(one.faults) for one in FAMILIES) == len(Fault)

    assert [times(count, "batch", "batches") for count in (0, 1, 2_000)] == ["0 batches", "1 batch", "2,000 batches"]


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (number, 1_234_567, "1,234,567"),
        (number, None, "—"),
        (duration, 999.4, "999 ms"),
        (duration, 1_000, "1.0 s"),
        (duration, 99_900, "99.9 s"),
        (duration, 119_600, "2 min 00 s"),
        (duration, 7_260_000, "2 h 01 min"),
        (duration, None, "—"),
        (clock, 61_250, "01:01.2"),
        (clock, 3_600_000, "1:00:00.0"),
        (listed, [], ""),
        (listed, ["a", "b", "c"], "a, b and c"),
    ],
)
def test_for_people(function: Callable[[Any], str], value: Any, text: str) -> None:
    assert function(value) == text
