"""Known vulnerabilities of the locked dependencies, as far as an advisory database can be asked: ``make audit``.

pip-audit alone reports "no known vulnerabilities" when it could look up nothing at all. So its report is read here. Exit codes:
0, nothing is known, or no database could be reached (which is said); 1, vulnerabilities; 2, pip-audit itself failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNREACHABLE = ("connect", "connection", "resolve", "timed out", "timeout", "unreachable", "proxy")


def verdict(report: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The exit code for a report of pip-audit, and what to say."""
    found = report["dependencies"]
    known = [d for d in found if "skip_reason" not in d]
    if not known:
        return 0, [
            f"NOT AUDITED: no advisory database could be asked about any of the {len(found)} dependencies. Run this again where "
            f"one can be reached."
        ]
    told = [f"{d['name']} {d['version']}: {v['id']}, {_fixed(v)}" for d in known for v in d.get("vulns", ())]
    skipped = [d["name"] for d in found if "skip_reason" in d]
    if skipped:
        told.append(f"not audited, unknown to the advisory database: {', '.join(skipped)}")
    bad = sum(bool(d.get("vulns")) for d in known)
    told.append(f"{len(known)} dependencies audited, {bad} with known vulnerabilities.")
    return int(bad > 0), told


def _fixed(vulnerability: Mapping[str, Any]) -> str:
    versions = vulnerability.get("fix_versions") or ()
    return f"fixed in {', '.join(versions)}" if versions else "no fixed version yet"


def failed(told: str) -> tuple[int, list[str]]:
    """pip-audit wrote no report: for want of a database, or because something is wrong."""
    if any(word in told.lower() for word in UNREACHABLE):
        return 0, [told.strip(), "NOT AUDITED: no advisory database could be reached. Run this again where one can be."]
    return 2, [told.strip(), "pip-audit failed, so nothing was audited."]


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.lock"), "--disable-pip"]
    ran = subprocess.run(
        [*command, "--require-hashes", "--format", "json", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(ran.stdout)
    except ValueError:
        code, told = failed(ran.stderr)
    else:
        code, told = verdict(report)
    print("\n".join(told))
    return code


if __name__ == "__main__":
    sys.exit(main())
