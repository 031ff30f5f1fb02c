from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer

from sparkonce.cli.main import app
from sparkonce.protocol.state import Phase
from sparkonce.sinks.kafka.orphans import HeldPartition
from sparkonce.ui.alarms import RULES, Alarm, alarms_of
from sparkonce.ui.state import PageState, QueryState, ShownQuery, ShownSystem, ShownTransaction, Usual
from sparkonce.watch.figures import InDoubt

NOW_MS = 1_800_000_000_000
WRITING = Phase.WRITING.value
QUERY = ShownQuery(
    location="/c/my totals",
    name="totals",
    query="60a1de00-0000-4000-8000-000000000001",
    run="5-0c5b77b9",
    host="driver-3",
    state=QueryState.IDLE,
    batch=7,
    usual={WRITING: Usual(p50_ms=2000, p95_ms=5000, of=40)},
    next_start="resumes",
    read_ms=NOW_MS,
)
OPEN = ShownTransaction(
    name="shop.60a1de000000.5-0c5b77b9.aaaa-1",
    kind="open",
    query="60a1de000000",
    run="5-0c5b77b9",
    batch=-1,
    slot=-1,
    age_s=10.0,
    timeout_s=100.0,
    verdict="under way",
    why="The newest run has it open.",
)
FOREIGN = replace(
    OPEN,
    name="billing-3",
    query="",
    age_s=61.0,
    verdict="foreign",
    partitions=[HeldPartition(topic="totals", partition=3, begins=81, readable=81, end=95, blocks=True)],
)


def state(query: ShownQuery = QUERY, *systems: ShownSystem, config: str = "") -> PageState:
    return PageState(now_ms=NOW_MS, queries=[query], systems=systems, config=config)


def of_query(**changes: Any) -> list[Alarm]:
    return alarms_of(state(replace(QUERY, **changes)))


def of_transaction(**changes: Any) -> list[Alarm]:
    kafka = ShownSystem(name="kafka", kind="kafka", open=[replace(OPEN, **changes)])
    return alarms_of(state(QUERY, kafka, config="systems.yaml"))


@pytest.mark.parametrize(
    ("takes_ms", "usual", "says"),
    [
        (23_900, (2000, 8000, 40), ""),
        (24_100, (2000, 8000, 40), "The usual time is 2 s, and 95 % take at most 8 s."),
        (19_900, (20, 50, 40), ""),  # short, regardless of what is usual
        (20_100, (20, 50, 40), "The usual time is 20 ms, and 95 % take at most 50 ms."),
        (200_000, (20, 50, 9), ""),  # too few batches
        (300_100, (20, 50, 9), "too few batches"),
    ],
)
def test_a_phase_that_takes_longer_than_usual_says_what_is_usual(takes_ms, usual, says):
    p50, p95, of = usual
    times = {WRITING: Usual(p50_ms=p50, p95_ms=p95, of=of)}
    found = of_query(state=QueryState.AT_WORK, phase=WRITING, since_ms=NOW_MS - takes_ms, usual=times)
    assert [one.urgent for one in found] == ([False] if says else [])
    assert all(says in one.says for one in found)


def test_a_phase_is_no_longer_than_what_was_seen_of_it():
    """Slowness of the store must not look like a long phase."""
    at_work = {"state": QueryState.AT_WORK, "phase": WRITING, "since_ms": NOW_MS - 40_000}
    assert of_query(**at_work, polled_ms=NOW_MS - 39_000) == []
    assert len(of_query(**at_work, polled_ms=NOW_MS - 10_000)) == 1

    (alarm,) = of_query(state=QueryState.SILENT, phase=WRITING, heard_ms=NOW_MS - 300_000, says="It was at it.")
    assert (alarm.urgent, "That is 5 min ago." in alarm.says, "driver-3" in alarm.next_step) == (True, True, True)

    (alarm,) = of_query(state=QueryState.STOPPED, says="LogError: it is so.", next_step="Start it again.")
    assert (alarm.urgent, alarm.says, alarm.next_step) == (True, "LogError: it is so.", "Start it again.")
    assert shlex.split(alarm.command) == ["sparkonce", "checkpoint", "show", "/c/my totals"]
    (bare,) = of_query(state=QueryState.STOPPED)
    assert bare.next_step

    assert of_query() == []
    assert of_query(state=QueryState.AT_WORK, phase=WRITING, since_ms=NOW_MS - 3000) == []
    assert of_transaction() == []


@pytest.mark.parametrize(
    ("next_start", "standing", "urgent"),
    [
        ("is refused", QueryState.IDLE, [True]),
        ("is refused", QueryState.AT_WORK, [True]),
        ("may be refused", QueryState.IDLE, [False]),
        ("may be refused", QueryState.AT_WORK, []),
        ("commits", QueryState.IDLE, []),
        ("writes again", QueryState.IDLE, []),
    ],
)
def test_a_start_that_is_refused_is_an_alarm(next_start, standing, urgent):
    found = of_query(next_start=next_start, next_says="It is so.", next_start_step="Restore it.", state=standing)
    assert [one.urgent for one in found] == urgent
    assert {(one.says, one.next_step) for one in found} <= {("It is so.", "Restore it.")}
    assert all("checkpoint show" in one.command for one in found)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"error": "It is damaged.", "error_step": "Restore it."}, ["It is damaged."]),
        ({"silent_s": 14.0}, []),
        ({"silent_s": 75.0}, ["Its store has not answered for 1 min 15 s."]),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_an_alarm(changes, says):
    assert [one.says for one in of_query(**changes)] == says


