"""tidegate new, and serve --reload: the first minutes of a project."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tidegate
from tidegate.cli.new import new, requirement
from tidegate.cli.reloading import folder_of, times
from tidegate.errors import ServerError, TidegateError


def test_a_new_project_passes_its_own_tests(tmp_path: Path) -> None:
    new("shop", tmp_path)
    folder = tmp_path / "shop"
    assert {p.name for p in folder.iterdir()} == {
        "app.py", "test_app.py", "Makefile", "README.md", "Dockerfile", "requirements.txt", ".gitignore", "data",
    }  # fmt: skip
    assert not any("$name" in p.read_text() for p in folder.iterdir() if p.is_file())
    assert requirement() in (folder / "requirements.txt").read_text()
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 passed" in told.stdout, told.stdout + told.stderr
    planned = subprocess.run(["make", "-n", "serve", "demo"], cwd=folder, capture_output=True, text=True, check=True)
    assert "serve app.py:app --data data/shop --reload" in planned.stdout
    with pytest.raises(TidegateError, match="exists already"):
        new("shop", tmp_path)
    with pytest.raises(TidegateError, match="small letters"):
        new("My Shop", tmp_path)


def _deliver(url: str) -> int:
    """What the server answers, once it does."""
    for _ in range(240):
        try:
            with tidegate.connect(url, retry_s=0) as client:
                return int(client.call("deliver", "tea", 1))
        except ServerError:
            time.sleep(0.25)
    raise AssertionError("the server does not answer")


def test_a_server_starts_again_when_its_app_changes(tmp_path: Path) -> None:
    new("shop", tmp_path)
    app, log = tmp_path / "shop" / "app.py", tmp_path / "log"
    command = [sys.executable, "-m", "tidegate", "serve", f"{app}:app", "--data", str(tmp_path / "data"), "--reload"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as told:
        watching = subprocess.Popen([*command, "--port", str(port)], stdout=told, stderr=told)
    try:
        assert _deliver(url) == 1
        app.write_text("def broken(:\n")
        while "it starts again when a file changes" not in log.read_text():
            time.sleep(0.1)
        new("other", tmp_path)
        text = (tmp_path / "other" / "app.py").read_text().replace("other", "shop")
        app.write_text(text.replace('.get("stock", item).pieces', '.get("stock", item).pieces + 100'))
        assert _deliver(url) == 102
    finally:
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(60) == 0, log.read_text()
    assert "is not valid Python" in log.read_text()


def test_what_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app.py", "views.sql", "notes.txt", ".venv/lib.py", "deep/er.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {p.relative_to(tmp_path) for p in times(tmp_path)} == {Path("app.py"), Path("views.sql"), Path("deep/er.py")}
    assert folder_of(f"{tmp_path / 'app.py'}:app") == tmp_path.resolve()
    monkeypatch.chdir(tmp_path)
    assert folder_of("tidegate.examples.leaderboard.app:app").name == "tidegate"
    assert os.getcwd() == str(tmp_path.resolve())


def test_a_project_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        TidegateError, match=r"can't write .*file/shop: Not a directory; choose another place with --in"
    ):
        new("shop", tmp_path / "file")


def test_looking_for_changes_stays_out_of_the_environment(tmp_path: Path) -> None:
    new("shop", tmp_path)
    packages = tmp_path / "shop" / ".venv" / "lib"
    packages.mkdir(parents=True)
    (packages / "big.py").touch()
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        scan = os.scandir
        patch.setattr(os, "scandir", lambda place: (asked.append(Path(place)), scan(place))[1])
        times(tmp_path / "shop")
    assert asked
    assert packages not in asked
