"""Connecting to a server. The client and its dependencies are imported on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.client import AsyncClient, Client


def connect(url: str, token: str | None = None, *, retry_s: float = 30.0, verify: Any = True) -> Client:
    """Talk to the server at ``url`` as to an embedded engine.

    ``retry_s``: how long to keep trying when the server can't be reached, for requests that are safe to repeat: pushes
    with a batch-id, queries, acknowledgements. ``verify``: as in httpx; the path of a CA file for TLS, for example.
    """
    _check_installed()
    from tidegate.client import Client

    return Client(url, token, retry_s=retry_s, verify=verify)


def connect_async(url: str, token: str | None = None, *, retry_s: float = 30.0, verify: Any = True) -> AsyncClient:
    """Like :func:`tidegate.connect`, for asyncio: ``async with tidegate.connect_async(url) as client``."""
    _check_installed()
    from tidegate.client import AsyncClient

    return AsyncClient(url, token, retry_s=retry_s, verify=verify)


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("httpx") is None:
        raise TidegateError("the client needs httpx; pip install 'tidegate[client]'")
