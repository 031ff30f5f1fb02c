"""Shows a run: as numbers (`summary`), as one page that needs nothing else (`render`), or both in a folder (`write`).

``story`` puts the events together, ``figures`` counts, ``judgement`` says what that comes to; ``page`` is the whole
page, ``page.css`` how it looks, ``page.js`` what moves; ``sections`` are its parts, made of ``tables``, ``charts``,
``timeline`` and ``steps``; ``words`` says what its words mean, ``markup`` makes elements, and escapes.
"""

from sparkonce.lab.report.figures import summary
from sparkonce.lab.report.page import render, write

__all__ = ["render", "summary", "write"]
