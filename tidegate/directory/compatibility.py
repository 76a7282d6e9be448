"""Does this app fit that log? What was acknowledged is replayed only by the app that wrote it, or as it was recorded."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.dataflows.app import App
from tidegate.dataflows.fingerprint import difference, fingerprint, structural_difference, told_difference
from tidegate.errors import RecoveryRefused
from tidegate.txn.log.record import Segment


def stream_columns(app: App) -> dict[str, list[list[str]]]:
    return {s.name: [[c.name, c.type.sql] for c in s.relation.columns] for s in app.streams.values()}


def is_foreign(app: App, segment: Segment) -> bool:
    """Is the log of this segment not this app's to replay?

    In modes weak and strong it runs procedures again, so every difference counts. In mode effects what they did is in
    the log: only what decides where it belongs counts, and windows, which slide again.
    """
    if segment.app != app.name or segment.mode != app.recovery:
        return True
    mine = fingerprint(app)
    if segment.fingerprint["digest"] == mine["digest"]:
        return False
    return app.recovery != "effects" or bool(structural_difference(segment.fingerprint, mine))


def check_segments(app: App, segments: Sequence[Segment], notes: Sequence[str]) -> None:
    """Refuse to replay ``segments`` unless this app could have written them.

    ``notes``: what was wrong with the directory, if that is why so much has to be replayed.
    """
    foreign = [segment for segment in segments if is_foreign(app, segment)]
    if not foreign:
        return
    last = foreign[-1]
    if last.app != app.name:
        raise RecoveryRefused(f"the log belongs to app {last.app!r}, not {app.name!r}; open it with the right app")
    changed = difference(last.fingerprint, fingerprint(app))
    if len({segment.fingerprint["digest"] for segment in segments}) > 1:
        raise RecoveryRefused(
            f"the log has to be replayed{_because(notes)}, but several versions of the app wrote it, and "
            f"none of them may run what another did: {told_difference(changed)}. Put back base.duckdb, or the generation "
            f"that was kept when the app was upgraded, or restore a backup; then open it again",
            changed=changed,
        )
    if last.mode != app.recovery:
        raise RecoveryRefused(
            f"the log was written with recovery={last.mode!r}, but the app now says {app.recovery!r}; open it once with "
            f"the old mode and close it cleanly, then change the mode",
            changed=changed,
        )
    version = last.fingerprint["version"]
    raise RecoveryRefused(
        f"the log has to be replayed{_because(notes)}, but the app has changed since it was written: "
        f"{told_difference(changed)}. What was acknowledged is not run by other code. Open it with the app as it was"
        f"{'' if version is None else f' (version {version})'} and close it cleanly, then open it with this one",
        changed=changed,
    )


def _because(notes: Sequence[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def check_recorded(app: App, segments: Sequence[Segment], ready: Sequence[str]) -> None:
    """Mode effects: what another version accepted has been put in place as it was recorded. ``ready``: what has no
    outcome in the log, and so would be run by this one.
    """
    other = [s.fingerprint for s in segments if s.fingerprint["digest"] != fingerprint(app)["digest"]]
    if other and ready:
        changed = difference(other[-1], fingerprint(app))
        raise RecoveryRefused(
            f"{len(ready)} accepted batches or calls ({', '.join(ready[:3])}) had not ended when the log was written, and the "
            f"app has changed since: {told_difference(changed)}. What was acknowledged is not run by other code. Open it "
            f"with the app as it was and close it cleanly, then open it with this one",
            changed=changed,
        )
