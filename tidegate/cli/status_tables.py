"""A server's status as tables for a terminal. Pure functions of one look, or of two and the time between them."""

from __future__ import annotations

from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

Facts = dict[str, Any]
ROWS = 8  # shown of every list
NUMBERS = {"batches", "a second", "queued", "subscribers", "committed", "aborted", "rows", "seconds", "held", "fired"}
NUMBERS |= {
    "asked_s",
    "deadline_in_s",
    "running_s",
    "since",
    "number",
    "waiting",
    "late",
    "batch_id",
    "lag_s",
    "lag",
    "bytes",
    "first_offset",
    "end_offset",
    "next_offset",
    "subscriptions",
}


LISTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("waiting for people", "questions", ("stream", "key", "batch_id", "unit", "asked_s", "deadline_in_s")),
    ("low-water marks", "low_water_marks", ("item", "position", "held_by")),
    ("unfinished", "executions", ("position", "unit", "key", "state", "reason", "running_s")),
    ("windows", "windows", ("procedure", "name", "key", "kind", "held", "bytes", "fired", "late")),
    ("timers and schedules", "next_timers", ("timer", "stream", "due", "procedure", "schedule")),
    ("set aside: DuckDB refused them", "set_aside", ("table_name", "key", "column_name", "cause", "since")),
    ("merges", "recent_merges", ("number", "rows", "seconds", "at_time")),
    ("aborts", "recent_aborts", ("position", "procedure", "batch_id", "reason")),
    ("dead letters", "recent_dead_letters", ("position", "procedure", "stream", "batch_id", "error")),
    ("named subscriptions", "subscriptions", ("name", "stream", "waiting", "lag_s")),
    ("topics", "topics", ("stream", "keep", "first_offset", "end_offset", "bytes", "subscriptions")),
)


def status_tables(now: Facts, before: Facts | None, seconds: float) -> RenderableType:
    """Everything of interest; empty parts are left out."""
    headline = _headline(now, before, seconds)
    if now["busy"]:
        told = "a procedure has held the engine for more than a second; details when it is done"
        return Group(headline, Text(told, "yellow"))
    parts = [_streams(now, before, seconds), _units(now, before, seconds), _waits(now)]
    parts += [listed(title, now[name], columns) for title, name, columns in LISTS]
    return Group(headline, *(Padding(part, (0, 0, 1, 1)) for part in parts if part.row_count))


def rate(now: Facts, before: Facts | None, seconds: float, group: str, name: str) -> float | None:
    """How many a second between the two looks; None when there was only one."""
    if before is None or seconds <= 0:
        return None
    return max(0.0, float(now[group].get(name, 0) - before[group].get(name, 0)) / seconds)


def _headline(now: Facts, before: Facts | None, seconds: float) -> RenderableType:
    speed = None if before is None or seconds <= 0 else (now["sequence"] - before["sequence"]) / seconds
    told = Table.grid(padding=(0, 4, 0, 0))
    told.add_row(
        _fact("sequence", f"{now['sequence']:,}"),
        _fact("a second", "" if speed is None else f"{speed:,.0f}", "cyan"),
        _fact(
            "unfinished",
            f"{now['unfinished']:,} of {now['capacity']:,}",
            _pressure(now["unfinished"], now["capacity"]),
        ),
        _fact("oldest", f"{now.get('oldest_unfinished_s') or 0:,.1f} s"),
        _fact("requests waiting", f"{now['requests_waiting']:,}"),
    )
    aborted = sum(now["aborts"].values())
    if before is not None and seconds > 0:
        undone = f"{aborted:,}, {(aborted - sum(before['aborts'].values())) / seconds:,.0f} a second"
    else:
        undone = f"{aborted:,}"
    told.add_row(
        _fact("aborted", undone),
        _fact("dead letters", f"{now['dead_letters']:,}", "red" if now["dead_letters"] else ""),
        _fact("refused", f"{now['overloaded']:,}", "yellow" if now["overloaded"] else ""),
        _fact("unmerged", f"{now['unmerged_rows']:,} rows, merged {now['last_merge_age_s']:,.0f} s ago"),
        _memory(now.get("memory")),
        _replica(now),
    )
    lines: list[RenderableType] = [told, _log(now["log"])]
    if now["bottleneck"]:
        lines.append(Text(now["bottleneck"], "yellow"))
    if now["merge_tries"]:
        tries, age = now["merge_tries"], now["last_merge_age_s"]
        why = f"MERGES FAIL: {tries} tries, the last success {age:,.0f} s ago; {now['last_merge_failure']}"
        lines.append(Text(why, "bold red"))
    if now["rows_set_aside"]:
        lines.append(Text(f"{now['rows_set_aside']:,} rows are set aside: the base refused them", "yellow"))
    for one in now["running"]:
        batch = "" if one["batch_id"] is None else f" on batch {one['batch_id']}"
        told_s = f"{one['procedure']} has been running for {one['running_s']:,.0f} s{batch}"
        lines.append(Text(f"{told_s}, at position {one['position']}", "yellow"))
    if now["halted"]:
        lines.append(
            Text(f"HALTED: {', '.join(now['halted'])}; see tidegate halted, then tidegate resume or skip", "bold red")
        )
    return Panel(Group(*lines), title=f"[bold]{escape(now['app'])}[/]", title_align="left", border_style="dim")


