"""A web address as a sink: at least once, each request with the batch's stable id."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from tidegate.connectors.http.arriving import Arriving
from tidegate.connectors.shared.plain import plain, plain_rows, stable_text
from tidegate.errors import SinkError, SinkRefused
from tidegate.guard.addresses import hidden, place_of
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch

HEADER = "Tidegate-Batch"
UNWANTED = {400, 413, 415, 422}  # statuses about this request; others are about the server, or about permissions
ANSWER_BYTES = 64 << 10  # of an answer that are read, headers included
QUOTED = 200  # of a refusal
SHORTEST_SECRET = 4  # anything shorter would match everywhere


class WebhookSink:
    """Sends each batch as one POST: ``{"stream", "key", "batch_id", "rows": [{column: value}]}``.

    At least once: when an answer is lost, or we crash before it is logged, the same request is made again, with the
    same header ``Tidegate-Batch: stream/key/batch-id``; a receiver that stores it together with the effect applies each
    batch once. An answer of 200 to 299 counts as received; after anything else, or no answer within ``timeout_s``, it
    is sent again. Redirects are not followed, so that the headers reach nobody else.

    Errors, logs and views name only the host: the path, the query, the password and the headers are secrets.
    """

    transactional = False
    at_once = 1

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> None:
        self.shown = place_of(url)
        self._address = _checked(url, self.shown)
        self._headers = {"Content-Type": "application/json", "User-Agent": "tidegate", **_login(self._address)}
        self._headers |= _fit(dict(headers or {}), self.shown)
        self._timeout_s = timeout_s
        self._secrets = _secrets(self._address, self._headers)

    def __repr__(self) -> str:
        return f"<WebhookSink {self.shown}>"

    def open(self, name: str, relation: Relation) -> None:
        pass

    def check(self, name: str, relation: Relation) -> str:
        """Does the server accept connections? Nothing is posted."""
        address = self._address
        place = (address.hostname or "", address.port or (443 if address.scheme == "https" else 80))
        try:
            socket.create_connection(place, self._timeout_s).close()
        except OSError as error:
            raise SinkError(
                f"can't deliver {relation.name} to {self.shown}: {error}. Check the address and that the server is up",
                sink=name,
                stream=relation.name,
            ) from error
        return f"{place[0]}:{place[1]} answers"

    def send(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._post(batch)

    def _post(self, batch: Batch) -> None:
        told = {
            "stream": batch.stream,
            "key": plain(batch.key),
            "batch_id": batch.id,
            "rows": plain_rows(batch),
        }
        address = self._address
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=self._timeout_s)
        connection.response_class = _Answer
        target = (address.path or "/") + (f"?{address.query}" if address.query else "")
        headers = {"Connection": "close", **self._headers, HEADER: stable_text(batch)}
        try:
            connection.request("POST", target, json.dumps(told).encode(), headers)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                with answer:
                    said = answer.read(QUOTED).decode(errors="replace").strip()
                hint = "; a redirect is not followed: give its target" if 300 <= answer.status < 400 else ""
                why = f"it answered {answer.status} {answer.reason} {said!r}{hint}"
                raise self._refused(batch, why, SinkRefused if answer.status in UNWANTED else SinkError)
            answer.close()
        except (OSError, HTTPException) as error:
            why = f"no answer within {self._timeout_s:g} s or no connection: {error}"
            raise self._refused(batch, why) from None  # a text from outside may quote the address
        finally:
            connection.close()

    def _refused(self, batch: Batch, why: str, kind: type[SinkError] = SinkError) -> SinkError:
        return kind(
            f"{self.shown} did not accept {batch!r}: {hidden(why, self._secrets)}. The batch is kept and sent again "
            f"with {HEADER} {stable_text(batch)}",
            sink=self.shown,
            stream=batch.stream,
            batch_id=batch.id,
        )

    def close(self) -> None:
        pass


class _Answer(HTTPResponse):
    """A bounded answer: all of it must arrive within the timeout, and at most ``ANSWER_BYTES`` of it are read."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self._socket_file = self.fp  # holds the socket open
        self.fp = io.BufferedReader(Arriving(sock, ANSWER_BYTES, sock.gettimeout() or 0.0))

    def close(self) -> None:
        super().close()
        self._socket_file.close()


def _checked(url: str, shown: str) -> SplitResult:
    try:
        found = urlsplit(url)
        fits = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        fits = False
    if not fits or re.search(r"[^\x21-\x7e]", url):
        raise SinkError(
            f"WebhookSink takes an http:// or https:// address of printable ASCII, got something else ({shown}; the "
            "rest may be secret)",
            sink=shown,
        )
    return found


def _login(address: SplitResult) -> dict[str, str]:
    if address.username is None:
        return {}
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _fit(headers: dict[str, str], shown: str) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(value, str) or re.search(r"[^\x20-\x7e\t]", value) or not re.fullmatch(r"[!-9;-~]+", name):
            raise SinkError(
                f"the header {name!r} for {shown} can't be sent as it is; does its value end in a line break? The "
                "value is not shown: it may be secret",
                sink=shown,
            )
    return headers


def _secrets(address: SplitResult, headers: Mapping[str, str]) -> set[str]:
    """Texts that must not be repeated, whole or in part: the answer may quote what was sent."""
    whole = [address.path, address.query, address.password or "", *headers.values()]
    parts = [part for text in whole for part in (text, unquote(text), *re.split(r"[/&=\s,;]+", text))]
    return {part for part in parts if len(part) >= SHORTEST_SECRET and part not in ("application/json", "tidegate")}
