"""Tokens: who may do what. Only hashes are kept; a token is shown once, when it is created.

A tokens file is TOML, one table for each token::

    [[token]]
    name = "till-3"
    sha256 = "9f86d0…"                # tidegate token new --name till-3 --role push
    roles = ["push", "query"]         # push, call, query, admin
    expires = 2027-01-01              # optional
    rate = 500                        # requests a second, optional
    streams = ["orders", "meter.*"]   # optional: what it may push to, answer and follow
    procedures = ["deliver"]          # optional: what it may call
    tables = ["stock"]                # optional: what its SQL may read; with streams and without this: nothing
    subscriptions = ["till-3.*"]      # optional: names of durable subscriptions; without: its own name, or till-3:…
    sources = ["till-3.*"]            # optional: sources whose offset it may move; without: its own name, or till-3:…

A token has 256 random bits, so a plain hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.errors import NotAllowed, TidegateError
from tidegate.guard.private import check_secret
from tidegate.guard.scopes import matches

ROLES = ("push", "call", "query", "admin")
SCOPES = ("streams", "procedures", "tables", "subscriptions", "sources")
OWN = ("subscriptions", "sources")  # without a scope: only names that begin with the token's own
_FIELDS = ("name", "sha256", "roles", "expires", "rate", *SCOPES)


@dataclass(frozen=True)
class Token:
    """One holder of a token: its name (for logs and limits), what it may do, until when, how often, and with which names.

    Names are used as they are: a subscription ``till-3:orders`` has that name everywhere. Ownership follows from the
    names alone, so nothing has to be stored and nothing can be lost.
    """

    name: str
    digest: bytes
    roles: frozenset[str]
    expires: dt.datetime | None = None
    rate: float | None = None
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def admin(self) -> bool:
        return "admin" in self.roles

    def allows(self, roles: Iterable[str]) -> bool:
        return "admin" in self.roles or any(role in self.roles for role in roles)

    def may(self, what: str, name: str) -> bool:
        """May it use the stream, procedure, … of this name? ``what`` is one of SCOPES."""
        if "admin" in self.roles:
            return True
        if what in self.scopes:
            return matches(self.scopes[what], name)
        return what not in OWN or name == self.name or name.startswith(f"{self.name}:")

    def check(self, what: str, name: str) -> None:
        """NotAllowed when it may not."""
        if self.may(what, name):
            return
        told = f"{self.name!r} may not use {name[:200]!r} of {what}"
        if what in self.scopes:
            raise NotAllowed(f"{told}; its entry in the tokens file says {what} = {list(self.scopes[what])}")
        raise NotAllowed(
            f"{told}: without {what} in its entry of the tokens file, the names of a token are its own, and those that begin "
            f"with {self.name + ':'!r}. Choose one of those, or have {what} = [{name[:200]!r}] added to its entry"
        )

    @property
    def tables(self) -> tuple[str, ...] | None:
        """What its SQL may read; None: everything. Restricted to some streams, it can't reach others by tables."""
        if "admin" in self.roles:
            return None
        return self.scopes.get("tables", () if "streams" in self.scopes else None)


ANYONE = Token("anyone", b"", frozenset(ROLES))  # on loopback without tokens: anyone on this machine


class Tokens:
    """The tokens a server knows. ``required`` is False when there is none: a server on loopback then accepts anyone."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = tuple(tokens)

    @property
    def required(self) -> bool:
        return bool(self._tokens)

    def holder(self, authorization: str | None, now: dt.datetime) -> Token:
        """Who sends this ``Authorization`` header; raises NotAllowed. Compares in constant time, with every token."""
        if not self._tokens:
            return ANYONE
        scheme, _, presented = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not presented.strip():
            raise NotAllowed("this server requires a token: send the header Authorization: Bearer TOKEN", status=401)
        digest = digest_of(presented.strip())
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is None:
            raise NotAllowed(
                "the token is not known here; ask the operator of the server for one", status=401, wrong=True
            )
        if found.expires is not None and now >= found.expires:
            raise NotAllowed(
                f"the token {found.name!r} expired on {found.expires:%Y-%m-%d}; ask for a new one", status=401
            )
        return found


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def new_token() -> str:
    """A token that can't be guessed."""
    return "tg_" + secrets.token_urlsafe(32)


