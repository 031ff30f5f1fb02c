"""The addresses of the user's own systems, as they may be shown and written down."""

from __future__ import annotations

import re

_HIDDEN = "***"
_NAME = r"(?i)\b(\w*(?:password|passwd|secret|token)\w*\s*=\s*)"
_IN_SETTINGS = re.compile(_NAME + r"""((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])*)""")
"""A value as libpq has it, or a shell: quoted, or with a backslash before what would end it."""
_IN_URL = re.compile(_NAME + r"[^\s&]*")
_LOGIN = re.compile(r"://.*@")
"""Up to the last one: a password that nobody has encoded may hold any character."""


def without_credentials(place: str) -> str:
    """Returns the address without passwords, and a URL without the login before its host.

    Args:
        place: A URL, or ``name=value …`` as libpq and PyMySQL have it.
    """
    secret = _IN_URL if "://" in place else _IN_SETTINGS
    return _LOGIN.sub(f"://{_HIDDEN}@", secret.sub(rf"\1{_HIDDEN}", place))


def holds_credentials(place: str) -> bool:
    """Tells whether it has credentials, or had them before they were taken out."""
    return _HIDDEN in without_credentials(place)