def _fact(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value or "–", style or "bold"))


def _memory(memory: dict[str, Any] | None) -> Text:
    """What tables take. A server of an earlier release does not say."""
    if memory is None:
        return Text("")
    limit = "" if memory["limit"] is None else f" of {memory['limit'] / 1e6:,.0f} MB"
    cold = f", {memory['cold_reads']:,} cold reads" if memory["cold_bytes"] else ""
    return _fact("tables", f"{memory['tables'] / 1e6:,.0f} MB{limit}{cold}")


def _replica(now: Facts) -> Text:
    replica = now.get("replica")
    if replica is None:
        return _fact("query replica", "none")
    if not replica["ready"]:
        return _fact("query replica", "not ready", "yellow")
    return _fact("query replica", f"{replica['behind']:,} behind, {replica['connections']:,} connections")


def _log(log: Facts | None) -> Text:
    if log is None:
        return Text("in memory: nothing is kept", "yellow")
    if not log["taking"]:
        return Text("THE LOG REFUSES NEW RECORDS: the disk is full, or a sync failed", "bold red")
    unsynced = f", {log['unsynced']:,} bytes not on disk yet" if log["unsynced"] else ""
    return _fact("log", f"{log['end'] / 2**20:,.1f} MB{unsynced}, {log['syncs']:,} syncs")


def _pressure(count: int, capacity: int) -> str:
    return "red" if count > 0.9 * capacity else "yellow" if count > 0.5 * capacity else ""


def _streams(now: Facts, before: Facts | None, seconds: float) -> Table:
    table = _table("streams", ("stream", "kind", "last id / keys", "batches", "a second", "queued", "subscribers"))
    for stream in now["streams"]:
        name = stream["stream"]
        group = "pushed" if stream["border"] else "emitted"
        kind = ("awaited" if stream["awaited"] else "border") if stream["border"] else "interior"
        last = f"{stream['keys']:,} keys" if stream["keys"] is not None else _shown(stream["last_batch_id"])
        followers = now["subscribers"].get(name, {}).get("subscribers", 0)
        speed = rate(now, before, seconds, group, name)
        count = f"{now[group].get(name, 0):,}"
        table.add_row(name, kind, last, count, _shown(speed), f"{stream['queued']:,}", str(followers or ""))
    return table


def _units(now: Facts, before: Facts | None, seconds: float) -> Table:
    table = _table("executions", ("unit", "committed", "a second", "aborted"))
    for unit in sorted({**now["commits"], **now["aborts"]}):
        speed = rate(now, before, seconds, "commits", unit)
        table.add_row(unit, _shown(now["commits"].get(unit, 0)), _shown(speed), _shown(now["aborts"].get(unit)))
    return table


def _waits(now: Facts) -> Table:
    """Who waits for whom, and why: for a lock behind an unfinished writer, or for its turn in a queue."""
    units = {execution["position"]: execution["unit"] for execution in now["executions"]}
    since = {lock["position"]: lock["age_s"] for lock in now["locks"]}
    table = _table("who waits for whom", ("who", "why", "behind", "since"))
    for execution in now["executions"]:
        why, found, behind = execution["reason"].rpartition(" behind position ")
        if found:
            who = f"{execution['unit']} at {execution['position']}"
            age = since.get(execution["position"])
            table.add_row(
                who, why, f"{units.get(behind, '?')} at {behind}", "" if age is None else f"{_shown(float(age))} s"
            )
    return table


def listed(title: str, rows: list[Facts], columns: tuple[str, ...]) -> Table:
    more = f" ({len(rows) - ROWS} more)" if len(rows) > ROWS else ""
    used = tuple(column for column in columns if any(row[column] is not None for row in rows))
    table = _table(f"{title}{more}", used)
    for row in rows[:ROWS]:
        table.add_row(*(_shown(row[column]) for column in used))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold cyan", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in NUMBERS else "left"
        table.add_column(column.replace("_", " "), header_style="dim", overflow="ellipsis", justify=justify)
    return table


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 or value == 0 else f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str) and len(value) > 19 and value[10:11] == "T":
        return value[11:19]
    return str(value)
