"""Makes the fault that is named in the environment in every Python process that a test starts."""

import os

if _told := os.environ.get("SPARKONCE_MUTANT"):
    from mutants.faults import find

    _found = find(*_told.split("|", 1))
    assert _found.apply is not None
    _found.apply()
