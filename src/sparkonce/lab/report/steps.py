"""Every step: what was done, where it hit, what the drivers did, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator

from sparkonce.lab.report.markup import Html, el, join
from sparkonce.lab.report.story import Step, Story
from sparkonce.lab.report.text import clock, duration, listed, number, times
from sparkonce.lab.report.timeline import Timeline
from sparkonce.lab.report.words import PHASES, family, fault_words, phase_title

_MESSAGES = 6
_HEAD = ("step", "at", "fault", "aimed at", "struck in", "the drivers", "lasted", "recovered after")


def steps(story: Story, timeline: Timeline) -> Html:
    """The list. Each step opens, with its surroundings enlarged."""
    head = el("div", *(el("span", name) for name in _HEAD), class_="row head", aria_hidden="true")
    return el("div", head, *(_step(story, timeline, step) for step in story.steps), class_="steps")


def _step(story: Story, timeline: Timeline, step: Step) -> Html:
    mark = el("svg", el("path", class_="mark", d=family(step.fault).mark), class_="key", viewBox="-7 -7 14 14")
    target = " · ".join(part for part in (step.system, step.request) if part)
    fault = join(mark, el("b", step.fault), el("small", target) if target else None)
    if step.fault_ms is None:
        became = f"skipped: {step.skipped}" if step.skipped else "the run did not come to it"
        cells = [_of("at", "—"), el("span", fault), _of("aimed at", phase_title(step.aimed)), el("span", "—")]
        cells.append(el("span", became, class_="did warn"))
    else:
        cells = [_of("at", clock(step.fault_ms)), el("span", fault), _of("aimed at", phase_title(step.aimed))]
        cells += [_hit(step), el("span", f"{listed(list(did(story, step)))}.", class_="did")]
        cells += [_of("lasted", duration(step.outage_ms) if step.outage_ms else "an instant", "n"), _recovered(step)]
    summary = el("summary", el("span", step.number, class_="number"), *cells, class_="row")
    return el("details", summary, _inside(story, timeline, step), class_="step", data_fault=step.fault)


def _of(label: str, value: object, class_: str | None = None) -> Html:
    return el("span", value, data_label=label, class_=class_)


def _hit(step: Step) -> Html:
    batch = el("small", f"batch {number(step.batch)}") if step.batch is not None else None
    elsewhere = step.hit != step.aimed
    note = el("small", "not where it was aimed", class_="warn") if elsewhere else None
    return el("span", phase_title(step.hit), batch, note, data_label="struck in")


def _recovered(step: Step) -> Html:
    if step.recovery_ms is None:
        return el("span", "never", class_="n warn", data_label="recovered after")
    return _of("recovered after", duration(step.recovery_ms), "n")


def did(story: Story, step: Step) -> Iterator[str]:
    """What the drivers did from the moment at which a step struck until it was recovered from."""
    began, until = step.fault_ms or 0, story.after(step)
    happened: list[tuple[int, str]] = []
    for driver in story.drivers:
        if driver.stopped_ms is not None and began <= driver.stopped_ms <= until:
            happened.append((driver.stopped_ms, f"driver {driver.number} stopped with {driver.error}"))
        elif driver.ended_ms is not None and began <= driver.ended_ms <= until and driver.code:
            happened.append((driver.ended_ms, f"driver {driver.number} was {driver.end.replace(': ', ' by ')}"))
        if began <= driver.began_ms <= until:
            happened.append((driver.began_ms, f"driver {driver.number} was started"))
    if not happened and step.driver is not None:
        yield f"driver {step.driver} went on"
    yield from (what for _, what in sorted(happened))


def _inside(story: Story, timeline: Timeline, step: Step) -> Html:
    planned = step.planned
    asked = [f"{step.fault}: {fault_words(step.fault)}."]
    if planned:
        delay = int(planned.get("delay_ms") or 0)
        moment = (
            f"{duration(delay)} after its beginning" if delay else "at its very beginning, where the driver is held"
        )
        after = int(planned.get("batches") or 0)
        when = (
            f"after {times(after, 'more batch', 'more batches')}"
            if after
            else "while the step before is recovered from"
        )
        asked.append(f"It was aimed at the phase “{phase_title(step.aimed)}”, {moment}, {when}.")
    if step.fault_ms is not None and step.hit in PHASES and step.driver is not None:
        held = ", where it was held" if step.held else ""
        where = f"It struck driver {step.driver} in “{phase_title(step.hit)}”{held}."
        asked.append(f"{where} In this phase: {PHASES[step.hit]}")
    if step.stuck:
        asked.append(f"Before the deadline this did not happen: {step.stuck}.")
    drawn = el("div", timeline.around(step), class_="wide") if step.fault_ms is not None else None
    text = [el("p", " ".join(asked)), drawn, _messages(story, step)]
    return el("div", *text, class_="inside", id=f"step-{step.number}")


def _messages(story: Story, step: Step) -> Html | None:
    if step.fault_ms is None:
        return None
    from_ms, until_ms = step.fault_ms, story.after(step)
    lines = [f"{clock(at_ms)}  {message}" for at_ms, message in story.messages if from_ms <= at_ms <= until_ms]
    if not lines:
        return None
    more = [f"and {number(len(lines) - _MESSAGES)} more"] if len(lines) > _MESSAGES else []
    return el("pre", "\n".join([*lines[:_MESSAGES], *more]))
