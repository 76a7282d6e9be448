"""Pictures of a plan, as text and as SVG: what each stage passes to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

SHOWN = 4  # workers of a group drawn one by one; of more, the first two and the last


@dataclass(frozen=True)
class Stage:
    """Workers that do the same. ``fed``: what they receive; ``runs``: where they run."""

    name: str
    does: str
    fed: str
    replicas: int
    width: int
    runs: str = ""


@dataclass(frozen=True)
class Picture:
    """A plan. ``overlap``: panes per window and per slide, where windows have panes."""

    title: str
    subtitle: str
    source: str
    stages: tuple[Stage, ...]
    overlap: tuple[int, int] | None = None


def _shown(count: int) -> list[int | None]:
    """Numbers to draw; None for those left out."""
    return list(range(1, count + 1)) if count <= SHOWN else [1, 2, None, count]


def as_text(picture: Picture) -> str:
    """The stages from top to bottom."""
    lines = [f"rows of {picture.source}"]
    for i, stage in enumerate(picture.stages):
        collects = "collector, in order; " if i else ""
        lines += ["   │", f"{collects}emitter: {stage.fed}", *_branches(stage)]
    return "\n".join([*lines, "   │", "collector: results in window order"])


def _branches(stage: Stage) -> Iterator[str]:
    runs = f"   {stage.runs}" if stage.runs else ""
    outer = _shown(stage.replicas) if stage.replicas > 1 else [1]
    nested = stage.replicas > 1 and stage.width > 1
    for place, replica in enumerate(outer):
        inner = _shown(stage.width) if nested or stage.replicas == 1 else [replica]
        for row, worker in enumerate(inner):
            last = place == len(outer) - 1 and row == len(inner) - 1
            named = "…" if worker is None or replica is None else f"worker {worker}  {stage.does}{runs}"
            runs = ""
            if nested:
                tree = "└" if place == len(outer) - 1 else "├"
                trunk = (
                    f"{tree}─ replica {'…' if replica is None else replica} "
                    if row == 0
                    else " │"[place < len(outer) - 1]
                )
                branch = "┬" if row == 0 and len(inner) > 1 else "└" if row == len(inner) - 1 else "├"
                yield f"   {trunk:<13}{branch}─ {named}"
                if replica is None:
                    break
            else:
                yield f"   {'└' if last else '├'}─ {named}"


# ---- SVG

STYLE = """
    .plan { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color-scheme: light dark; }
    .plan text { fill: #1f2933; }
    .plan .title { font-size: 15px; font-weight: 600; }
    .plan .quiet { fill: #5b6875; font-size: 12px; }
    .plan .box { fill: #e8f1fb; stroke: #3b7cc4; }
    .plan .node { fill: #fdf3e3; stroke: #c98a1b; }
    .plan .end { fill: none; stroke: #8a97a5; }
    .plan .frame { fill: none; stroke: #8a97a5; stroke-dasharray: 4 3; }
    .plan .line { fill: none; stroke: #8a97a5; stroke-width: 1.2; }
    .plan .head { fill: #8a97a5; }
    .plan .pane { fill: #eef1f4; stroke: #b4bec8; }
    .plan .bar { fill: #3b7cc4; }
    @media (prefers-color-scheme: dark) {
      .plan text { fill: #e4e9ee; }
      .plan .quiet { fill: #9aa7b4; }
      .plan .box { fill: #17304a; stroke: #5c9be0; }
      .plan .node { fill: #3b2d12; stroke: #d9a441; }
      .plan .pane { fill: #222b35; stroke: #4a5763; }
      .plan .bar { fill: #5c9be0; }
    }
"""
TOP, SIDE = 74, 20  # above the stages, and left of them
BOX_W, BOX_H, GAP, FRAME = 112, 34, 12, 12
NODE_W, ROOM = 92, 56  # a round node, and room for the lines next to it


@dataclass
class _Drawing:
    parts: list[str]
    right: float = 0.0
    bottom: float = 0.0

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(text)}</text>')
        wide = len(text) * (8.9 if style == "title" else 6.6)
        self.reach(x + (wide / 2 if anchor == "middle" else wide), y + 6)

    def box(self, style: str, x: float, y: float, w: float, h: float, r: float = 6) -> None:
        self.parts.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}"/>')
        self.reach(x + w, y + h)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        bend = (x2 - x1) / 2
        self.parts.append(
            f'<path class="line" d="M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {x2 - bend:g},{y2:g} {x2 - 5:g},{y2:g}"/>'
            f'<path class="head" d="M{x2:g},{y2:g} l-8,-4 v8 z"/>'
        )

    def reach(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)


def as_svg(picture: Picture) -> str:
    """The stages from left to right, and below them how windows lie over panes."""
    drawing = _Drawing([])
    heights = [_height(stage) for stage in picture.stages]
    middle = TOP + max(heights) / 2
    drawing.text(SIDE, 28, picture.title, "title", "start")
    drawing.text(SIDE, 48, picture.subtitle, "quiet", "start")
    x = float(SIDE)
    x = _node(drawing, x, middle, picture.source, "rows", "end")
    for i, stage in enumerate(picture.stages):
        if i:
            x = _node(drawing, x, middle, "collector", "emitter", "node")
        else:
            drawing.line(x, middle, x + ROOM / 2, middle)
            x = _node(drawing, x + ROOM / 2, middle, "emitter", "", "node")
        x = _workers(drawing, x, middle, stage)
    x = _node(drawing, x, middle, "collector", "", "node")
    drawing.line(x, middle, x + ROOM / 2, middle)
    _node(drawing, x + ROOM / 2, middle, "results", "in window order", "end")
    y = TOP + max(heights) + 30
    for i, stage in enumerate(picture.stages, 1):
        runs = f" · {stage.runs}" if stage.runs else ""
        drawing.text(SIDE, y, f"{i}  {stage.name}: {stage.fed}{runs}", "quiet", "start")
        y += 18
    if picture.overlap is not None:
        _overlap(drawing, y + 14, *picture.overlap)
    width, height = round(drawing.right + SIDE), round(drawing.bottom + 16)
    body = "\n    ".join(drawing.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
        f"  <title>{escape(picture.title)}</title>\n  <style>{STYLE}  </style>\n"
        f'  <g class="plan">\n    {body}\n  </g>\n</svg>\n'
    )


def _node(drawing: _Drawing, x: float, middle: float, text: str, below: str, style: str) -> float:
    width = max(NODE_W, 7.4 * len(text) + 24, 6.6 * len(below) + 20)
    drawing.box(style, x, middle - 24, width, 48, 24)
    drawing.text(x + width / 2, middle + (-2 if below else 4), text)
    if below:
        drawing.text(x + width / 2, middle + 14, below, "quiet")
    return x + width


def _groups(stage: Stage) -> list[list[int | None]]:
    """The workers to draw, in groups: one for each replica of a nesting."""
    if stage.replicas > 1 and stage.width > 1:
        return [[None] if replica is None else _shown(stage.width) for replica in _shown(stage.replicas)]
    return [_shown(max(stage.replicas, stage.width))]


def _height(stage: Stage) -> float:
    groups = _groups(stage)
    rows = sum(len(group) * (BOX_H + GAP) - GAP for group in groups)
    return rows + (len(groups) - 1) * GAP + (len(groups) * (2 * FRAME + 16) if len(groups) > 1 else 0)


def _workers(drawing: _Drawing, left: float, middle: float, stage: Stage) -> float:
    """Boxes between the node that ends at ``left`` and the one at the returned place, with their lines."""
    groups = _groups(stage)
    framed = len(groups) > 1
    x = left + ROOM + (FRAME if framed else 0)
    right = x + BOX_W + ROOM + (FRAME if framed else 0)
    y = middle - _height(stage) / 2
    for number, group in zip(_shown(stage.replicas), groups, strict=False):
        if framed:
            tall = len(group) * (BOX_H + GAP) - GAP + 2 * FRAME + 16
            if group != [None]:
                drawing.box("frame", x - FRAME, y, BOX_W + 2 * FRAME, tall, 8)
                drawing.text(x, y + 16, f"replica {number}", "quiet", "start")
            y += FRAME + 16
        for worker in group:
            centre = y + BOX_H / 2
            if worker is None:
                drawing.text(x + BOX_W / 2, centre + 4, "⋮")
            else:
                drawing.box("box", x, y, BOX_W, BOX_H)
                drawing.text(x + BOX_W / 2, centre + 4, f"{worker} · {stage.does}")
                drawing.line(left, middle, x, centre)
                drawing.line(x + BOX_W, centre, right, middle)
            y += BOX_H + GAP
        y += FRAME if framed else 0
    return right


def _overlap(drawing: _Drawing, y: float, per_window: int, per_slide: int) -> None:
    """Panes in a row, and the first windows over them."""
    windows = 3
    panes = (windows - 1) * per_slide + per_window
    if panes > 16:
        return
    wide = 40
    left = SIDE + 76
    drawing.text(SIDE, y + 14, "panes", "quiet", "start")
    for i in range(panes):
        drawing.box("pane", left + i * wide, y, wide, 20, 0)
        drawing.text(left + (i + 0.5) * wide, y + 14, str(i), "quiet")
    for w in range(windows):
        line = y + 36 + w * 18
        drawing.text(SIDE, line + 4, f"window {w}", "quiet", "start")
        drawing.box("bar", left + w * per_slide * wide + 3, line - 3, per_window * wide - 6, 6, 3)
