"""What an engine keeps is for its owner only, whatever the umask says; secrets that others can read are refused."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App
from tidegate.connectors.shared.toml_file import read_setup
from tidegate.directory.backup import backup_directory
from tidegate.errors import TidegateError
from tidegate.guard.private import check_secret
from tidegate.replica import ReplicaProcess
from tidegate.server.local import LocalServer
from tidegate.server.settings import Settings
from tidegate.server.tokens import load_tokens


def make_app() -> App:
    app = App("shop")
    app.table("CREATE TABLE stock (item VARCHAR PRIMARY KEY, pieces INTEGER NOT NULL)")

    @app.procedure(writes=["stock"])
    def deliver(txn: Any, item: str, pieces: int) -> None:
        txn.upsert("stock", (item, pieces))

    return app


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(path: Path) -> list[str]:
    """What group or others have any access to."""
    found = [path, *path.rglob("*")]
    return [f"{p} {p.lstat().st_mode & 0o777:o}" for p in found if stat.S_IMODE(p.lstat().st_mode) & 0o077]


def test_everything_in_a_directory_is_its_owners(tmp_path: Path) -> None:
    home = tmp_path / "data"
    with tidegate.open(make_app(), home) as engine:
        for number in range(3):
            engine.call("deliver", "tea", number)
            engine.checkpoint()
            engine.call("deliver", "jam", number)
        assert open_to_others(home) == []
        engine.backup(tmp_path / "backup")
    assert open_to_others(home) == []
    assert open_to_others(tmp_path / "backup") == []
    backup_directory(home, tmp_path / "outside")
    assert open_to_others(tmp_path / "outside") == []


def test_an_open_directory_is_closed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "data"
    with tidegate.open(make_app(), home) as engine:
        engine.call("deliver", "tea", 1)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with caplog.at_level(logging.WARNING), tidegate.open(make_app(), home):
        assert open_to_others(home) == []
    assert "other users of this machine could get at" in caplog.text
    caplog.clear()
    with tidegate.open(make_app(), home):
        assert caplog.text == ""


def test_a_directory_with_other_things_is_not_touched(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "letter.txt").write_text("not ours")
    with pytest.raises(TidegateError, match="directory of its own"):
        tidegate.open(make_app(), shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    with pytest.raises(TidegateError, match="directory of its own"):
        tidegate.open(make_app(), sticky)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes two users")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "theirs"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    code = (
        "import sys; from pathlib import Path; from tidegate.guard.private import private_directory;"
        "private_directory(Path(sys.argv[1]))"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", code, str(home)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    if "Permission denied: " in done.stderr or "No module named" in done.stderr:
        pytest.skip("the other user can't run this Python")
    assert f"chmod 700 {home}" in done.stderr, done.stderr


def test_sockets(tmp_path: Path) -> None:
    with tidegate.open(make_app()) as engine:
        with LocalServer(engine) as server:
            assert open_to_others(server.path.parent) == []
        with ReplicaProcess(engine) as replica:
            assert open_to_others(Path(replica._path).parent) == []


TOKEN = f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nroles = ["push"]\n'


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, mode: int, refused: bool) -> None:
    path = tmp_path / "secret"
    path.write_text(TOKEN)
    path.chmod(mode)
    uses = (
        lambda: check_secret(path, "a secret"),
        lambda: load_tokens(path, None),
        lambda: Settings(tls_cert=path, tls_key=path),
        lambda: ReplicaProcess(None, tls=(path, path)),  # type: ignore[arg-type]
    )
    for use in uses:
        if refused:
            with pytest.raises(TidegateError, match=f"chmod 600 {path}"):
                use()
        else:
            use()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('token = "tg_abc"\n', True),
        ('token = "${TOKEN}"\n', False),
        ('address = "postgresql://shop:hunter2@db/x"\n', True),
        ('address = "postgresql://shop@db/x"\n', False),
        ('address = "postgresql://shop:${PASSWORD}@db/x"\n', False),
        ('[config]\n"sasl.password" = "hunter2"\n', True),
        ('[headers]\nAuthorization = "Bearer ${TOKEN}"\n', False),
    ],
)
def test_connectors_with_secrets_in_an_open_file(tmp_path: Path, text: str, secret: bool) -> None:
    path = tmp_path / "connect.toml"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(TidegateError) as refused:  # the rest of the file is missing
        read_setup(path)
    assert (f"chmod 600 {path}" in str(refused.value)) is secret
