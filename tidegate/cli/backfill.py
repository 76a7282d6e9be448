"""``tidegate backfill``: feed files of history to an app; Spark reads and sorts them, and evaluates windows."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidegate.cli.printing import Json, print_json, told
from tidegate.cli.work import finish_all


def backfill(
    where: Annotated[str, typer.Argument(metavar="APP", help="package.module:app, file.py:app or file.sql")],
    files: Annotated[list[str], typer.Argument(help="Parquet, CSV (with a header) or JSON files or directories.")],
    stream: Annotated[str, typer.Option(help="The border stream that the rows go to.")],
    order_by: Annotated[list[str], typer.Option(help="Feed the rows in the order of this column; may be repeated.")],
    data: Annotated[Path | None, typer.Option(help="The engine's directory; without it, in memory.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 100,
    format: Annotated[str | None, typer.Option(help="parquet, csv or json; by default from the names.")] = None,
    source: Annotated[str | None, typer.Option(help="The name under which the position is stored.")] = None,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[4], spark://host:7077, …; by default in this process.")
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Nothing follows: all windows fire. In memory, that is always so.")
    ] = False,
    backend: Annotated[str, typer.Option(help="Where windows are evaluated: spark, auto or local.")] = "spark",
    as_json: Json = False,
) -> None:
    """Feed a history to an app: files, in order, as transactions. Run it again after a crash, and it continues.

    Example: tidegate backfill ward.py:app vitals/ --stream vitals --order-by seen --data ward.db --format parquet

    Example: tidegate backfill ward.py:app vitals.csv --stream vitals --order-by seen --data ward.db --master spark://host:7077
    """
    import tidegate
    from tidegate.config import Config
    from tidegate.connectors.files.backfill import backfill as run
    from tidegate.connectors.files.backfill import check_asked
    from tidegate.errors import unknown
    from tidegate.loading import load_app
    from tidegate.streams.spark.session import spark_session

    Config(backend=backend)  # type: ignore[arg-type]  # before anything is started: does the backend exist?
    app = load_app(where)
    borders = {s.name: s.relation for s in app.streams.values() if s.border}
    if stream not in borders:
        raise unknown("backfill", "border stream", stream, borders)
    check_asked(files, borders[stream], order_by)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    began = time.perf_counter()
    with told.status("starting Spark"):
        spark = spark_session(master)
    with tidegate.open(app, data, backend=backend, spark=spark) as engine, _bar() as bar:
        task = bar.add_task(f"{stream}", total=None)
        done = run(
            engine,
            spark,
            stream,
            files,
            order_by=order_by,
            format=format,
            size=size,
            source=source,
            finish=finish,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        if data is None and not finish:
            finish_all(engine, asked=False)
    seconds = time.perf_counter() - began
    facts: dict[str, Any] = {**asdict(done), "seconds": round(seconds, 3), "master": str(spark.sparkContext.master)}
    if as_json:
        print_json(facts)
        return
    resumed = f", continuing at row {done.resumed_at:,}" if done.resumed_at else ""
    told.print(
        f"{done.fed:,} rows in {done.batches:,} batches to {stream} in {seconds:.1f} s{resumed}", highlight=False
    )


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=told, transient=True)
