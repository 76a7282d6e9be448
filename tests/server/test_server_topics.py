"""Topics over HTTP: subscriptions that begin anywhere, move, and are told what they lost; a border stream, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import Server
from typer.testing import CliRunner

from tidegate.cli.main import app as command_line
from tidegate.errors import CursorGone, DataError, DeclarationError


@pytest.fixture
def server(start: Callable[..., Server], tmp_path: Path) -> Server:
    return start(app="kept_shop", data=str(tmp_path / "data"))


def test_a_late_client_begins_where_it_likes(server: Server) -> None:
    with server.client() as client:
        client.subscribe_durably("notes", "slow", on_lag=("drop", 10)).close()
        for n in range(1, 31):
            client.push("orders", [(n,)])
        late = client.subscribe_durably("shipments", "late", start="earliest")
        taken = late.take(30, 10)
        assert [batch[0].n for batch in taken] == list(range(1, 31))
        late.ack(taken[:20])
        assert late.lag == 10
        assert late.lag_s > 0
        late.close()
        client.seek("late", 25)
        with client.subscribe_durably("shipments", "late") as again:
            assert [batch[0].n for batch in again.take(5, 10)] == [26, 27, 28, 29, 30]
        with client.subscribe_durably("orders", "border", start=28) as border:
            assert [batch[0].n for batch in border.take(2, 10)] == [29, 30]
        with pytest.raises(CursorGone, match="'slow' lagged more than 10 batches behind"):
            client.subscribe_durably("notes", "slow").get(10)
        topics = {facts["stream"]: facts for facts in client.topics()}
        assert (topics["orders"]["keep"], topics["orders"]["end_offset"]) == ("forever", 30)
        assert topics["notes"]["keep"] is None
        found = CliRunner().invoke(
            command_line, ["topics", "--url", client.url, "--seek", "late", "--to", "earliest", "--json"]
        )
        assert found.exit_code == 0, found.output
        lags = {facts["name"]: facts["waiting"] for facts in json.loads(found.stdout)["subscriptions"]}
        assert lags["late"] == 30
        shown = CliRunner().invoke(command_line, ["topics", "--url", client.url])
        assert "shipments" in shown.output
        assert "border" in shown.output


def test_places_that_make_no_sense(server: Server) -> None:
    with server.client() as client:
        with pytest.raises(DataError, match="is no place in a topic"):
            client.subscribe_durably("shipments", "x", start="yesterday")
        with pytest.raises(DeclarationError, match="nothing of notes is kept from before"):
            client.subscribe_durably("notes", "x", start="earliest")
        with pytest.raises(CursorGone, match="has no offset 7"):
            client.subscribe_durably("shipments", "x", start=7)
        with server.http() as http:
            got = http.get("/v1/streams/shipments/events?start=earliest")
            assert got.status_code == 422
            assert "are for named subscriptions" in got.text
        assert client.subscriptions() == []
