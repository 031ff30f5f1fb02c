"""Breaks the product in every Python process that is started with this folder on its path: driver, daemon, workers."""

import os

if _names := os.environ.get("SPARKONCE_MUTANTS"):
    from verifying.mutants import MUTANTS

    for _name in _names.split(","):
        MUTANTS[_name].injure()
