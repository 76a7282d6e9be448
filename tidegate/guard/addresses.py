"""Addresses: which are of this machine only, and how they may be shown in errors, log lines and views: without passwords."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

HIDDEN = "…"
_SECRET = re.compile(r"(?i)([?&;][^=&;\s]*(?:pass|pwd|secret|token|key|sig|auth|cred)[^=&;\s]*=)[^&;\s]*")


def without_secrets(address: str) -> str:
    """An address without the password and the secret parameters in it.

    >>> without_secrets("postgresql://ada:s3cret@db/shop?sslmode=require&sslpassword=x")
    'postgresql://ada:…@db/shop?sslmode=require&sslpassword=…'
    """
    scheme, mark, rest = address.partition("://")
    end = min((i for i in map(rest.find, "/?#") if i >= 0), default=len(rest))
    cut = rest.rfind("@", 0, end) if rest.rfind("@", 0, end) >= 0 else rest.rfind("@")
    if mark and cut >= 0:
        user, colon, _ = rest[:cut].partition(":")
        rest = f"{user}{':' + HIDDEN if colon else ''}{rest[cut:]}"
    return _SECRET.sub(rf"\1{HIDDEN}", scheme + mark + rest)


def place_of(address: str) -> str:
    """Only the host: the path of a webhook is often a secret.

    >>> place_of("https://me:pw@hooks.example:8443/services/T0/B0/XYZ?token=1")
    'https://hooks.example:8443/…'
    """
    try:
        found = urlsplit(address)
        port = "" if found.port is None else f":{found.port}"
    except ValueError:
        return HIDDEN
    host = f"[{found.hostname}]" if ":" in (found.hostname or "") else found.hostname
    return f"{found.scheme}://{host or HIDDEN}{port}/{HIDDEN}"


def hidden(text: str, secrets: Iterable[str]) -> str:
    """A foreign text without these secrets, if they are in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def is_loopback(host: str) -> bool:
    """Is this an address of this machine only?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
