"""Queries in every format, health, readiness, metrics, status, the graph, and the OpenAPI document."""

from __future__ import annotations

import csv
import io
import json
import logging

import pyarrow as pa
import pytest
from server_process import Server

from tidegate.errors import DataError, QueryFailed, QueryRefused
from tidegate.server.logs import JsonLines, Plain

NUMBERS = "(SELECT i AS n, i * 1.5 AS half FROM range(100000) t(i)) numbers"
BREAKS_OFF = "SELECT CASE i WHEN 299999 THEN 'x' ELSE '1' END::INTEGER, repeat('x', 50) FROM range(300000) t(i)"


def test_a_query_as_json_csv_and_arrow(shared: Server) -> None:
    body = {
        "sql": "SELECT n, half, [n] AS list, NULL AS none, DATE '2026-01-02' AS day "
        f"FROM {NUMBERS} WHERE n < ? ORDER BY n",
        "parameters": [3],
    }
    with shared.http() as http:
        facts = http.post("/v1/query", json=body).json()
        assert [c["name"] for c in facts["columns"]] == ["n", "half", "list", "none", "day"]
        assert facts["rows"][1] == [1, "1.5", [1], None, "2026-01-02"]
        assert facts["error"] is None
        got = http.post("/v1/query", json=body, headers={"accept": "text/csv"})
        assert got.headers["content-type"].startswith("text/csv")
        rows = list(csv.reader(io.StringIO(got.text)))
        assert rows[:3] == [
            ["n", "half", "list", "none", "day"],
            ["0", "0.0", "[0]", "", "2026-01-02"],
            ["1", "1.5", "[1]", "", "2026-01-02"],
        ]
        got = http.post("/v1/query", json=body, headers={"accept": "application/vnd.apache.arrow.stream"})
        assert pa.ipc.open_stream(got.content).read_all().num_rows == 3
        assert http.post("/v1/query", json=body, headers={"accept": "image/png"}).status_code == 406
        empty = http.post("/v1/query", json={"sql": "SELECT 1 AS one WHERE false"}).json()
        assert (empty["rows"], empty["columns"][0]["name"]) == ([], "one")


def test_a_large_result_is_streamed_and_bounded(shared: Server) -> None:
    with shared.client() as client:
        assert len(client.query(f"SELECT * FROM {NUMBERS}")) == 100_000
        assert len(client.query(f"SELECT * FROM {NUMBERS}", row_limit=1_500)) == 1_500
        assert client.query(f"SELECT max(n) FROM {NUMBERS} WHERE n < $top", top=10).scalar() == 9
        with pytest.raises(QueryRefused, match="only reads"):
            client.query("DROP TABLE stock")
        with pytest.raises(QueryFailed, match="nowhere"):
            client.query("SELECT * FROM nowhere")
        with pytest.raises(QueryFailed, match="ahead of the replica"):
            client.query("SELECT 1", as_of=10**6)
        with pytest.raises(QueryFailed, match="broke off"):
            client.query(BREAKS_OFF)
        with pytest.raises(DataError, match="row_limit"):
            client.query("SELECT 1", row_limit=10**9)
    with shared.http() as http:
        failed = http.post("/v1/query", json={"sql": BREAKS_OFF}).json()
        assert failed["error"]["type"] == "QueryFailed"
        assert http.post("/v1/query", json={"sql": "SELECT 1", "timeout_s": 0}).status_code == 422
        assert http.post("/v1/query", json={}).status_code == 422


def test_health_ready_and_metrics(shared: Server) -> None:
    with shared.http() as http, shared.client() as client:
        client.push("orders", [("tea", 0)])
        assert http.get("/health").json() == {"healthy": True, "app": "shop"}
        found = http.get("/ready").json()
        assert found.pop("last_merge_age_s") >= 0
        assert found == {"ready": True, "why_not": []}
        client.checkpoint()
        text = http.get("/metrics").text
        for name in (
            'tidegate_batches_accepted_total{stream="orders"} 1.0',
            'tidegate_batches_emitted_total{stream="shipments"} 1.0',
            'tidegate_executions_committed_total{unit="ship"} 1.0',
            "tidegate_merges_total",
            "tidegate_replica_behind",
            "tidegate_log_bytes_total",
            "tidegate_replica_ready 1.0",
            "tidegate_unfinished_executions 0.0",
            "tidegate_oldest_unfinished_seconds 0.0",
            'tidegate_request_seconds_bucket{le="0.005",method="POST",route="/v1/streams/{stream}/batches",status="200"}',
        ):
            assert name in text, name


def test_status_and_app_and_graph(shared: Server) -> None:
    with shared.client() as client, shared.http() as http:
        alert = client.push("alerts", [(1,)])
        client.push("alerts", [(1,)])
        status = client.status()
        assert status["unfinished"] == 2
        assert status["low_water_marks"][0]["held_by"] == "treat"
        waiting = [lock for lock in status["locks"] if lock["waits_behind"]]
        assert waiting == [] or waiting[0]["held_by"] == "treat"
        assert {s["stream"]: s["queued"] for s in status["streams"]}["alerts"] == 2
        for question in client.questions():
            client.answer(question, give=False)
        for question in client.questions():
            client.answer(question, give=False)
        assert alert.done
        app = client.app()
        assert {p["name"]: p["called"] for p in app["procedures"]}["deliver"] is True
        assert http.get("/v1/graph").json()["nested"][0]["name"] == "treat"
        assert "└─▶ [ship]" in http.get("/v1/graph?format=text").text
        assert http.get("/v1/graph?format=mermaid").text.startswith("flowchart LR")
        assert http.get("/v1/graph?format=svg").text.startswith("<svg")
        assert http.get("/v1/graph?format=png").status_code == 422


def test_the_document_names_every_stream_and_procedure(shared: Server) -> None:
    with shared.http() as http:
        document = http.get("/openapi.json").json()
        assert document["openapi"] == "3.1.0"
        for path in (
            "/v1/streams/orders/batches",
            "/v1/streams/shipments/events",
            "/v1/procedures/deliver",
            "/v1/questions/decisions/{batch_id}",
            "/v1/query",
            "/metrics",
        ):
            assert path in document["paths"]
        price = document["components"]["schemas"]["row_anything"]["anyOf"][0]["properties"]["price"]
        assert price["anyOf"][1] == {"type": "null"}
        assert http.get("/v1/nothing").status_code == 404
        assert http.delete("/v1/query").status_code == 405


def test_logs_are_lines_of_json_or_text() -> None:
    record = logging.LogRecord("tidegate.server", logging.INFO, "", 0, "POST %s", ("/x",), None)
    record.facts = {"batch_ids": [7], "sequence": 3}
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["batch_ids"], line["sequence"], line["level"]) == ("POST /x", [7], 3, "info")
    assert Plain().format(record).endswith("POST /x batch_ids=[7] sequence=3")
