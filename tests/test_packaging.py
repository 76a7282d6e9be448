"""What is released: a wheel, made from the source distribution, with every file of the package and nothing generic at its top."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def package_files() -> set[str]:
    """Everything under tidegate/, also where that is a link to a folder beside it."""
    return {
        str(Path(folder).relative_to(ROOT) / name)
        for folder, _, names in os.walk(ROOT / "tidegate", followlinks=True)
        for name in names
        if not folder.endswith("__pycache__")
    }


def test_the_wheel_is_complete_and_imports(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]  # sdist, wheel from it
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package_files()
    assert {"tidegate/storage/sql/parsing.py", "tidegate/server/console/main.js", "tidegate/py.typed"} <= names
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


def test_an_image_gets_the_whole_package() -> None:
    """.dockerignore lets in what it names; a folder that the package links to and it does not name would be missing."""
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    linked = {path.name for path in (ROOT / "tidegate").iterdir() if path.is_symlink()}
    assert {"tidegate", "pyproject.toml", "README.md", "LICENSE", "requirements.lock"} | linked == allowed
