"""Renders the page from its template: one file that loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparkonce_lab.history import History
from sparkonce_lab.report import text, words
from sparkonce_lab.report.content import content
from sparkonce_lab.report.figures import of_story
from sparkonce_lab.report.story import Story
from sparkonce_lab.verdicts import Verdict

HTML = "report.html"
JSON = "report.json"

_FILTERS: tuple[Callable[..., object], ...] = (
    *(text.number, text.times, text.duration, text.clock, text.listed),
    *(words.fault_words, words.phase_title, words.family),
)
_WORDS = ("PHASES", "STAGES", "STAGE_OF", "FAMILIES")


def write(folder: Path, history: History, verdicts: Sequence[Verdict]) -> tuple[Path, Path]:
    """Writes the page and the numbers into a folder, over earlier ones.

    Args:
        folder: Made if it does not exist.
        history: The recording.
        verdicts: The checkers' answers.

    Returns:
        The paths of page and numbers.
    """
    story = Story(history)
    figures = of_story(story, verdicts)
    folder.mkdir(parents=True, exist_ok=True)
    html, numbers = folder / HTML, folder / JSON
    html.write_text(_page(story, figures), encoding="utf-8")
    numbers.write_text(json.dumps(figures, indent=1, default=str) + "\n", encoding="utf-8")
    return html, numbers


def render(history: History, verdicts: Sequence[Verdict]) -> str:
    """Returns the page.

    Args:
        history: The recording; it may break off anywhere.
        verdicts: The checkers' answers.
    """
    story = Story(history)
    return _page(story, of_story(story, verdicts))


def _page(story: Story, figures: Mapping[str, Any]) -> str:
    # Names and messages come from servers and errors: nothing but the templates is markup.
    environment = Environment(
        loader=PackageLoader("sparkonce_lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({function.__name__: function for function in _FILTERS})
    environment.globals.update({name: getattr(words, name) for name in _WORDS})
    return environment.get_template("page.html").render(content(story, figures))
