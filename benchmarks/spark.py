"""What Spark and look-ahead gain for heavy windows, end to end through transactions.

Everything is measured in one process with one BLAS thread, in rounds that run each contender once; ratios are taken
within a round. Every result is compared with that of this process alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

Progress = Callable[[str], None]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

WORKERS = 2
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
BURST = 128  # batches that arrive at once, for the latency


def bench(windows: int = 400, rounds: int = 3, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Run the measurement in a separate process, whose libraries use one thread each."""
    command = [sys.executable, "-m", "tidegate.benchmarks.spark", str(windows), str(rounds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD}) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if not line.startswith("{"):
                progress(line.strip())
    if process.returncode:
        raise SystemExit(process.returncode)
    facts: dict[str, Any] = json.loads(last)
    return facts


def measure(windows: int, rounds: int) -> dict[str, Any]:
    import tidegate
    from tidegate.benchmarks.setting import setting
    from tidegate.streams.spark.session import shared_spark

    spark = shared_spark(f"local[{WORKERS}]")
    session = spark.session()
    figures: dict[str, Any] = {"spark_start_s": round(spark.started_in_s or 0.0, 1)}
    try:
        for part in (heavy_windows, look_ahead, depths):
            print(str(part.__doc__).splitlines()[0], flush=True)
            figures.update(part(tidegate, session, windows, rounds))
    finally:
        spark.stop()
    figures["correct"] = all([figures.pop("heavy_correct"), figures.pop("ahead_correct")])
    return {**figures, "windows": windows, "rounds": rounds, "workers": WORKERS, **setting()}


# ---- what is computed


def fit_and_skyline(x: Any, y: Any) -> tuple[float, float, float, int]:
    """A polynomial through the points, and how many of them no other one exceeds in both coordinates.

    The degree, from 1 to 8, is chosen by five-fold cross-validation.
    """
    import numpy as np

    folds = np.arange(len(x)) % 5
    best, chosen = np.inf, None
    for degree in range(1, 9):
        basis, score = np.vander(x, degree + 1), 0.0
        for fold in range(5):
            inside = folds != fold
            found = np.linalg.lstsq(basis[inside], y[inside], rcond=None)[0]
            score += float(((basis[~inside] @ found - y[~inside]) ** 2).sum())
        if score < best:
            best, chosen = score, np.linalg.lstsq(basis, y, rcond=None)[0]
    assert chosen is not None
    order = np.lexsort((-y, -x))
    highest = np.maximum.accumulate(y[order])
    skyline = 1 + int(np.count_nonzero(y[order][1:] > highest[:-1]))
    return float(chosen[-1]), float(chosen[-2]), float(best), skyline


def evaluate(extent: Any) -> tuple[float, float, float, int]:
    return fit_and_skyline(extent["x"], extent["y"])


def evaluate_arrays(arrays: tuple[Any, Any]) -> tuple[float, float, float, int]:
    return fit_and_skyline(*arrays)


def app_of(tidegate: Any, rows: int, slide: int, backend: str, max_delay: str = "5s") -> Any:
    from tidegate import windows as w

    app = tidegate.App("heavy")
    app.table("CREATE TABLE fits (number BIGINT PRIMARY KEY, a DOUBLE, b DOUBLE, score DOUBLE, skyline BIGINT)")
    app.stream("points", "x DOUBLE NOT NULL, y DOUBLE NOT NULL", border=True)
    compute = w.whole(evaluate, "a DOUBLE, b DOUBLE, score DOUBLE, skyline BIGINT")
    recent = tidegate.window("points", count=rows, slide=slide, compute=compute, backend=backend, max_delay=max_delay)

    @app.procedure(inputs="points", writes=["fits"], windows={"recent": recent})
    def keep(txn: Any, points: Any) -> None:
        for row in txn.window("recent").results:
            txn.insert("fits", (row.window_number, row.a, row.b, row.score, row.skyline))

    return app


def points_of(number: int) -> list[tuple[float, float]]:
    import numpy as np

    chance = np.random.default_rng(7)
    x = chance.uniform(-1, 1, number)
    y = x**3 - x + chance.normal(0, 0.3, number)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def kept(engine: Any) -> str:
    return repr([tuple(row) for row in engine.query("SELECT * FROM fits ORDER BY number")])


def fed(tidegate: Any, app: Any, points: Sequence[Any], size: int, **settings: Any) -> tuple[float, str, str]:
    """Seconds to feed everything, the results, and how they were computed."""
    with tidegate.open(app, **settings) as engine:
        plan = engine.plan("keep.recent")
        if hasattr(plan.backend, "warm") and settings.get("spark") is not None:
            plan.backend.warm(WORKERS) if plan.backend.replicas == 1 else plan.backend.warm()
        began = time.perf_counter()
        engine.feed("points", points, size=size)
        return time.perf_counter() - began, kept(engine), plan.explain().partition("\n\n")[0]


# ---- the parts


