"""Whether the Hub can be reached. Its clients retry for a minute and more before they say that it cannot."""

import os
import socket
from functools import cache
from urllib.parse import urlsplit

_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
SECONDS = 5


def hub_reachable() -> bool:
    """Whether a connection to the Hub (or HF_ENDPOINT) can be made. Behind a proxy that cannot be told: True."""
    if any(os.environ.get(name) for name in _PROXIES):
        return True
    return _connects(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


@cache
def _connects(address: str) -> bool:
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=SECONDS).close()
    except OSError:
        return False
    return True
