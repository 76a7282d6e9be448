"""What is installed: the lock file fits pyproject.toml, and an audit that looked at nothing says so."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """By name: the pinned requirements (one for each environment) and how many hashes each has."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in re.split(r"\n(?=\S)", LOCK):
        if not entry.startswith("#"):
            requirement = Requirement(entry.split("\\")[0].strip())
            found.setdefault(canonicalize_name(requirement.name), []).append(
                (requirement, entry.count("--hash=sha256:"))
            )
    return found


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_the_lock_file_fits_what_is_declared(text: str) -> None:
    wanted = Requirement(text)
    entries = locked().get(canonicalize_name(wanted.name), [])
    assert entries, f"{wanted.name} is declared but not locked: run make lock"
    for pinned, _ in entries:
        (version,) = (s.version for s in pinned.specifier)
        assert wanted.specifier.contains(version, prereleases=True), f"{pinned} does not fit {text}: run make lock"


def test_everything_is_pinned_and_hashed() -> None:
    entries = [entry for found in locked().values() for entry in found]
    assert len(entries) > 50
    for pinned, hashes in entries:
        assert [s.operator for s in pinned.specifier] == ["=="], str(pinned)
        assert hashes, str(pinned)


def test_the_lock_file_names_no_place_to_install_from() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)", LOCK, re.MULTILINE)


# ---- the audit: reports as pip-audit writes them

SKIPPED = {"name": "a", "skip_reason": "Dependency not found and could not be audited: a (1.0)"}
SOUND = {"name": "b", "version": "2.0", "vulns": []}
BAD = {"name": "c", "version": "3.0", "vulns": [{"id": "X-1", "fix_versions": ["3.1"], "aliases": []}]}


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([SKIPPED, SKIPPED], 0, "NOT AUDITED"),
        ([SOUND], 0, "1 dependencies audited, 0 with known vulnerabilities"),
        ([SOUND, SKIPPED], 0, "not audited, unknown to the advisory database: a"),
        ([SOUND, BAD, SKIPPED], 1, "c 3.0: X-1, fixed in 3.1"),
    ],
)
def test_an_audit_says_what_it_looked_at(audit: Any, dependencies: list[Any], code: int, said: str) -> None:
    found, told = audit.verdict({"dependencies": dependencies})
    assert found == code
    assert said in "\n".join(told)


@pytest.mark.parametrize(
    ("told", "code"),
    [("Could not connect to the advisory service", 0), ("requirements.lock:3: invalid requirement", 2)],
)
def test_an_audit_that_failed_is_no_audit(audit: Any, told: str, code: int) -> None:
    found, lines = audit.failed(told)
    assert found == code
    assert told in lines
    assert len(lines) == 2


def test_every_change_is_audited() -> None:
    jobs = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "- run: make audit\n" in jobs
    target = re.search(r"^audit:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None
    assert ".ci/audit.py" in target[1]
