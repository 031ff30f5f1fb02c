"""Reports a run: ``figures`` writes numbers (``report.json``), and ``page`` writes a page (``report.html``)."""
