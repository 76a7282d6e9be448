"""The leaderboard, live in the terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from tidegate.engine.engine import Engine
from tidegate.examples.leaderboard.app import leaderboard, start
from tidegate.examples.leaderboard.reference import Contest, random_votes


def run(votes: int = 60_000, seed: int = 1, seconds: float = 8.0, console: Console | None = None) -> bool:
    """Play a contest in about ``seconds`` seconds, show it, and compare its result with the plain-Python reference."""
    console = console or Console()
    cast = random_votes(votes, seed)
    steps = 100
    size = max(votes // steps, 1)
    busy = 0.0
    progress = Progress(TextColumn("{task.completed:>6,.0f} of {task.total:,.0f} votes"), BarColumn())
    task = progress.add_task("votes", total=votes)
    with start(leaderboard()) as engine:
        eliminated = engine.subscribe("eliminated")
        left: list[tuple[int, int]] = []
        with Live(console=console, refresh_per_second=20) as live:
            for begin in range(0, votes, size):
                started = time.perf_counter()
                engine.feed("votes_in", cast[begin : begin + size])
                busy += time.perf_counter() - started
                left.extend((row.contestant, row.total) for batch in eliminated for row in batch)
                progress.update(task, completed=min(begin + size, votes))
                live.update(Group(_board(engine), _left(left), progress))
                time.sleep(max(0.0, seconds / steps - (time.perf_counter() - started)))
        return _summary(console, engine, Contest().run(cast), votes, busy)


def _board(engine: Engine) -> Table:
    table = Table(title="Leaderboard", title_justify="left", min_width=60)
    for name, justify in (
        ("#", "right"),
        ("contestant", "left"),
        ("votes", "right"),
        ("last 100", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    rows = engine.query("SELECT name, total, trending FROM contestants ORDER BY total DESC, id LIMIT 8").rows
    most = max((row.trending for row in rows), default=0) or 1
    for place, row in enumerate(rows, 1):
        bar = "█" * round(20 * row.trending / most)
        table.add_row(str(place), row.name, f"{row.total:,}", str(row.trending), f"[cyan]{bar}[/]")
    return table


def _left(left: list[tuple[int, int]]) -> str:
    if not left:
        return "[dim]no one has left yet[/]"
    recent = ", ".join(f"{contestant} ({total:,})" for contestant, total in left[-6:])
    return f"[dim]{len(left)} left, last: {recent}[/]"


def _summary(console: Console, engine: Engine, reference: Contest, votes: int, busy: float) -> bool:
    winner = engine.query("SELECT name, total FROM contestants ORDER BY total DESC, id LIMIT 1").rows[0]
    totals = {row.id: row.total for row in engine.query("SELECT id, total FROM contestants").rows}
    right = totals == reference.totals
    valid = engine.query("SELECT valid_votes FROM contest").scalar()
    table = Table(show_header=False, box=None)
    table.add_row("winner", f"{winner.name} with {winner.total:,} votes")
    table.add_row("votes", f"{votes:,} cast, {valid:,} valid, each one nested transaction")
    table.add_row("engine", f"{votes / busy:,.0f} votes a second")
    table.add_row(
        "result", "[green]equals the serial reference[/]" if right else "[red]differs from the serial reference[/]"
    )
    console.print()
    console.print(table)
    return right
