"""Where the user's own systems are, as it may be shown and written down."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(?i)\b(\w*(?:password|passwd|secret|token)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]*)")
_LOGIN = re.compile(r"://[^/\s]*@")


def without_credentials(place: str) -> str:
    """The place without passwords, and a URL without the login before its host.

    Args:
        place: A URL, or ``name=value …`` as libpq and PyMySQL have it.
    """
    return _LOGIN.sub("://***@", _SECRET.sub(r"\1***", place))


def holds_credentials(place: str) -> bool:
    """Whether something of it is not to be shown."""
    return without_credentials(place) != place