def heavy_windows(tidegate: Any, session: Any, windows: int, rounds: int) -> dict[str, Any]:
    """Heavy windows end to end: this process, Spark, whichever is faster, and a bare process pool that only evaluates."""
    import numpy as np

    rows, slide = 5_000, 250
    points = points_of(rows + (windows - 1) * slide)
    apps = {name: app_of(tidegate, rows, slide, name) for name in ("local", "spark", "auto")}
    x, y = (np.array(values) for values in zip(*points, strict=True))
    arrays = [(x[i * slide : i * slide + rows], y[i * slide : i * slide + rows]) for i in range(windows)]
    times: dict[str, list[float]] = {name: [] for name in (*apps, "pool")}
    results: dict[str, set[str]] = {name: set() for name in apps}
    told = ""
    with ProcessPoolExecutor(WORKERS) as pool:
        list(pool.map(evaluate_arrays, arrays[:8]))
        for number in range(rounds + 1):  # the first one warms up
            for name, app in apps.items():
                settings = {} if name == "local" else {"spark": session}
                seconds, result, how = fed(tidegate, app, points, slide, **settings)
                times[name].append(seconds)
                results[name].add(result)
                told = how if name == "auto" else told
            began = time.perf_counter()
            list(pool.map(evaluate_arrays, arrays, chunksize=max(1, windows // (4 * WORKERS))))
            times["pool"].append(time.perf_counter() - began)
            print(f"round {number}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in times.items()), flush=True)
    measured = list(zip(*(seconds[1:] for seconds in times.values()), strict=True))
    return {
        "speedup_vs_local": round(statistics.median(local / spark for local, spark, _, _ in measured), 2),
        "time_vs_process_pool": round(statistics.median(spark / pool for _, spark, _, pool in measured), 2),
        "auto_vs_better": round(statistics.median(auto / min(local, spark) for local, spark, auto, _ in measured), 2),
        "auto_chose": next((line[10:] for line in told.splitlines() if line.startswith("windows ")), ""),
        "ms_per_window": round(statistics.median(times["local"][1:]) / windows * 1e3, 2),
        **{f"{name}_s": round(statistics.median(seconds[1:]), 2) for name, seconds in times.items()},
        "heavy_correct": len(set().union(*results.values())) == 1,
    }


LIGHT_ROWS, LIGHT_SLIDE = 1_500, 50


def look_ahead(tidegate: Any, session: Any, windows: int, rounds: int) -> dict[str, Any]:
    """Windows of about 5 ms on Spark: one job for each batch, and one for many."""
    points = points_of(LIGHT_ROWS + (windows - 1) * LIGHT_SLIDE)
    few = max(20, windows // 10)
    fewer = points[: LIGHT_ROWS + (few - 1) * LIGHT_SLIDE]
    app = app_of(tidegate, LIGHT_ROWS, LIGHT_SLIDE, "spark")
    local, expected, _ = fed(tidegate, app_of(tidegate, LIGHT_ROWS, LIGHT_SLIDE, "local"), points, LIGHT_SLIDE)
    gains, each, correct = [], [], True
    for number in range(rounds + 1):
        with_it, result, _ = fed(tidegate, app, points, LIGHT_SLIDE, spark=session)
        without, _, _ = fed(tidegate, app, fewer, LIGHT_SLIDE, spark=session, look_ahead=1)
        correct = correct and result == expected
        each.append((without / few * 1e3, with_it / windows * 1e3))
        gains.append(without / few / (with_it / windows))
        print(f"round {number}: {each[-1][0]:.1f} ms per window without, {each[-1][1]:.2f} with", flush=True)
    return {
        "lookahead_gain": round(statistics.median(gains[1:]), 1),
        "light_ms_per_window": round(local / windows * 1e3, 2),
        "without_lookahead_ms": round(statistics.median(one for one, _ in each[1:]), 2),
        "with_lookahead_ms": round(statistics.median(other for _, other in each[1:]), 2),
        "ahead_correct": correct,
    }


def depths(tidegate: Any, session: Any, windows: int, rounds: int) -> dict[str, Any]:
    """How long the first and the last of a burst of batches wait for their results, by depth."""
    app = app_of(tidegate, LIGHT_ROWS, LIGHT_SLIDE, "spark", max_delay="1h")
    points = points_of(LIGHT_ROWS + (rounds + 8) * BURST * LIGHT_SLIDE)
    found: dict[str, dict[str, float]] = {}
    for depth in DEPTHS:
        firsts, lasts = [], []
        with tidegate.open(app, spark=session, look_ahead=depth, executor="threads", workers=1) as engine:
            engine.plan("keep.recent").backend.warm()
            engine.feed("points", points[:LIGHT_ROWS], size=LIGHT_SLIDE)
            engine.run_until_idle()
            ahead = engine.runtime.programs["keep"].ahead.get("recent")
            if ahead is not None:
                ahead.depth.now = depth
            place = LIGHT_ROWS
            for _ in range(rounds):
                tickets = []
                with engine.lock:  # nothing starts before all of them are accepted
                    began = time.perf_counter()
                    for _ in range(BURST):
                        tickets.append(engine.push("points", points[place : place + LIGHT_SLIDE]))
                        place += LIGHT_SLIDE
                tickets[0].result(60)
                firsts.append(time.perf_counter() - began)
                tickets[-1].result(60)
                lasts.append(time.perf_counter() - began)
        first, last = statistics.median(firsts), statistics.median(lasts)
        found[str(depth)] = {"first_ms": round(first * 1e3, 1), "last_ms": round(last * 1e3, 1)}
        print(f"depth {depth}: first {first * 1e3:.0f} ms, last {last * 1e3:.0f} ms", flush=True)
    return {"depths": found, "burst": BURST}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))), flush=True)
