"""SCRAM-SHA-256, the server's side (RFC 5802, RFC 7677), without channel binding.

What is stored of a password does not reveal it; the replica never sees one. A user that does not exist is challenged
like one that does, with a constant salt, and fails in the end.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import asdict, dataclass
from typing import Any

ITERATIONS = 4096
_PRETENCE = secrets.token_bytes(32)


class Refused(Exception):
    """The exchange is over; the login failed."""


@dataclass(frozen=True)
class Verifier:
    """What the server stores of a password; bytes as base64."""

    salt: str
    iterations: int
    stored_key: str
    server_key: str

    @classmethod
    def of(cls, password: str, salt: bytes | None = None) -> Verifier:
        salt = secrets.token_bytes(16) if salt is None else salt
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored = hashlib.sha256(client_key).digest()
        return cls(_text(salt), ITERATIONS, _text(stored), _text(hmac.digest(salted, b"Server Key", "sha256")))

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def pretended(user: str) -> Verifier:
    """A verifier for a user that does not exist: always the same salt, no matching password."""
    salt = hmac.digest(_PRETENCE, user.encode(), "sha256")[:16]
    return Verifier(_text(salt), ITERATIONS, _text(secrets.token_bytes(32)), _text(secrets.token_bytes(32)))


class Exchange:
    """One login: ``first(client's first message)``, then ``final(client's last)``."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._transcript = ""
        self._nonce = ""
        self._header = ""

    def first(self, message: bytes) -> bytes:
        """The server's challenge."""
        text = _decoded(message)
        flag, _, rest = text.partition(",")
        if flag not in ("n", "y"):
            raise Refused("channel binding is not offered here")
        authorised, _, bare = rest.partition(",")
        fields = dict(part.partition("=")[::2] for part in bare.split(","))
        if "r" not in fields or "m" in fields or not fields["r"]:
            raise Refused("not a SCRAM message")
        self._header = f"{flag},{authorised},"
        self._nonce = fields["r"] + _text(secrets.token_bytes(18))
        challenge = f"r={self._nonce},s={self._verifier.salt},i={self._verifier.iterations}"
        self._transcript = f"{bare},{challenge}"
        return challenge.encode()

    def final(self, message: bytes) -> bytes:
        """The server's signature; raises when the client does not know the password."""
        text = _decoded(message)
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = dict(part.partition("=")[::2] for part in without_proof.split(","))
        try:
            proof = base64.b64decode(proof_text, validate=True)
            header = base64.b64decode(fields.get("c", ""), validate=True).decode()
        except (binascii.Error, ValueError):
            raise Refused("not a SCRAM message") from None
        if fields.get("r") != self._nonce or header != self._header or len(proof) != 32:
            raise Refused("the final login message does not match the first one")
        said = f"{self._transcript},{without_proof}".encode()
        stored = base64.b64decode(self._verifier.stored_key)
        signature = hmac.digest(stored, said, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), stored):
            raise Refused("wrong user or password")
        return b"v=" + base64.b64encode(hmac.digest(base64.b64decode(self._verifier.server_key), said, "sha256"))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Refused("not a SCRAM message") from None
