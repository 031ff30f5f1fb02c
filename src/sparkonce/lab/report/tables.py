"""Tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkonce.lab.report.markup import Html, el, join
from sparkonce.lab.report.text import duration, number
from sparkonce.lab.report.words import PHASES, STAGE_OF, fault_words, in_order, phase_title
from sparkonce.lab.schedule import EVERY_BATCH, FIRST_BATCH
from sparkonce.lab.verdicts import Anomaly

Figures = Mapping[str, Any]

_EXAMPLES = 10


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, caption: str = "", class_: str = "") -> Html:
    """A table. Cells that are elements of tables already stay as they are; numbers stand right."""
    cells = [el("tr", *(_cell(value, "td") for value in row)) for row in rows]
    return el(
        "div",
        el(
            "table",
            el("caption", caption) if caption else None,
            el("thead", el("tr", *(_cell(value, "th", scope="col") for value in head))),
            el("tbody", *cells),
            class_=class_ or None,
        ),
        class_="wide",
    )


def right(value: object) -> Html:
    """A cell whose text stands right, under a head that does, too."""
    return el("td", value, class_="n")


def head(value: object, *, title: str | None = None, class_: str | None = None) -> Html:
    """A cell that names its row."""
    return el("th", value, scope="row", title=title, class_=class_)


def column(value: object, *, title: str | None = None) -> Html:
    """A cell that names a column of numbers."""
    return el("th", value, scope="col", class_="n", title=title)


def _cell(value: object, tag: str, **attributes: object) -> Html:
    if isinstance(value, Html) and value.startswith(("<td", "<th")):
        return value
    if isinstance(value, int | float):
        return el(tag, number(value), class_="n", **attributes)
    return el(tag, value, **attributes)


def anomalies(figures: Figures) -> Html:
    """Every anomaly in every system: how often it was found, and in how many things that were looked at."""
    verdicts = figures["anomalies"]
    systems = [one for one in figures["run"]["systems"] if any(v["system"] == one for v in verdicts)]
    systems += sorted({v["system"] for v in verdicts if v["system"]} - set(systems))
    places = [*systems, *([""] if any(not v["system"] for v in verdicts) or not systems else [])]
    rows = []
    for anomaly in Anomaly:
        name = el("td", el("strong", anomaly.value), el("div", anomaly.words, class_="words"))
        mine = [v for v in verdicts if v["anomaly"] == anomaly.value]
        rows.append([name, *(_found([v for v in mine if v["system"] == place], bool(mine)) for place in places)])
    columns = [column(f"in {place}" if place else "in the whole run") for place in places]
    return join(table(["what must not be", *columns], rows, class_="anomalies"), _examples(verdicts))


def _found(verdicts: Sequence[Mapping[str, Any]], elsewhere: bool) -> Html:
    if not verdicts:
        return el("td", "" if elsewhere else "not checked", class_="n none")
    seen, times = (sum(one[name] for one in verdicts) for name in ("looked_at", "count"))
    looked_at = f"of {number(seen)} looked at" if seen else "nothing to look at"
    if times:
        count, mark = el("b", f"✗ {number(times)}"), "bad"
    elif seen:
        count, mark = el("b", "✓ 0"), "good"
    else:
        count, mark = el("b", "0"), "none"
    return el("td", count, el("div", looked_at, class_="words"), class_=f"n {mark}")


def _examples(verdicts: Iterable[Mapping[str, Any]]) -> Html:
    parts = []
    for one in verdicts:
        if not one["count"]:
            continue
        shown = one["examples"][:_EXAMPLES]
        where = f" in {one['system']}" if one["system"] else ""
        lines = [el("li", el("code", example)) for example in shown]
        more = one["count"] - len(shown)
        lines += [el("li", f"and {number(more)} more", class_="words")] if more > 0 and shown else []
        title = f"{one['anomaly'].capitalize()}{where}: {one['words']}. Found {number(one['count'])}."
        parts.append(el("div", el("h3", title), el("ul", *lines) if lines else None, class_="example"))
    return join(*parts)


def matrix(figures: Figures) -> Html:
    """How often each fault struck in each phase."""
    by_phase = figures["faults"]["by_phase"]
    hit = {phase for hits in by_phase.values() for phase in hits}
    phases = in_order(hit | {phase.name for phase in EVERY_BATCH + FIRST_BATCH})
    most = max((count for hits in by_phase.values() for count in hits.values()), default=1)
    rows = [
        [
            head(join(el("b", fault), el("div", fault_words(fault), class_="words"))),
            *(_shaded(hits.get(phase, 0), most) for phase in phases),
            el("td", number(sum(hits.values())), class_="n total"),
        ]
        for fault, hits in by_phase.items()
    ]
    sums = [sum(hits.get(phase, 0) for hits in by_phase.values()) for phase in phases]
    rows.append(
        [head("all", class_="total"), *(el("td", number(count), class_="n total") for count in [*sums, sum(sums)])]
    )
    columns = [
        el(
            "th",
            el("i", class_=f"swatch s-{STAGE_OF.get(phase, 'none')}"),
            phase_title(phase),
            scope="col",
            class_="n",
            title=PHASES.get(phase),
        )
        for phase in phases
    ]
    return table(["fault", *columns, column("all")], rows, class_="matrix")


def _shaded(count: int, most: int) -> Html:
    if not count:
        return el("td", "·", class_="n none")
    return el("td", number(count), class_=f"n heat h{min(4, 1 + 4 * (count - 1) // max(1, most))}")


def durations(figures: Figures) -> Html:
    """How long batches took, by phase."""
    seconds = dict(figures["batches"]["seconds"])
    whole = seconds.pop("whole")
    rows = [
        [name, one["count"], *(right(duration(_ms(one[which]))) for which in ("median", "p95", "max"))]
        for name, one in [*((_phase(name), one) for name, one in seconds.items()), (head("whole batch"), whole)]
    ]
    return table(["phase", column("batches"), column("median"), column("p95"), column("longest")], rows)


def _phase(name: str) -> Html:
    swatch = el("i", class_=f"swatch s-{STAGE_OF.get(name, 'none')}")
    return head(join(swatch, phase_title(name)), title=PHASES.get(name))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1_000


def named(values: Mapping[str, Any] | None, title: str) -> Html | None:
    """Names and values; None if there are none."""
    if not values:
        return None
    rows = [[head(name), _plain(value)] for name, value in values.items()]
    return table([title, ""], rows, class_="named")


def _plain(value: object) -> object:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
