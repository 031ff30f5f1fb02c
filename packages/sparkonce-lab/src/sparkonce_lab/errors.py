"""The error that `sparkonce_lab` itself raises."""

from __future__ import annotations

from sparkonce.errors import SparkonceError


class RunFailedError(SparkonceError):
    """A run of the demo or the verifier could not be completed, which says nothing about the guarantee."""
