"""A web address as a sink: at least once, each request with the batch's stable id."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from tidegate.connectors.plain import plain, plain_rows, stable_text
from tidegate.errors import SinkError, SinkRefused
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch

HEADER = "Tidegate-Batch"
UNWANTED = {400, 413, 415, 422}  # answers about this request; others are about the server, or who may ask it


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body, and look like a success."""

    def redirect_request(self, *_: Any) -> None:
        return None


class WebhookSink:
    """Sends each batch as one POST: ``{"stream", "key", "batch_id", "rows": [{column: value}]}``.

    At least once: when an answer is lost, or we crash before it is in the log, the same request is made
    again. The header ``Tidegate-Batch: stream/key/batch-id`` is the same then; a receiver that stores it
    with the effect sees each batch once. An answer of 200 to 299 counts as received; anything else, or none
    within ``timeout_s``, has it sent again.
    """

    transactional = False
    at_once = 1

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise SinkError(f"WebhookSink takes an http:// or https:// address, got {url!r}", sink=url)
        self.url = url
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._opener = build_opener(_NoRedirect, ProxyHandler({}))

    def open(self, name: str, relation: Relation) -> None:
        pass

    def check(self, name: str, relation: Relation) -> str:
        """Does the server take connections? Nothing is posted."""
        address = urlsplit(self.url)
        place = (address.hostname or "", address.port or (443 if address.scheme == "https" else 80))
        try:
            socket.create_connection(place, self._timeout_s).close()
        except OSError as error:
            raise SinkError(
                f"can't deliver {relation.name} to {self.url}: {error}. Check the address, and that the server is up",
                sink=name,
                stream=relation.name,
            ) from error
        return f"{address.netloc} answers"

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
        headers = {"Content-Type": "application/json", **self._headers, HEADER: stable_text(batch)}
        request = Request(self.url, json.dumps(told).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                answer.read()
        except HTTPError as error:
            with error:
                said = error.read(200).decode(errors="replace").strip()
            hint = "; a redirect is not followed: give its target" if 300 <= error.code < 400 else ""
            why = f"it answered {error.code} {error.reason} {said!r}{hint}"
            raise self._refused(batch, why, SinkRefused if error.code in UNWANTED else SinkError) from error
        except (OSError, HTTPException) as error:
            raise self._refused(batch, f"no answer within {self._timeout_s:g} s or no connection: {error}") from error

    def _refused(self, batch: Batch, why: str, kind: type[SinkError] = SinkError) -> SinkError:
        return kind(
            f"{self.url} did not take {batch!r}: {why}. The batch is kept and sent again with {HEADER} "
            f"{stable_text(batch)}",
            sink=self.url,
            stream=batch.stream,
            batch_id=batch.id,
        )

    def close(self) -> None:
        pass
