"""The error that `sparkonce_lab` raises of its own."""

from __future__ import annotations

from sparkonce.errors import SparkonceError


class RunFailedError(SparkonceError):
    """A run of demo or verifier could not be carried through. It says nothing about the guarantee."""
