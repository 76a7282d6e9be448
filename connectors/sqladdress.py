"""Addresses of SQL databases: an engine of SQLAlchemy for one, or an error that says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tidegate.errors import SinkError


def missing_file(url: sa.URL) -> Path | None:
    """The file of an SQLite database that is not there; looking into it would make it."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or "uri" in url.query:
        return None
    path = Path(str(url.database))
    return None if path.exists() else path


def connect_database(url: str | sa.URL | sa.Engine) -> sa.Engine:
    """An engine for the address; ``postgresql://`` means psycopg 3."""
    if isinstance(url, sa.Engine):
        return url
    try:
        address = sa.make_url(url)
    except ArgumentError:
        raise SinkError(
            f"{url!r} is no address of a database; write postgresql://user:password@host/database or sqlite:///file.sqlite",
            sink=str(url),
        ) from None
    settings: dict[str, Any] = {}
    if address.get_backend_name() == "postgresql":
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        if "connect_timeout" not in address.query:
            settings["connect_timeout"] = 10
    try:
        return sa.create_engine(address, connect_args=settings, pool_pre_ping=True)
    except NoSuchModuleError:
        raise SinkError(
            f"{address.render_as_string()}: SQLAlchemy knows no database {address.get_backend_name()!r}; write postgresql://… or "
            "sqlite:///…, or install the dialect of yours",
            sink=address.render_as_string(),
        ) from None
    except ImportError as error:
        raise SinkError(
            f"{address.render_as_string()} needs a database driver that is not installed ({error}); for "
            "PostgreSQL: pip install 'tidegate[postgres]'",
            sink=address.render_as_string(),
        ) from error
