"""Addresses of SQL databases: an engine of SQLAlchemy for one, or an error that says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tidegate.errors import SinkError, SourceError
from tidegate.guard.addresses import without_secrets


def missing_file(url: sa.URL) -> Path | None:
    """The file of an SQLite database that is not there; opening it would create it."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or "uri" in url.query:
        return None
    path = Path(str(url.database))
    return None if path.exists() else path


def shown_database(url: sa.URL) -> str:
    """The address as it may be shown."""
    return without_secrets(url.render_as_string(hide_password=True))


def connect_database(url: str | sa.URL | sa.Engine) -> sa.Engine:
    """An engine for the address; ``postgresql://`` means psycopg 3."""
    if isinstance(url, sa.Engine):
        return url
    try:
        address = sa.make_url(url)
    except ArgumentError:
        shown = "what was given (with a password in it, perhaps)" if "@" in str(url) else repr(url)
        raise SinkError(
            f"{shown} is not a database address; write postgresql://user:password@host/database or "
            "sqlite:///file.sqlite",
        ) from None
    settings: dict[str, Any] = {}
    if address.get_backend_name() == "postgresql":
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        if "connect_timeout" not in address.query:
            settings["connect_timeout"] = 10
    shown = shown_database(address)
    try:
        return sa.create_engine(address, connect_args=settings, pool_pre_ping=True)
    except NoSuchModuleError:
        raise SinkError(
            f"{shown}: SQLAlchemy knows no database {address.get_backend_name()!r}; write postgresql://… or "
            "sqlite:///…, or install the dialect for your database",
            sink=shown,
        ) from None
    except ImportError as error:
        raise SinkError(
            f"{shown} needs a database driver that is not installed ({error}); for "
            "PostgreSQL: pip install 'tidegate[postgres]'",
            sink=shown,
        ) from error


def connect_source(url: str | sa.URL | sa.Engine) -> sa.Engine:
    """The same to read from: what is wrong with the address is an error of the source."""
    try:
        return connect_database(url)
    except SinkError as error:
        raise SourceError(str(error), fatal=True) from None
