"""Makes confluent-kafka's ``oauth_cb`` a token provider of kafka-python (KIP-255, OAUTHBEARER)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from sparkonce.errors import ConfigurationError

_REFRESH_AT = 0.8
"""The part of a token's lifetime after which a new one is fetched, as in librdkafka."""


def token_provider(plain: Mapping[str, Any]) -> AbstractTokenProvider:
    """Returns the token provider of these settings.

    Raises:
        ConfigurationError: if there is no ``oauth_cb``, or librdkafka is to fetch the tokens by itself.
    """
    method = str(plain.get("sasl.oauthbearer.method", "default")).lower()
    if method != "default":
        raise ConfigurationError(
            f"sasl.oauthbearer.method={method!r}: the driver cannot fetch tokens in that way.",
            next_step="Fetch the token in a function and give it as oauth_cb.",
            setting="sasl.oauthbearer.method",
        )
    callback = plain.get("oauth_cb")
    if not callable(callback):
        raise ConfigurationError(
            f"oauth_cb={callback!r}, but sasl.mechanism=OAUTHBEARER needs a function that fetches a token.",
            next_step="Give a function of one argument that returns (token, expiry in seconds since the epoch).",
            setting="oauth_cb",
        )
    return _CallbackTokens(callback, str(plain.get("sasl.oauthbearer.config", "")))


class _CallbackTokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Keeps the token for most of its lifetime, because every connection asks for one."""

    def __init__(self, callback: Callable[[str], Any], config: str) -> None:
        super().__init__()
        self._callback = callback
        self._config = config
        self._turn = threading.Lock()
        self._token = ""
        self._extensions: dict[str, str] = {}
        self._refresh_at_s = 0.0

    def token(self) -> str:
        """Returns the token, and fetches it when needed.

        Raises:
            SaslAuthenticationFailedError: if the callback raises, or returns no token.
        """
        with self._turn:
            if time.time() >= self._refresh_at_s:
                self._fetch()
            return self._token

    def extensions(self) -> dict[str, str]:
        """Returns the SASL extensions that came with the token."""
        return dict(self._extensions)

    def _fetch(self) -> None:
        now_s = time.time()
        try:
            token, expiry_s, *rest = self._callback(self._config)
            # confluent-kafka takes (token, expiry) or (token, expiry, principal, extensions).
            extensions = dict(rest[1]) if len(rest) > 1 and rest[1] else {}
            refresh_at_s = now_s + (float(expiry_s) - now_s) * _REFRESH_AT
        except Exception as error:
            raise SaslAuthenticationFailedError(f"oauth_cb failed: {type(error).__name__}: {error}") from error
        self._token, self._extensions, self._refresh_at_s = str(token), extensions, refresh_at_s
