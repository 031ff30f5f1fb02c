"""What a demo that proves nothing raises."""

from __future__ import annotations

from sparkonce.errors import SparkonceError


class DemoFailedError(SparkonceError):
    """The demo could not be carried through, so it shows nothing, neither good nor bad."""
