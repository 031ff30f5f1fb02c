"""Reports a run: as numbers (``figures``, for ``report.json``), and as one page (``page``, with ``report.html``)."""
