"""``tidegate demo``: the hospital, and the leaderboard."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.printing import Json, console, print_json

demo_app = typer.Typer(invoke_without_command=True)


@demo_app.callback()
def hospital(
    context: typer.Context,
    headless: Annotated[bool, typer.Option("--headless", help="No page: play to the end and print a table.")] = False,
    auto_doctor: Annotated[bool, typer.Option("--auto-doctor", help="A simulated doctor decides.")] = False,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds on the ward per second; 0: as fast as possible (default: 3 with the page, else 0)."
        ),
    ] = None,
    minutes: Annotated[float, typer.Option(min=1, help="How long the simulated shift is, on the ward.")] = 10,
    patients: Annotated[int, typer.Option(min=1, max=1000, help="Simulated patients.")] = 8,
    seed: Annotated[int, typer.Option(help="Which shift.")] = 2,
    data: Annotated[Path | None, typer.Option(help="A folder with recorded waveforms to play instead.")] = None,
    patient: Annotated[list[int] | None, typer.Option(help="Play only this patient's records (repeatable).")] = None,
    backend: Annotated[str, typer.Option(help="Where windows are evaluated: auto, local or spark.")] = "auto",
    without_transactions: Annotated[
        bool, typer.Option("--without-transactions", help="Count what goes wrong without each of the guarantees.")
    ] = False,
    host: Annotated[str, typer.Option(help="Where the page listens.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Its port; 0: any (default: 8090, or any when that is taken).")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """A hospital ward, live: waveforms raise alerts, doctors decide, one list of medications stays right.

    Example: tidegate demo

    Example: tidegate demo --headless --auto-doctor --minutes 20

    Example: tidegate demo --without-transactions

    Example: tidegate demo --data waveforms --patient 10013 --headless --auto-doctor

    Without a terminal (unless --port is given), or without the packages of the extra "server", it plays without a
    page, and a simulated doctor decides.
    """
    if context.invoked_subcommand is not None:
        return
    from tidegate.errors import TidegateError
    from tidegate.examples.mimic_alerts.demo import Options, run_headless

    if backend not in ("auto", "local", "spark"):
        raise TidegateError(f"--backend {backend}: use auto, local or spark")
    if patient and data is None:
        raise TidegateError("--patient chooses among recorded patients: give their folder with --data")
    if without_transactions:
        _contrast(seed, as_json)
        return
    watched = sys.stdout.isatty() or port is not None  # who names a port wants the page, wherever the output goes
    page = not headless and watched and find_spec("starlette") is not None and find_spec("uvicorn") is not None
    options = Options(
        minutes=minutes,
        patients=patients,
        seed=seed,
        speed=speed if speed is not None else (3.0 if page else 0.0),
        auto_doctor=auto_doctor or not (page or headless),
        data=data,
        only=tuple(patient or ()),
        backend=backend,
    )
    if page:
        from tidegate.examples.mimic_alerts.live import run_live

        found = run_live(options, console, host, port, not no_browser)
    else:
        found = run_headless(options, console, as_json)
    if as_json:
        print_json(found)
    if not found["safe"]:
        raise typer.Exit(1)
    if found.get("stopped"):
        raise typer.Exit(130)


def _contrast(seed: int, as_json: bool) -> None:
    from tidegate.examples.mimic_alerts.contrast import run_contrast

    found = run_contrast(5, 4, seed, console, as_json)
    if as_json:
        print_json(found)
    if not found["safe"]:
        raise typer.Exit(1)


@demo_app.command()
def leaderboard(
    votes: Annotated[int, typer.Option(min=1, help="Votes to cast.")] = 60_000,
    seed: Annotated[int, typer.Option(help="Which contest.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="How long to show it; 0 for as fast as possible.")] = 8.0,
    as_json: Json = False,
) -> None:
    """A singing contest, live: one vote is one nested transaction. Exit code 1: it did not end like the serial reference.

    Example: tidegate demo leaderboard --seconds 3
    """
    from rich.console import Console

    from tidegate.examples.leaderboard.demo import run

    same = run(votes, seed, 0.0 if as_json else seconds, Console(quiet=True) if as_json else console)
    if as_json:
        print_json({"votes": votes, "seed": seed, "equals_reference": same})
    if not same:
        raise typer.Exit(1)
