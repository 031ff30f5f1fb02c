"""What sinks check, for authors of sinks. `sparkonce.arguments` checks the arguments that a user gives.

- `utf8_text`: refuses strings that are not UTF-8, which Spark's may be.
- `check_same`: refuses a start whose fact is another one than the log has.
- `see_files`: opens the files that TLS settings name.
- `one_line`: a server's answer in one line.
"""

from __future__ import annotations

from sparkonce.errors import one_line
from sparkonce.sinks._shared.arrow import utf8_text
from sparkonce.sinks._shared.preflight import check_same
from sparkonce.sinks._shared.settings import see_files

__all__ = ["check_same", "one_line", "see_files", "utf8_text"]
