"""Breaks the product in every Python process that is started with this folder on its path: driver, daemon, workers."""

import os

if _name := os.environ.get("SPARKONCE_MUTANT"):
    from verifying.mutants import MUTANTS

    MUTANTS[_name].injure()
