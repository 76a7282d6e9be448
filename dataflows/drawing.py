"""The dataflow as a picture: text, Mermaid and SVG, drawn from plain data. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.dataflows.definitions import TableAccess
from tidegate.dataflows.graph import Graph

Described = dict[str, Any]


def describe_graph(graph: Graph) -> Described:
    """Nodes (streams and procedures), edges and units of an app, as JSON could carry them."""
    app = graph.app
    unit_of = {member.name: unit for unit in graph.units for member in unit.members}
    streams = [
        {
            "id": f"stream:{s.name}",
            "kind": "stream",
            "name": s.name,
            "border": s.border,
            "awaited": s.awaited,
            "key": s.key,
        }
        for s in app.streams.values()
    ]
    procedures = [
        {
            "id": f"procedure:{p.name}",
            "kind": "procedure",
            "name": p.name,
            "called": not p.streaming,
            "unit": unit_of[p.name].name if p.name in unit_of else p.name,
            "dataflow": unit_of[p.name].dataflow if p.name in unit_of else p.name,
            "reads": [a.table for a in p.access if not a.write],
            "writes": [a.table for a in p.access if a.write],
            "partitions": {a.table: _named(a) for a in p.access if a.restricted},
            "windows": sorted(p.windows),
            **({"sql": app.plans[p.name].sql} if p.name in app.plans else {}),
        }
        for p in app.procedures.values()
        if not p.internal
    ]
    edges = [
        *({"from": f"stream:{s}", "to": f"procedure:{p.name}"} for p in app.procedures.values() for s in p.inputs),
        *({"from": f"procedure:{p.name}", "to": f"stream:{s}"} for p in app.procedures.values() for s in p.outputs),
    ]
    nested = [{"name": u.name, "members": [f"procedure:{m.name}" for m in u.members]} for u in graph.units if u.nested]
    return {
        "app": app.name,
        "nodes": [*streams, *procedures],
        "edges": edges,
        "nested": nested,
        "tables": sorted(app.tables),
    }


# ---- text


def text(described: Described) -> str:
    """A tree from every border stream; a node that was already drawn is only named."""
    nodes = {node["id"]: node for node in described["nodes"]}
    after = _after(described)
    group_of = {member: group["name"] for group in described["nested"] for member in group["members"]}
    drawn: set[str] = set()
    lines = [f"app {described['app']}"]

    def walk(node_id: str, stem: str, last: bool) -> None:
        again = node_id in drawn and bool(after.get(node_id))
        lines.append(
            f"{stem}{'└─▶ ' if last else '├─▶ '}{_line(nodes[node_id], group_of)}{' (above)' if again else ''}"
        )
        if not again:
            drawn.add(node_id)
            below = after.get(node_id, [])
            for place, following in enumerate(below, 1):
                walk(following, stem + ("    " if last else "│   "), place == len(below))

    for node in described["nodes"]:
        if node["kind"] == "stream" and node["border"]:
            lines += ["", _line(node, group_of)]
            below = after.get(node["id"], [])
            for place, following in enumerate(below, 1):
                walk(following, "", place == len(below))
    called = [node for node in described["nodes"] if node["kind"] == "procedure" and node["called"]]
    if called:
        lines += ["", "called by clients"]
        lines += [f"  {_line(node, group_of)}" for node in called]
    return "\n".join(lines) + "\n"


def _line(node: Described, group_of: dict[str, str]) -> str:
    if node["kind"] == "stream":
        told = ["waits for people" if node["awaited"] else "border"] if node["border"] else []
        told += [_keyed(node)] if node["key"] else []
        return str(node["name"]) + (f" ({', '.join(told)})" if told else "")
    told = [f"in {group_of[node['id']]}"] if node["id"] in group_of else []
    told += ["SQL"] if "sql" in node else []
    told += [_access(node)] if _access(node) else []
    return f"[{node['name']}]" + (f" {'; '.join(told)}" if told else "")


def _keyed(stream: Described) -> str:
    """By what its batches are split: when they come in, or when they are emitted."""
    return f"by {stream['key']}" if stream["border"] else f"split by {stream['key']}"


def _named(access: TableAccess) -> list[str]:
    """What names the partitions of a table, as people read it."""
    groups = [group[0] if len(group) == 1 else f"({', '.join(group)})" for group in access.by]
    return ["key", *groups] if access.by_key else groups


def _access(node: Described) -> str:
    by = {table: f" by {', '.join(names)}" for table, names in node.get("partitions", {}).items()}
    parts = [
        f"{verb} {', '.join(table + by.get(table, '') for table in node[verb])}"
        for verb in ("writes", "reads")
        if node[verb]
    ]
    return "; ".join(parts)


def _after(described: Described) -> dict[str, list[str]]:
    after: dict[str, list[str]] = {}
    for edge in described["edges"]:
        after.setdefault(edge["from"], []).append(edge["to"])
    return after


# ---- Mermaid


def mermaid(described: Described) -> str:
    """A Mermaid flowchart: streams are rounded, nested transactions are boxes around their procedures."""
    name_of = {node["id"]: f"n{place}" for place, node in enumerate(described["nodes"])}
    inside = {member for group in described["nested"] for member in group["members"]}
    lines = ["flowchart LR"]
    lines += [f"  {_mermaid_node(node, name_of)}" for node in described["nodes"] if node["id"] not in inside]
    for place, group in enumerate(described["nested"]):
        lines.append(f'  subgraph g{place}["{_mermaid_text(group["name"])}"]')
        members = [node for node in described["nodes"] if node["id"] in group["members"]]
        lines += [f"    {_mermaid_node(node, name_of)}" for node in members]
        lines.append("  end")
    lines += [f"  {name_of[edge['from']]} --> {name_of[edge['to']]}" for edge in described["edges"]]
    return "\n".join(lines) + "\n"


def _mermaid_node(node: Described, name_of: dict[str, str]) -> str:
    label = _mermaid_text(node["name"])
    if node["kind"] == "stream" and node["key"]:
        label += f"<br/>{_mermaid_text(_keyed(node))}"
    return f'{name_of[node["id"]]}(["{label}"])' if node["kind"] == "stream" else f'{name_of[node["id"]]}["{label}"]'


def _mermaid_text(name: str) -> str:
    return name.replace('"', "#quot;")


# ---- SVG

COLUMN, ROW, HIGH, MARGIN = 196, 88, 44, 30
WIDE = {"stream": 140, "procedure": 152}


def svg(described: Described) -> str:
    """The graph from left to right. Nodes carry ``data-id`` and an empty text ``class="rate"``, for a live view."""
    shown = [node for node in described["nodes"] if node["kind"] == "stream" or not node["called"]]
    called = [node for node in described["nodes"] if node["kind"] == "procedure" and node["called"]]
    place = _places(described, shown)
    bottom = max((y for _, y in place.values()), default=-1) + 1
    for number, node in enumerate(called):
        place[node["id"]] = (number % 4, bottom + number // 4)
    width = MARGIN * 2 + (max((x for x, _ in place.values()), default=0)) * COLUMN + max(WIDE.values())
    height = MARGIN * 2 + (max((y for _, y in place.values()), default=0)) * ROW + HIGH
    at = {node_id: (MARGIN + x * COLUMN, MARGIN + y * ROW) for node_id, (x, y) in place.items()}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="dataflow of {html.escape(described["app"])}" font-family="system-ui, sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto">'
        '<path class="tip" d="M0,0 L8,4 L0,8 z" fill="#7a8794"/></marker></defs>',
        *(_svg_group(group, at) for group in described["nested"]),
        *(_svg_edge(edge, at) for edge in described["edges"]),
        *(_svg_node(node, at[node["id"]]) for node in [*shown, *called]),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(described: Described, shown: list[Described]) -> dict[str, tuple[int, int]]:
    """Column: the longest path from a border stream. Row: near the middle of its predecessors, one node per place."""
    ids = [node["id"] for node in shown]
    before: dict[str, list[str]] = {node_id: [] for node_id in ids}
    for edge in described["edges"]:
        before[edge["to"]].append(edge["from"])
    column: dict[str, int] = {}

    def depth(node_id: str) -> int:
        if node_id not in column:
            column[node_id] = max((depth(b) + 1 for b in before[node_id]), default=0)
        return column[node_id]

    for node_id in ids:
        depth(node_id)
    after = _after(described)
    for node_id in ids:  # a border stream that joins later stands next to its first consumer
        if not before[node_id] and after.get(node_id):
            column[node_id] = max(0, min(column[following] for following in after[node_id]) - 1)
    row: dict[str, int] = {}
    start = 0
    for part in _parts(ids, described):
        taken: set[tuple[int, int]] = set()
        for node_id in sorted(part, key=lambda n: (column[n], ids.index(n))):
            wanted = [row[b] for b in before[node_id] if b in row]
            y = round(sum(wanted) / len(wanted)) if wanted else start
            y = next(c for c in _nearest(y, start) if (column[node_id], c) not in taken)
            row[node_id] = y
            taken.add((column[node_id], y))
        start = max(row[node_id] for node_id in part) + 1
    return {node_id: (column[node_id], row[node_id]) for node_id in ids}


def _nearest(y: int, least: int) -> Iterator[int]:
    distance = 0
    while True:
        yield y + distance
        if distance and y - distance >= least:
            yield y - distance
        distance += 1


def _parts(ids: Iterable[str], described: Described) -> list[list[str]]:
    """Connected parts, in order of their first node."""
    beside: dict[str, set[str]] = {node_id: set() for node_id in ids}
    for edge in described["edges"]:
        beside[edge["from"]].add(edge["to"])
        beside[edge["to"]].add(edge["from"])
    parts: list[list[str]] = []
    seen: set[str] = set()
    for node_id in beside:
        if node_id in seen:
            continue
        part, waiting = [], [node_id]
        while waiting:
            current = waiting.pop()
            if current not in seen:
                seen.add(current)
                part.append(current)
                waiting += sorted(beside[current] - seen)
        parts.append(part)
    return parts


def _svg_node(node: Described, at: tuple[int, int]) -> str:
    x, y = at
    wide = WIDE[node["kind"]]
    stream = node["kind"] == "stream"
    look = 'rx="22" fill="#e8f1f8" stroke="#3a78a8"' if stream else 'rx="6" fill="#ffffff" stroke="#55606b"'
    kinds = ["node", node["kind"], *(flag for flag in ("border", "awaited", "called") if node.get(flag))]
    told = _line(node, {})
    small = "" if stream else _access(node)
    second = (
        f'<text class="access" x="{x + wide / 2}" y="{y + 35}" font-size="10" fill="#66717c">{_cut(small, 26)}</text>'
    )
    keyed = _cut(_keyed(node), 26) if stream and node["key"] else ""
    key = f'<text class="key" x="{x + wide / 2}" y="{y + HIGH + 13}" font-size="10" fill="#66717c">{keyed}</text>'
    return (
        f'<g class="{" ".join(kinds)}" data-id="{html.escape(node["id"])}" text-anchor="middle">'
        f"<title>{html.escape(told)}</title>"
        f'<rect x="{x}" y="{y}" width="{wide}" height="{HIGH}" {look} stroke-width="1.4"/>'
        f'<text class="name" x="{x + wide / 2}" y="{y + (20 if small or stream else 26)}" font-size="13" fill="#1d252c">'
        f"{_cut(node['name'], 18)}</text>{second if small else ''}"
        f"{key if keyed else ''}"
        f'<text class="rate" x="{x + wide / 2}" y="{y + (35 if stream else HIGH + 13)}" font-size="10" fill="#66717c"></text>'
        f"</g>"
    )


def _cut(words: str, length: int) -> str:
    return html.escape(words if len(words) <= length else words[: length - 1] + "…")


def _svg_edge(edge: Described, at: dict[str, tuple[int, int]]) -> str:
    kind = "stream" if edge["from"].startswith("stream:") else "procedure"
    x1, y1 = at[edge["from"]][0] + WIDE[kind], at[edge["from"]][1] + HIGH / 2
    x2, y2 = at[edge["to"]][0], at[edge["to"]][1] + HIGH / 2
    bend = max(24.0, (x2 - x1) / 2)
    return (
        f'<path class="edge" data-from="{html.escape(edge["from"])}" data-to="{html.escape(edge["to"])}" fill="none" '
        f'stroke="#7a8794" stroke-width="1.4" marker-end="url(#tip)" '
        f'd="M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {x2 - bend:g},{y2:g} {x2 - 1:g},{y2:g}"/>'
    )


def _svg_group(group: Described, at: dict[str, tuple[int, int]]) -> str:
    places = [at[member] for member in group["members"]]
    left, top = min(x for x, _ in places) - 12, min(y for _, y in places) - 18
    right, low = max(x for x, _ in places) + WIDE["procedure"] + 12, max(y for _, y in places) + HIGH + 18
    return (
        f'<g class="nested"><title>nested transaction {html.escape(group["name"])}</title>'
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{low - top}" rx="10" fill="#f6f3ea" stroke="#b59b4c" '
        f'stroke-dasharray="5 4"/>'
        f'<text x="{left + 10}" y="{top + 12}" font-size="10" fill="#8a7434">{_cut("nested: " + group["name"], 60)}</text></g>'
    )
