"""Checks for authors of sinks. See `sparkonce.arguments` for the validation of a user's arguments.

- `utf8_text`: rejects strings that are not valid UTF-8, which can occur in Spark
- `check_same`: refuses a start if a fact differs from the one in the log
- `see_files`: checks that the files named by TLS settings can be opened
- `one_line`: puts a server's message on one line
"""

from __future__ import annotations

from sparkonce.errors import one_line
from sparkonce.sinks._shared.arrow import utf8_text
from sparkonce.sinks._shared.preflight import check_same
from sparkonce.sinks._shared.settings import see_files

__all__ = ["check_same", "one_line", "see_files", "utf8_text"]
