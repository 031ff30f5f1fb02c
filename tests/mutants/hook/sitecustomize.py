"""Injects the faults named in the environment into every Python process that is started with this on its path."""

import os

if _told := os.environ.get("SPARKONCE_MUTANT"):
    from mutants.operators import Fault

    for _fault in Fault.of(*_told.split("\n")):
        _fault.apply()
