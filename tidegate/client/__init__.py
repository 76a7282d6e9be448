"""Using a server like an embedded engine. Needs ``tidegate[client]``.

``tidegate.connect(url)`` gives a :class:`Client`, ``tidegate.connect_async(url)`` an :class:`AsyncClient`; both have the
methods of the engine.
"""

from tidegate.client.aio import AsyncClient
from tidegate.client.blocking import Client

__all__ = ["AsyncClient", "Client"]
