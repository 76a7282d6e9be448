"""A new user's first hour, in environments of its own: a wheel, the README, a new project, a server, a kill, psql, an upgrade."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("first_hour")]


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=CLEAN, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment in which the wheel of this checkout is installed."""
    folder = tmp_path_factory.mktemp("hour")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", ".", cwd=ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    run(folder / "venv/bin/pip", "install", "--quiet", f"{wheel}[server]", cwd=folder)
    return folder


class Serving:
    """``tidegate serve`` of the project, as its user starts it."""

    def __init__(self, command: Path, project: Path) -> None:
        self.process = subprocess.Popen(
            [command, "serve", "app.py:app", "--data", "data/shop", "--port", "0", "--pg-port", "0", "--json"],
            cwd=project, env=CLEAN, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_the_first_hour(home: Path) -> None:
    python, tidegate = home / "venv/bin/python", home / "venv/bin/tidegate"

    # the README's examples, with nothing of the checkout within reach
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (home / "readme.py").write_text("\n".join(blocks))
    assert "pieces >= 0" in run(python, "readme.py", cwd=home)

    # a project, and its own make
    run(tidegate, "new", "shop", cwd=home)
    project = home / "shop"
    assert "3 passed" in run("make", "test", cwd=project)

    # serve, work, kill: what was acknowledged is there
    command = project / ".venv/bin/tidegate"
    server = Serving(command, project)
    there = ("--url", server.facts["url"])
    assert run(command, "call", "deliver", "tea", "10", *there, cwd=project).strip() == "10"
    run(command, "push", "orders", '{"item": "tea", "pieces": 4}', *there, cwd=project)
    (project / "orders.csv").write_text("item,pieces\ntea,1\ntea,2\n")
    run(command, "push", "orders", "--input", "orders.csv", *there, cwd=project)
    assert "we do not sell coffee" in run(command, "push", "orders", '["coffee", 1]', *there, cwd=project, code=1)
    server.end(signal.SIGKILL)
    server = Serving(command, project)

    # SQL, from psql where it is installed
    asked = "SELECT item, pieces FROM stock"
    if shutil.which("psql"):
        told = run("psql", server.facts["postgresql"], "-At", "-c", asked, cwd=project)
        assert told.strip() == "tea|3"
    assert server.end(signal.SIGTERM) == 0

    # a changed app: what it means is told first, then it runs
    app = project / "app.py"
    app.write_text(app.read_text().replace("pieces INTEGER NOT NULL CHECK (pieces >= 0))", "pieces INTEGER NOT NULL CHECK "
                                           "(pieces >= 0), place VARCHAR DEFAULT 'shelf')")
                   .replace("INTO stock VALUES", "INTO stock (item, pieces) VALUES"))  # fmt: skip
    checked = json.loads(run(command, "upgrade", "--check", "app.py:app", "data/shop", "--json", cwd=project))
    assert checked["fits"] is True
    server = Serving(command, project)
    there = ("--url", server.facts["url"])
    assert run(command, "call", "deliver", "milk", "1", *there, cwd=project).strip() == "1"
    assert server.end(signal.SIGTERM) == 0
    verified = json.loads(run(command, "verify", "data/shop", "--app", "app.py:app", "--json", cwd=project))
    assert verified["same"] is True
