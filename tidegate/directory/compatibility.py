"""Does this app fit that log? What a log says about the app that wrote it, and whether another may replay it."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from tidegate.dataflows.app import App
from tidegate.errors import RecoveryRefused
from tidegate.txn.log.record import Segment


def code_hashes(app: App) -> dict[str, str]:
    """A fingerprint of every procedure's source: what a replay would run."""
    return {name: code_hash(procedure.function) for name, procedure in app.procedures.items()}


def code_hash(function: Callable[..., Any]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function)).encode()
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = b"" if code is None else code.co_code + repr(code.co_names).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def stream_columns(app: App) -> dict[str, list[list[str]]]:
    return {s.name: [[c.name, c.type.sql] for c in s.relation.columns] for s in app.streams.values()}


def check_segment(app: App, segment: Segment, accept_changed: bool) -> None:
    """Refuse to replay a log that this app could not have written, or whose procedures have changed since."""
    if segment.app != app.name:
        raise RecoveryRefused(f"the log belongs to app {segment.app!r}, not {app.name!r}; open it with the right app")
    if segment.mode != app.recovery:
        raise RecoveryRefused(
            f"the log was written with recovery={segment.mode!r}, but the app now says {app.recovery!r}; open it once with "
            f"the old mode and close it cleanly, then change the mode"
        )
    for stream, columns in segment.streams.items():
        now = stream_columns(app).get(stream)
        if now is None or now[: len(columns)] != columns:
            raise RecoveryRefused(
                f"stream {stream} was logged with columns {columns}, but the app has {now}; declare it as it was (columns may "
                f"only be added at the end), or open the log with the old app and close it cleanly first",
                stream=stream,
            )
    hashes = code_hashes(app)
    changed = sorted(name for name, old in segment.procedures.items() if hashes.get(name) != old)
    if changed and not accept_changed and segment.mode != "effects":
        raise RecoveryRefused(
            f"the log has to be replayed, but these procedures have changed since it was written: {', '.join(changed)}. "
            f"Open it with the old code and close it cleanly, or accept that the new code runs (accept_changed=True, "
            f"--accept-changed)",
            changed=changed,
        )
