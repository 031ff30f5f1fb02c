"""Where the user's own systems are, as it may be shown and written down."""

from __future__ import annotations

import re

_HIDDEN = "***"
_SECRET = re.compile(r"(?i)\b(\w*(?:password|passwd|secret|token)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]*)")
_LOGIN = re.compile(r"://[^/\s]*@")


def without_credentials(place: str) -> str:
    """The place without passwords, and a URL without the login before its host.

    Args:
        place: A URL, or ``name=value …`` as libpq and PyMySQL have it.
    """
    return _LOGIN.sub(f"://{_HIDDEN}@", _SECRET.sub(rf"\1{_HIDDEN}", place))


def holds_credentials(place: str) -> bool:
    """Whether there are some, or were, before they were taken out."""
    return _HIDDEN in without_credentials(place)
