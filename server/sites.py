"""Which site a request comes from, according to its headers: for the server's gate, and for sources that listen.

Browsers let any web page send requests to a server on the same machine. So we refuse a request that names a host we are
not reached by (DNS rebinding), and one from a page of another origin (cross-site request forgery).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from tidegate.errors import NotAllowed
from tidegate.guard.addresses import is_loopback

LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1", "[::1]"}


class Sites:
    """The names we are reached by on ``host``, and the web pages that may use us.

    On loopback those are its names and ``hosts``; elsewhere ``hosts``, or any name where none is given. ``options``:
    the names of the settings, for error texts.
    """

    def __init__(
        self,
        host: str,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        options: tuple[str, str] = ("--allow-host", "--allow-origin"),
    ) -> None:
        self._hosts = {name.lower() for name in hosts}
        self._any_host = not is_loopback(host) and not self._hosts
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._options = options

    def check(self, headers: Mapping[str, str], everyone: bool = False) -> None:
        """Raise NotAllowed for a request with these headers. ``everyone``: pages of other sites may link here."""
        host = headers.get("host", "")
        name = host_name(host)
        if not self._any_host and name not in LOOPBACK_NAMES and name not in self._hosts:
            raise NotAllowed(
                f"this server is not called {name or host!r}; reach it as localhost, or start it with {self._options[0]}",
                status=421,
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().rstrip("/") not in self._origins:
            own = {f"http://{host}".lower(), f"https://{host}".lower()}
            if origin.lower() not in own:
                raise NotAllowed(
                    f"pages of {origin} may not use this server; if they should, start it with {self._options[1]} {origin}"
                )
        elif origin is None and headers.get("sec-fetch-site") in ("cross-site", "same-site") and not everyone:
            raise NotAllowed("pages of another site may not use this server")


@lru_cache(256)
def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty when it is not a host."""
    try:
        found = urlsplit(f"//{host}")
        found.port  # noqa: B018
    except ValueError:
        return ""
    return "" if set(host) & set("/@\\?# ") else (found.hostname or "").lower()