def load_tokens(path: Path | None, text: str | None) -> Tokens:
    """Tokens from a file, from text (the environment), or from both."""
    found: list[Token] = []
    if path is not None:
        check_secret(path, "hashes of tokens, and who may do what")
        try:
            found += parse_tokens(path.read_text(), str(path))
        except OSError as error:
            raise TidegateError(f"the tokens file {path} can't be read: {error.strerror}", path=path) from None
    if text:
        found += parse_tokens(text, "TIDEGATE_TOKENS")
    names = [token.name for token in found]
    for name in names:
        if names.count(name) > 1:
            raise TidegateError(f"two tokens are called {name!r}; a name stands for one holder")
    return Tokens(found)


def parse_tokens(text: str, where: str) -> list[Token]:
    """Tokens written as TOML; every error names its place."""
    try:
        entries = tomllib.loads(text).get("token", [])
    except tomllib.TOMLDecodeError as error:
        raise TidegateError(f"{where} is not valid TOML: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise TidegateError(f"{where} has no [[token]] entry; make one with: tidegate token new --role push")
    return [_parse(entry, f"{where}, token {number}") for number, entry in enumerate(entries, 1)]


def _parse(entry: dict[str, Any], where: str) -> Token:
    if strange := set(entry) - set(_FIELDS):
        raise TidegateError(
            f"{where}: {', '.join(sorted(strange))} is not a field of a token; use {', '.join(_FIELDS)}"
        )
    name, sha256, roles = entry.get("name"), entry.get("sha256"), entry.get("roles")
    if not isinstance(name, str) or not name:
        raise TidegateError(f"{where}: name is missing")
    if ":" in name:
        raise TidegateError(
            f"{where} ({name}): the name of a token can't contain a colon, which separates it from the rest in names "
            "like NAME:source"
        )
    try:
        digest = bytes.fromhex(sha256)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        digest = b""
    if len(digest) != 32:
        raise TidegateError(f"{where} ({name}): sha256 must be the SHA-256 of the token, 64 hexadecimal digits")
    if not isinstance(roles, list) or not roles or not set(roles) <= set(ROLES):
        raise TidegateError(f"{where} ({name}): roles must be a list of {', '.join(ROLES)}, got {roles!r}")
    rate = entry.get("rate")
    if rate is not None and (not isinstance(rate, (int, float)) or isinstance(rate, bool) or rate <= 0):
        raise TidegateError(f"{where} ({name}): rate must be a positive number of requests a second, got {rate!r}")
    expires = _expiry(entry.get("expires"), f"{where} ({name})")
    return Token(name, digest, frozenset(roles), expires, rate, _scopes(entry, f"{where} ({name})"))


def _scopes(entry: dict[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for what in SCOPES:
        if what in entry:
            names = entry[what]
            if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
                raise TidegateError(
                    f"{where}: {what} must be a list of names, in which * stands for anything, got {names!r}"
                )
            found[what] = tuple(names)
    if found and "admin" in entry["roles"]:
        raise TidegateError(f"{where}: admin may do everything; leave out {', '.join(found)}, or give it other roles")
    return found


def _expiry(value: Any, where: str) -> dt.datetime | None:
    match value:
        case None:
            return None
        case dt.datetime():
            return value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        case dt.date():
            return dt.datetime.combine(value, dt.time(), dt.UTC)
        case str():
            try:
                return _expiry(dt.datetime.fromisoformat(value), where)
            except ValueError:
                pass
    raise TidegateError(f"{where}: expires must be a date like 2027-01-01, got {value!r}")
