"""A real MQTT broker."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


class Mosquitto:
    """A broker on loopback that keeps sessions across restarts."""

    def __init__(self, root: Path) -> None:
        with contextlib.closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._config = root / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {root}/\n"
            "autosave_interval 1\nautosave_on_changes true\nuser root\n"
        )
        self.start()

    def start(self) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin")
        self._process = subprocess.Popen([str(program), "-c", str(self._config)], stderr=subprocess.DEVNULL)
        while not self._answers():
            assert self._process.poll() is None, "mosquitto did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def publish(self, topic: str, *payloads: bytes) -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        for payload in payloads:
            client.publish(topic, payload, qos=1).wait_for_publish(60)
        client.disconnect()
        client.loop_stop()
