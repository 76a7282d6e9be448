"""Random windows for simulated procedures."""

from __future__ import annotations

import random
from typing import Any

from tidegate import windows as w
from tidegate.streams.windows import WindowSpec, window


def random_window(rng: random.Random, inputs: tuple[str, ...]) -> WindowSpec:
    """A window over one of the inputs: of rows, or of any kind, with or without aggregates."""
    size = rng.randint(1, 5)
    stream = rng.choice(inputs)
    if rng.random() < 0.5:
        options: dict[str, Any] = {rng.choice(["count", "batches"]): size, "slide": rng.randint(1, size)}
        return window(stream, **options)
    by = rng.choice([(), ("k",)])
    kind = rng.choice(["count", "batches", "time", "session", "landmark", "slide_rows", "delta"])
    kinds: dict[str, dict[str, Any]] = {
        "count": {"count": size, "slide": rng.randint(1, 7)},
        "batches": {"batches": size, "slide": rng.randint(1, 7)},
        "time": {"time": f"{size}s", "slide": f"{rng.randint(1, 3)}s"},
        "session": {"session": f"{size}s"},
        "landmark": {"landmark": 6, "slide": 2},
        "slide_rows": {"time": f"{size}s", "slide_rows": 2},
        "delta": {"delta": size, "on": "x"},
    }
    options = kinds[kind]
    aggregates = {"n": w.count(), "total": w.sum("x"), "middle": w.median("x"), "most": w.max("x")}
    chosen = rng.sample(sorted(aggregates), rng.randint(1, 3))
    return window(stream, by=by, compute=rng.choice([None, {name: aggregates[name] for name in chosen}]), **options)
