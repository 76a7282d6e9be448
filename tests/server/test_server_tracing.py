"""Traces arrive at a collector: a real one as far as the protocol goes, which keeps what it is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from server_process import HERE, killed

service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


def test_a_request_is_a_span_of_the_callers_trace() -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        program = [sys.executable, "-c", "from tidegate.cli.main import main; main()"]
        command = [*program, "serve", f"{HERE / 'shop.py'}:app", "--port", "0", "--json"]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen(command, env=env, **quiet) as server, killed(server):  # type: ignore[call-overload]
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            trace = "0af7651916cd43dd8448eb211c80319c"
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "content-type": "application/json"}
            pushed = httpx.post(f"{url}/v1/streams/orders/batches?batch_id=7", content=b'[["tea", 0]]', headers=headers)
            assert pushed.json()["done"] is True
            server.terminate()
            assert server.wait(timeout=30) == 0
        collector.shutdown()
    spans = [
        span
        for body in received
        for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (span,) = [found for found in spans if found.trace_id.hex() == trace]
    assert span.name == "POST /v1/streams/{stream}/batches"
    facts = {pair.key: pair.value for pair in span.attributes}
    assert facts["http.response.status_code"].int_value == 200
    assert facts["tidegate.stream"].string_value == "orders"
    assert facts["tidegate.batch_ids"].array_value.values[0].int_value == 7
