"""PostgreSQL's own JDBC driver, through which DBeaver and many other tools connect: metadata, statements, cancel."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from shops import Shop

DRIVER = "42.7.4"
EXPECTED = {
    "product": ["PostgreSQL"],
    "catalogs": ["tidegate"],
    "schemas": ["information_schema, pg_catalog, public, tidegate"],
    "tables": ["kinds TABLE, stock TABLE"],
    "columns": ["item varchar NO, pieces int4 NO"],
    "key": ["id 1, n 2"],
    "index": ["kinds_pkey id, kinds_pkey n"],
    "foreign keys": [""],
    "rowid": ["item"],
    "functions": [""],
    "types": ["true"],
    "longest name": ["63"],
    "prepared": ["10"] * 7,
    "in portions": ["25000"],
    "kinds": ["12.50 2026-01-02 03:04:05.000006 2026-01-02 2 UUID {1,2} true"],
    "write": ["25006"],
    "too long": ["57014"],
    "valid": ["true"],
}


def driver() -> Path:
    """The driver, from Maven's repository the first time."""
    if not shutil.which("java") or not shutil.which("mvn"):
        pytest.skip("the JDBC driver needs java and mvn: apt-get install default-jdk-headless maven")
    folder = Path(tempfile.gettempdir()) / "tidegate-jdbc"
    folder.mkdir(exist_ok=True)
    found = folder / f"postgresql-{DRIVER}.jar"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact=org.postgresql:postgresql:{DRIVER}"]
            done = subprocess.run(
                [*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, timeout=300, cwd=folder
            )
            if done.returncode:
                pytest.skip(f"the JDBC driver can't be had: {' '.join(done.stdout.split())[-200:]}")
    return found


def test_the_jdbc_driver(shop: Shop) -> None:
    program = Path(__file__).parent / "Jdbc.java"
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", driver(), program]
    done = subprocess.run(
        [*command, f"jdbc:postgresql://{shop.host}:{shop.port}/tidegate"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(": ")
        told.setdefault(name, []).append(value)
    assert told == EXPECTED
