"""A pattern's automaton, in words and as a picture: a circle for each occurrence of an element, an arrow for each way on."""

from __future__ import annotations

from xml.sax.saxutils import escape

from tidegate.streams.windows.patterns.automaton import Automaton, Guard

STEP, RISE, RADIUS = 150, 90, 30
INK, GUARD = "#24405c", "#a33a2a"


def guarded(automaton: Automaton, guard: Guard) -> list[str]:
    """The elements that must not come."""
    return [name for number, name in enumerate(automaton.elements) if guard >> number & 1]


def as_text(automaton: Automaton) -> str:
    """A line for each position: what it is, and where a match goes on from there."""
    lines = []
    for position in automaton.positions:
        number = position.number
        name = automaton.elements[position.element]
        ways = [
            f"{automaton.positions[to].variable} ({to})" + _without(automaton, guard)
            for to, guard in automaton.edges[number]
        ]
        if number in automaton.ends:
            guard = automaton.ends[number]
            ways.append("a match" if not guard else f"a match, when its time is over{_without(automaton, guard)}")
        called = f" called {position.variable}" if position.variable != name else ""
        begin = ", may be first" if number in automaton.starts else ""
        lines.append(f"({number}) {name}{called}{begin}: then {', or '.join(ways)}")
    return "\n".join(lines)


def _without(automaton: Automaton, guard: Guard) -> str:
    names = guarded(automaton, guard)
    return f" without {' or '.join(names)} in between" if names else ""


def as_svg(automaton: Automaton, title: str) -> str:
    """The picture. Circles stand in columns, by how many rows come before at least."""
    places = _places(automaton)
    width = max(x for x, _ in places.values()) + STEP
    height = max(y for _, y in places.values()) + RISE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
    ]
    for number in automaton.starts:
        x, y = places[number]
        parts.append(_line(x - STEP // 2 - 10, y, x - RADIUS, y))
    for number, edges in enumerate(automaton.edges):
        for to, guard in edges:
            parts.append(_edge(places[number], places[to], guarded(automaton, guard)))
    circles = [_circle(automaton, position.number, *places[position.number]) for position in automaton.positions]
    return "\n".join([*parts, *circles, "</svg>"])


def _places(automaton: Automaton) -> dict[int, tuple[int, int]]:
    column = dict.fromkeys(automaton.starts, 0)
    waiting = list(automaton.starts)
    while waiting:
        number = waiting.pop(0)
        for to, _ in automaton.edges[number]:
            if to not in column:
                column[to] = column[number] + 1
                waiting.append(to)
    taken: dict[int, int] = {}
    found = {}
    for number in sorted(column):
        row = taken.get(column[number], 0)
        taken[column[number]] = row + 1
        found[number] = (80 + column[number] * STEP, 90 + row * RISE)
    return found


def _circle(automaton: Automaton, number: int, x: int, y: int) -> str:
    position = automaton.positions[number]
    name = automaton.elements[position.element]
    label = name if name == position.variable else f"{name} {position.variable}"
    told = f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="#fff" stroke="{INK}" stroke-width="1.5"/>'
    if number in automaton.ends:
        told += f'<circle cx="{x}" cy="{y}" r="{RADIUS - 4}" fill="none" stroke="{INK}"/>'
        absent = guarded(automaton, automaton.ends[number])
        if absent:
            none = escape(" or ".join(absent))
            told += f'<text x="{x}" y="{y + RADIUS + 15}" text-anchor="middle" fill="{GUARD}">then no {none}</text>'
    return f'{told}<text x="{x}" y="{y + 4}" text-anchor="middle" fill="{INK}">{escape(label)}</text>'


def _line(x: int, y: int, to_x: int, to_y: int) -> str:
    return f'<path d="M{x},{y} L{to_x},{to_y}" fill="none" stroke="{INK}" marker-end="url(#to)"/>'


def _edge(place: tuple[int, int], to: tuple[int, int], absent: list[str]) -> str:
    (x, y), (to_x, to_y) = place, to
    if place == to:
        path = f"M{x - 12},{y - RADIUS + 2} C{x - 30},{y - 70} {x + 30},{y - 70} {x + 12},{y - RADIUS + 2}"
        middle = (x, y - 50)
    elif to_y == y and to_x - x == STEP:
        path = f"M{x + RADIUS},{y} L{to_x - RADIUS},{to_y}"
        middle = ((x + to_x) // 2, y - 8)
    else:
        bend = (y + to_y) // 2 + (45 if to_x <= x or to_y == y else 0)
        path = f"M{x + 20},{y + 22} Q{(x + to_x) // 2},{bend + 40} {to_x - 20},{to_y + 22}"
        middle = ((x + to_x) // 2, bend + 34)
    told = f'<path d="{path}" fill="none" stroke="{INK}" marker-end="url(#to)"/>'
    if absent:
        label = escape("no " + " or ".join(absent))
        told += f'<text x="{middle[0]}" y="{middle[1]}" text-anchor="middle" fill="{GUARD}">{label}</text>'
    return told
