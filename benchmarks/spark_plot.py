"""The picture of what look-ahead costs and gains, by depth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINES = (("last_ms", "#1f6f8b", "the last result"), ("first_ms", "#c1666b", "the first result"))


def draw(facts: Mapping[str, Any], path: Path) -> None:
    """How long the first and the last of a burst of batches wait for their results. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tidegate"
    from matplotlib import pyplot

    depths = [int(depth) for depth in facts["depths"]]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for name, colour, label in LINES:
        values = [facts["depths"][str(depth)][name] for depth in depths]
        axes.plot(depths, values, marker="o", color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.set_xlabel("batches evaluated together")
    axes.set_ylabel("milliseconds until")
    axes.set_title(f"A burst of {facts['burst']} batches, windows evaluated on Spark", fontsize=11, loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
