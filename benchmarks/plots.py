"""Plots of the report: one for each benchmark with figures to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
OURS, THEIRS = "#1f6f8b", "#b8b8b8"


def rates(title: str, unit: str, values: Mapping[str, float], ours: set[str], path: Path) -> bool:
    """Points on a logarithmic scale, the largest first; False where there is no matplotlib, or nothing to show."""
    try:
        import matplotlib
    except ImportError:
        return False
    if not values:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tidegate"
    from matplotlib import pyplot

    ordered = sorted(((name, value) for name, value in values.items() if value > 0), key=lambda pair: pair[1])
    if not ordered:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.36 * len(ordered)), layout="constrained")
    names = [name for name, _ in ordered]
    axes.scatter(
        [value for _, value in ordered], names, c=[OURS if name in ours else THEIRS for name in names], zorder=2
    )
    for name, value in ordered:
        axes.annotate(f"{value:,.0f}", (value, name), (8, 0), textcoords="offset points", va="center", fontsize=9)
    axes.grid(axis="both", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xscale("log")  # points: the length of a bar would mean nothing here
    axes.set_xlim(ordered[0][1] / 2, ordered[-1][1] * 6)
    axes.set_title(f"{title} ({unit}, logarithmic)", fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def leaderboard(facts: Facts, path: Path) -> bool:
    ours = {
        "tidegate, in memory": facts["feed_votes_per_s"],
        "tidegate, durable": facts["votes_per_s"],
        "tidegate, durable, push": facts.get("durable_push_votes_per_s", 0),
    }
    theirs = {name: peer["votes_per_s"] for name, peer in facts.get("peers", {}).items() if "votes_per_s" in peer}
    dicts = {"bare dictionaries, no guarantees": facts["dicts_votes_per_s"]}
    return rates("Leaderboard", "votes a second", {**ours, **theirs, **dicts}, set(ours), path)


def windows(facts: Facts, path: Path) -> bool:
    values: dict[str, float] = {}
    ours = set()
    for kind in ("count", "time"):
        for name in ("", "numpy_", "duckdb_", "polars_", "python_", "bytewax_", "spark_"):
            figure = facts.get(f"{name}{kind}_rows_per_s")
            if figure:
                label = f"{name.rstrip('_') or 'tidegate'}, by {kind}"
                values[label] = figure
                if not name:
                    ours.add(label)
    return rates("Windows", "rows a second", values, ours, path)


PLOTS: dict[str, Callable[[Facts, Path], bool]] = {"leaderboard": leaderboard, "windows": windows}
