"""What the shell completes beyond commands and options: names that only the server knows."""

from __future__ import annotations

import os
from typing import Any

import typer

from tidegate.cli.printing import LOCAL

QUICK_S = 1.0  # a Tab must be fast


def _app(context: typer.Context) -> dict[str, Any]:
    """What the app of the server is made of; nothing when it does not answer."""
    url = context.params.get("url") or os.environ.get("TIDEGATE_URL") or LOCAL
    token = context.params.get("token") or os.environ.get("TIDEGATE_TOKEN")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        import httpx

        found = httpx.get(
            f"{url}/v1/app", headers=headers, timeout=QUICK_S, verify=os.environ.get("TIDEGATE_CA") or True
        )
        return dict(found.raise_for_status().json())
    except Exception:  # completion must not print error messages
        return {"streams": [], "procedures": []}


def border_streams(context: typer.Context, incomplete: str) -> list[str]:
    """For ``tidegate push``."""
    return [s["name"] for s in _app(context)["streams"] if s["border"] and s["name"].startswith(incomplete)]


def called_procedures(context: typer.Context, incomplete: str) -> list[str]:
    """For ``tidegate call``."""
    return [p["name"] for p in _app(context)["procedures"] if p["called"] and p["name"].startswith(incomplete)]
