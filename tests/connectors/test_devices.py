"""Sources for devices: MQTT against a real broker, HTTP and WebSocket, and waveform records."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mosquitto_broker import Mosquitto
from shared_data import WFDB
from source_apps import keeping, kept, rejected
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tidegate import App, Batch, Engine
from tidegate.connectors.http.source import HttpSource, WebSocketSource
from tidegate.connectors.mqtt import MqttSource
from tidegate.connectors.wfdb import WfdbSource, wfdb
from tidegate.errors import SourceError

Open = Callable[..., Engine]
COLUMNS = "id BIGINT NOT NULL, ward VARCHAR"
RECORDS = WFDB


def test_mqtt_messages_come_in_and_are_acknowledged_after(
    open_engine: Open, tmp_path: Path, mosquitto: Mosquitto
) -> None:
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")

    def source() -> MqttSource:
        return MqttSource("127.0.0.1", "ward/+/monitor", port=mosquitto.port, topic="ward")

    ingestion = engine.ingest("things", source(), "in")
    mosquitto.publish("ward/a/monitor", b'{"id": 1}', b"nonsense", b'[{"id": 2}, {"id": 3}]')
    deadline = time.monotonic() + 60
    while ingestion.rows < 3 or ingestion.rejected < 1:
        ingestion.pump(10)
        assert time.monotonic() < deadline, ingestion
    assert kept(engine) == [(i, "ward/a/monitor") for i in (1, 2, 3)]
    assert "DecodeError" in rejected(engine)[0][1]
    ingestion.close()
    mosquitto.publish("ward/b/monitor", b'{"id": 4}')  # the broker keeps it for our session
    again = engine.ingest("things", source(), "in")
    assert again.pump(60) == 1
    assert kept(engine)[-1] == (4, "ward/b/monitor")


def test_mqtt_connects_again_when_the_broker_is_back(open_engine: Open, mosquitto: Mosquitto) -> None:
    engine = open_engine(keeping(COLUMNS))
    seen = engine.subscribe("seen")
    ingestion = engine.ingest("things", MqttSource("127.0.0.1", "#", port=mosquitto.port), "in", background=True)
    mosquitto.publish("x", b'{"id": 1}')
    assert seen.get(60) is not None, ingestion
    mosquitto.stop()
    mosquitto.start()
    mosquitto.publish("x", b'{"id": 2}')
    assert seen.get(60) is not None, ingestion
    assert [row[0] for row in kept(engine)] == [1, 2]
    with pytest.raises(SourceError, match=r"no connection to the MQTT broker at 127\.0\.0\.1:1:"):
        engine.ingest("things", MqttSource("127.0.0.1", "#", port=1), "other")


def test_a_check_takes_over_no_session_and_no_message(open_engine: Open, mosquitto: Mosquitto) -> None:
    app = keeping(COLUMNS)
    engine = open_engine(app)
    source = MqttSource("127.0.0.1", "#", port=mosquitto.port)

    def check() -> None:
        found = MqttSource("127.0.0.1", ["#", "$share/a/b"], port=mosquitto.port).check(
            "in", app.streams["things"].relation, None
        )
        assert found.found == f"127.0.0.1:{mosquitto.port} lets us subscribe; $share/a/b not tried"

    ingestion = engine.ingest("things", source, "in")
    check()
    mosquitto.publish("x", b'{"id": 1}')
    check()
    assert ingestion.pump(60) == 1
    assert source._refused is None  # nobody else came under its name
    ingestion.close()
    mosquitto.publish("x", b'{"id": 2}')  # kept for the session
    check()
    assert engine.ingest("things", source, "in").pump(60) == 1
    assert [row[0] for row in kept(engine)] == [1, 2]
    with pytest.raises(
        SourceError, match=r"no connection to the MQTT broker at 127\.0\.0\.1:1: .*that the broker is up"
    ):
        MqttSource("127.0.0.1", "#", port=1).check("in", app.streams["things"].relation, None)


def post(port: int, body: bytes, path: str = "/", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_http_answers_when_the_rows_are_on_disk(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    source = HttpSource(0, path="/devices", token="secret")
    ingestion = engine.ingest("things", source, "in", background=True)
    token = {"authorization": "Bearer secret"}
    assert post(source.port, b'{"id": 1, "ward": "a"}', "/devices", **token) == (200, {"accepted": 1, "rejected": 0})
    assert kept(engine) == [(1, "a")]
    status, told = post(source.port, b'[{"id": 2}, {"id": "x"}]', "/devices", **token)
    assert (status, told["accepted"], told["rejected"]) == (200, 1, 1)
    assert "can't take 'x'" in told["reason"]
    assert post(source.port, b'{"id": 3}\n{"id": 4}\n', "/devices", **token)[1]["accepted"] == 2
    assert post(source.port, b"nonsense", "/devices", **token)[0] == 400
    assert post(source.port, b'{"id": 5}', "/devices")[0] == 401
    assert post(source.port, b'{"id": 5}', "/other", **token)[0] == 404
    assert [row[0] for row in kept(engine)] == [1, 2, 3, 4]
    assert len(rejected(engine)) == 2
    with pytest.raises(SourceError, match="can't listen"):
        engine.ingest("things", HttpSource(source.port), "second")
    ingestion.close()


def test_devices_are_told_to_wait_when_nobody_takes_the_rows(open_engine: Open) -> None:
    engine = open_engine(keeping(COLUMNS))
    source = HttpSource(0, capacity=1)
    ingestion = engine.ingest("things", source, "in")  # nobody pumps
    source._line.put(source._entry(b'{"id": 1}', lambda: None))
    assert ingestion.source.lag == 1
    assert post(source.port, b'{"id": 2}')[0] == 429
    assert ingestion.pump() == 1
    ingestion.close()


def test_a_websocket_message_is_answered_when_it_is_in(open_engine: Open, tmp_path: Path) -> None:
    engine = open_engine(keeping(COLUMNS), tmp_path / "db")
    source = WebSocketSource(0, token="secret")
    ingestion = engine.ingest("things", source, "in", background=True)
    address, headers = f"ws://127.0.0.1:{source.port}", {"Authorization": "Bearer secret"}
    with connect(address, additional_headers=headers, proxy=None) as device:
        device.send('{"id": 1, "ward": "a"}')
        assert json.loads(device.recv(60)) == {"accepted": 1, "rejected": 0}
        device.send("nonsense")
        assert json.loads(device.recv(60))["rejected"] == 1
    assert kept(engine) == [(1, "a")]
    with pytest.raises(InvalidStatus):
        connect(address, proxy=None)
    ingestion.close()


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the shared WFDB records are not beside this checkout")
def test_waveforms_are_read_by_sample(open_engine: Open, tmp_path: Path) -> None:
    def app() -> App:
        app = App("waves")
        app.stream(
            "waves", "record VARCHAR, sample BIGINT NOT NULL, seconds DOUBLE, abp DOUBLE, ecg DOUBLE", border=True
        )
        app.table("CREATE TABLE kept (sample BIGINT PRIMARY KEY, seconds DOUBLE, abp DOUBLE, ecg DOUBLE)")

        @app.procedure(inputs="waves", writes=["kept"])
        def keep(txn: Any, waves: Batch) -> None:
            for wave in waves:
                txn.insert("kept", wave[1:])

        return app

    path = RECORDS / "3975656_0013"
    want = wfdb.rdrecord(str(path))
    names = [name.lower() for name in want.sig_name]
    source = WfdbSource(path, fields={"ecg": "II"})
    engine = open_engine(app(), tmp_path / "db")
    ingestion = engine.ingest("waves", source, "in", limit=1000)
    with ingestion._reading:
        ingestion._take(0)
    assert ingestion.source.lag == want.sig_len - 1000
    engine.abandon()
    again = open_engine(app(), tmp_path / "db")
    assert again.ingest("waves", WfdbSource(path, fields={"ecg": "II"}), "in", limit=5000).pump() == want.sig_len - 1000
    rows = again.query("SELECT * FROM kept ORDER BY sample").rows
    assert len(rows) == want.sig_len
    pressure = want.p_signal[:, names.index("abp")]
    assert rows[1001].abp == pytest.approx(pressure[1001], nan_ok=True)
    assert rows[250].seconds == 250 / want.fs
    with pytest.raises(SourceError, match=r"no signal for abp, ecg; it has"):
        again.ingest("waves", WfdbSource(RECORDS / "041s01", fields={"abp": "X"}), "other")
    strange = keeping("sample TIMESTAMP, abp VARCHAR, ecg DOUBLE", by="sample")
    with pytest.raises(
        SourceError, match="sample TIMESTAMP can't take a number of samples; abp VARCHAR can't take a signal"
    ):
        open_engine(strange).ingest("things", WfdbSource(path, fields={"ecg": "II"}), "in")
