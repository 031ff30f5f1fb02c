from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from sparkonce.analysis.explanation import Explanation
from sparkonce.analysis.findings import Part, Role
from sparkonce.findings import doubles, holds, loses, must, note
from sparkonce.guarantees import Guarantee

SOURCE = Part.of(Role.SOURCE, "kafka: [orders]", [holds("it replays"), must("nothing is deleted"), note("by the way")])
SINK = Part.of(Role.SINK, "kafka", [holds("fine"), doubles("again and again", "write once"), note("more")])
READER = Part.of(Role.READER, "any", [loses("looks away", "look"), doubles("looks twice", "look")])
WEAK = Explanation(query="q", parts=(SOURCE, SINK, READER))
GOOD = Explanation(query="q", parts=(SOURCE,))


def rendered(explanation: Explanation, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(explanation)
    return text.getvalue()


def test_a_part_is_as_good_as_its_worst_finding():
    assert [part.level for part in WEAK.parts] == [
        Guarantee.EXACTLY_ONCE,
        Guarantee.AT_LEAST_ONCE,
        Guarantee.AT_MOST_ONCE,
    ]

    assert SOURCE.reasons == ("it replays",)
    assert SINK.reasons == ("again and again",)
    assert READER.changes == ("look",)
    assert (SOURCE.conditions, SOURCE.notes) == (("nothing is deleted",), ("by the way",))

    assert WEAK.level is Guarantee.AT_MOST_ONCE
    assert WEAK.weakest == (READER,)
    assert GOOD.weakest == ()
    assert WEAK.part("sink") is SINK
    with pytest.raises(KeyError):
        WEAK.part(Role.ENGINE)


def test_json_says_all():
    told = json.loads(WEAK.to_json())
    assert (told["query"], told["level"], told["weakest"]) == ("q", "at-most-once", [2])
    assert told["parts"][1] == {
        "role": "sink",
        "name": "kafka",
        "level": "at-least-once",
        "reasons": ["again and again"],
        "changes": ["write once"],
        "conditions": [],
        "notes": ["more"],
    }


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_says_all_within_the_width(width):
    lines = rendered(WEAK, width).splitlines()
    assert max(len(line) for line in lines) <= width
    flat = " ".join("".join(lines).replace("│", " ").split())
    for said in ("[orders]", "it replays", "nothing is deleted", "again and again", "write once", "at-most-once"):
        assert said in flat
    assert "Weakest link: reader (any)." in rendered(WEAK, width)


def test_the_last_lines_say_what_to_do():
    assert rendered(WEAK, 80).splitlines()[-3:] == [
        "at-most-once end to end. Weakest link: reader (any).",
        "To raise it: look.",
        "Then: write once.",
    ]

    assert rendered(GOOD, 80).splitlines()[-1] == "exactly-once end to end, if every if holds."
    alone = Explanation(query="q", parts=(Part.of(Role.ENGINE, "spark", [holds("fine")]),))
    assert rendered(alone, 80).splitlines()[-1] == "exactly-once end to end."

    assert "Weakest link: reader (any)." in str(WEAK)
    assert "\x1b" not in str(WEAK)


def test_in_a_notebook_it_is_a_text_and_the_last_line_of_a_cell_is_a_table(monkeypatch, capsys):
    """In a notebook, a rich console displays its output on its own and writes nothing to its file."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "Weakest link" in str(WEAK)
    assert "Weakest link" in WEAK._repr_html_()
    assert "style=" in WEAK._repr_html_()
    assert capsys.readouterr().out == ""