@pytest.mark.parametrize(
    ("age_s", "timeout_s", "urgent"),
    [
        (50.0, 100.0, []),
        (50.1, 100.0, [False]),
        (90.0, 100.0, [False]),
        (90.1, 100.0, [True]),
        (500.0, 100.0, [True]),
        (-1.0, 100.0, []),
        (9e9, None, []),
    ],
)
def test_transactions_are_alarms_by_their_part_of_the_timeout(age_s, timeout_s, urgent):
    assert [one.urgent for one in of_transaction(age_s=age_s, timeout_s=timeout_s)] == urgent


@pytest.mark.parametrize(
    ("verdict", "says", "step"),
    [
        ("commit", "have to be written again", "commits it"),
        ("abort", "", "aborts it"),
        ("under way", "", "driver runs"),
    ],
)
def test_an_old_transaction_is_told_by_its_verdict(verdict, says, step):
    (alarm,) = of_transaction(age_s=60.0, verdict=verdict)
    assert "has been open for 1 min of 1 min 40 s. It ends in 40 s." in alarm.says
    assert says in alarm.says
    assert step in alarm.next_step
    words = shlex.split(alarm.command)
    assert words[1:3] == ["transactions", "list"]
    assert words[3:] == ["--config", "systems.yaml", "--checkpoint", "/c/my totals"]


def test_what_the_driver_has_in_doubt_is_an_alarm_where_no_system_tells_it():
    doubt = {"in_doubt": InDoubt(transactions=2, opened_ms=NOW_MS - 950_000), "timeout_ms": 1_000_000}
    (alarm,) = of_query(state=QueryState.STOPPED, **doubt)[1:]
    assert (alarm.urgent, "opened 15 min 50 s ago" in alarm.says) == (True, True)
    assert of_query(**doubt) == []  # the query is idle, and in a later segment nothing is in doubt
    kafka = ShownSystem(name="kafka", kind="kafka", open=[replace(OPEN, age_s=95.0)])
    both = alarms_of(state(replace(QUERY, state=QueryState.AT_WORK, **doubt), kafka))
    assert [one.key.split()[1] for one in both] == ["kafka"]


@pytest.mark.parametrize(
    ("query", "age_s", "steps"),
    [
        ("60a1de000000", 1.0, ["Find out which copy of the checkpoint is the newest."]),
        ("0123456789ab", 59.0, []),
        ("0123456789ab", 61.0, ["Give this page the checkpoint of query 0123456789ab, too."]),
    ],
)
def test_a_transaction_that_no_log_knows_is_an_alarm(query, age_s, steps):
    found = of_transaction(query=query, age_s=age_s, verdict="not known", timeout_s=None)
    assert [one.next_step for one in found] == steps


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"silent_s": 14.0}, []),
        ({"silent_s": 16.0}, ["It was queried 16 s ago."]),
        ({"error": "Refused."}, ["Refused."]),
    ],
)
def test_a_system_that_does_not_answer_is_an_alarm(changes, says):
    found = alarms_of(state(QUERY, ShownSystem(name="cache", kind="redis", **changes), config="s.yaml"))
    assert [one.says for one in found] == says
    assert {one.command for one in found} <= {"sparkonce transactions list --system redis --config s.yaml"}


@pytest.mark.parametrize(("age_s", "blocks", "urgent"), [(61.0, True, [True]), (59.0, True, []), (99.0, False, [])])
def test_another_applications_transaction_is_an_alarm_once_it_blocks_readers_for_long(age_s, blocks, urgent):
    part = replace(FOREIGN.partitions[0], blocks=blocks)
    kafka = ShownSystem(name="kafka", kind="kafka", open=[replace(FOREIGN, age_s=age_s, partitions=[part])])
    found = alarms_of(state(QUERY, kafka, config="s.yaml"))
    assert [one.urgent for one in found] == urgent
    for alarm in found:
        assert (
            "billing-3 (open) has been open for 1 min 1 s: read_committed readers of totals-3 see no rows" in alarm.says
        )
        assert "Let its application end it" in alarm.next_step
        assert alarm.command == "sparkonce transactions blocking --topic totals --config s.yaml"


def everything() -> PageState:
    old, unknown = replace(OPEN, age_s=95.0), replace(OPEN, name="b", verdict="not known")
    systems = [
        ShownSystem(name="kafka", kind="kafka", open=[old, unknown, FOREIGN]),
        ShownSystem(name="cache", kind="redis", error="Refused."),
    ]
    queries = [
        replace(QUERY, state=QueryState.STOPPED, says="A."),
        replace(QUERY, location="/c/b", state=QueryState.SILENT, phase=WRITING, heard_ms=NOW_MS),
        replace(QUERY, location="/c/c", state=QueryState.AT_WORK, phase=WRITING, since_ms=0),
        replace(QUERY, location="/c/d", next_start="is refused", next_says="B.", next_start_step="C."),
        replace(QUERY, location="/c/e", error="D."),
    ]
    return PageState(now_ms=NOW_MS, queries=queries, systems=systems, config="systems.yaml")


def test_every_rule_has_something_to_say_and_urgent_ones_come_first():
    assert all(list(rule(everything())) for rule in RULES)
    found = alarms_of(everything())
    assert [one.urgent for one in found] == sorted((one.urgent for one in found), reverse=True)
    assert len({one.key for one in found}) == len(found) == 9
    assert all(one.title and one.says and one.next_step for one in found)


@pytest.mark.parametrize("moved", [False, True])
def test_every_command_is_one_of_ours(moved):
    group: Any = typer.main.get_command(app)
    for alarm in alarms_of(replace(everything(), moved=moved)):
        name, first, second, *words = shlex.split(alarm.command)
        command = group.commands[first].commands[second]
        with command.make_context(second, words):
            assert name == "sparkonce"
