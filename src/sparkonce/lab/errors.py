"""What `sparkonce.lab` raises of its own."""

from __future__ import annotations

from sparkonce.errors import SparkonceError


class VerifyFailedError(SparkonceError):
    """The verification could not be carried through. It says nothing about the guarantee."""
