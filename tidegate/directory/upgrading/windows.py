"""Windows that hold rows, and are gone, renamed or declared differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.graph import Graph
from tidegate.directory.upgrading.changes import Drops, Plan, Verdict, drop_or_refuse, rows, same_keys
from tidegate.directory.upgrading.declared import window_facts
from tidegate.streams.windows.declare.declared import Declared, restartable
from tidegate.streams.windows.state.tuples import fits_again


def plan_windows(plan: Plan, graph: Graph, meta: Mapping[str, Any], drops: Drops) -> None:
    """Windows that hold nothing may change freely."""
    held: dict[str, list[Any]] = {}
    for procedure, name, _, stands, _ in meta["windows"]:
        held.setdefault(f"{procedure}.{name}", []).append(stands)
    app, stored = graph.app, meta["declared"]["windows"]
    specs = {f"{p.name}.{name}": spec for p in app.procedures.values() for name, spec in p.windows.items()}
    plan.windows = _bound(app, set(stored), set(specs))
    for name, stands in held.items():
        new = plan.windows.get(name)
        if new is None:
            procedure, _, window = name.rpartition(".")
            what = f"window {window} of procedure {procedure} holds {_held(stands)}, but the app no longer has it"
            remedy = "Say renamed_from= at the procedure or window that continues it"
            drop_or_refuse(plan, drops, "window", name, what, remedy)
            continue
        if new != name:
            plan.add("window", new, f"it was called {name} and holds {_held(stands)}", Verdict.CARRIED)
        _compare(plan, new, specs[new], stored[name], window_facts(specs[new], graph), stands, drops)


def _held(stands: list[Any]) -> str:
    number = sum(one["rows"] for one in stands)
    return rows(number) + (f" of {len(stands):,} keys" if len(stands) > 1 else "")


def _bound(app: App, stored: set[str], declared: set[str]) -> dict[str, str]:
    """Stored window -> declared window."""
    found = {name: name for name in stored & declared}
    for procedure in app.procedures.values():
        for name, spec in procedure.windows.items():
            new = f"{procedure.name}.{name}"
            if new not in stored:
                old = next((o for o in _former(app, procedure.name, name, spec) if o in stored - declared), None)
                if old is not None:
                    found.setdefault(old, new)
    return found


def _former(app: App, procedure: str, name: str, spec: Declared) -> Iterator[str]:
    """What a window may have been called before."""
    procedures = [procedure, *filter(None, [app.renamed.get(("procedure", procedure))])]
    if spec.renamed_from is not None and "." in spec.renamed_from:
        yield spec.renamed_from
    names = [name, *filter(None, [spec.renamed_from])]
    yield from (f"{one}.{other}" for one in procedures for other in names)


def _compare(
    plan: Plan,
    name: str,
    spec: Declared,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    stands: list[Any],
    drops: Drops,
) -> None:
    streams = [plan.streams.get(stream, stream) for stream in was["streams"]]
    same = (streams, was["holds"]) == (now["streams"], now["holds"]) and same_keys(was, now)
    same = same and not plan.reformed.intersection(streams)
    another = now["edition"] != was["edition"]
    if same and not another:
        return
    told = f"it was declared as ({was['holds']}) over {', '.join(streams)} and holds {_held(stands)}"
    if not same:
        told += f", but now it is declared as ({now['holds']}) over {', '.join(now['streams'])}"
    if plan.reformed.intersection(streams):
        told += ", whose columns have changed"
    elif _fits(streams, was, now, stands) and not another:
        plan.add("window", name, f"{told}; the rows held are all that its next window needs", Verdict.CARRIED)
        return
    if another or drops.has("window", name):
        _restart(plan, name, spec, streams, was, now, told)
    else:
        plan.refuse(
            "window",
            name,
            told,
            f"Say edition={was['edition'] + 1} where it is declared, and it begins anew with its next whole window; or "
            f"declare it as it was, or under another name and drop this one with drop=[{name!r}] (--drop {name})",
        )


def _fits(streams: list[str], was: Mapping[str, Any], now: Mapping[str, Any], stands: list[Any]) -> bool:
    """Is a plain window only longer or shorter, with all rows at hand that it would hold had it always been so?"""
    if was["plain"] is None or now["plain"] is None or was["plain"][0] != now["plain"][0]:
        return False
    if streams != now["streams"] or not same_keys(was, now):
        return False
    _, size, slide = now["plain"]
    return all(fits_again(one["first"], one["total"], size, slide) for one in stands)


def _restart(
    plan: Plan,
    name: str,
    spec: Declared,
    streams: list[str],
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    told: str,
) -> None:
    """A window by time begins where no row has been yet; without the time of those rows nobody knows where that is."""
    placed = now["axis"] is None or (was["axis"], streams) == (now["axis"], now["streams"])
    placed = placed and (now["axis"] is None or not plan.reformed.intersection(streams))
    if restartable(spec) and placed and same_keys(was, now):
        what = f"{told}; it begins anew with its next whole window, and those rows are forgotten"
        plan.add("window", name, what, Verdict.RESTARTED)
        plan.restarted.add(name)
    else:
        what = f"{told}; it can't be told when its first whole window begins"
        plan.refuse("window", name, what, f"Declare it under another name, and drop this one with drop=[{name!r}]")
