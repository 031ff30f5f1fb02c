"""Reports a run: as numbers (`summary`), as one page (`render`), or both in a folder (`write`).

- ``story``: the events, put together to drivers, batches and steps
- ``figures``: counts them, as plain values for JSON
- ``judgement``: the verdict, its sentence and its exit code
- ``content``: the figures arranged for the page
- ``timeline``, ``charts``: the geometry of its pictures, as values of ``drawing``
- ``words``, ``text``: the page's terms; numbers and times in a form for readers
- ``page``: renders ``templates/``, which hold all markup, style and script
"""

from sparkonce_lab.report.figures import summary
from sparkonce_lab.report.page import render, write

__all__ = ["render", "summary", "write"]
