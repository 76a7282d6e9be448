"""The wheel holds the package, with real files and nothing generic at its top."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_is_complete_and_imports(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tidegate"}
    for inside in (
        "storage/versions.py",
        "txn/scheduler.py",
        "examples/leaderboard/app.py",
        "examples/mimic_alerts/page/ward.js",
        "server/console/main.js",
        "py.typed",
    ):
        assert f"tidegate/{inside}" in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = "import tidegate, pathlib; print(pathlib.Path(tidegate.__file__).parent); tidegate.App('x')"
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
    )
    assert found.stdout.strip() == str(tmp_path / "site" / "tidegate")
