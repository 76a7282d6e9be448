"""``tidegate new``: a project to start from."""

from __future__ import annotations

import json
import re
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from tidegate.cli.printing import Json, console, print_json
from tidegate.errors import TidegateError

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
FILES = {
    "app.py.in": "app.py",
    "test_app.py.in": "test_app.py",
    "Makefile.in": "Makefile",
    "README.md.in": "README.md",
    "Dockerfile.in": "Dockerfile",
    "requirements.txt.in": "requirements.txt",
    "gitignore.in": ".gitignore",
}


def new(
    name: Annotated[str, typer.Argument(help="Its name, and that of its folder.")],
    parent: Annotated[Path, typer.Option("--in", help="Where to make the folder.")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a project: an app, its tests, a data folder, a Makefile, a README and a Dockerfile.

    Example: tidegate new shop && cd shop && make test
    """
    folder = parent / name
    if not NAME.fullmatch(name):
        raise TidegateError(
            f"a project's name has small letters, digits, - and _, beginning with a letter; got {name!r}"
        )
    if folder.exists():
        raise TidegateError(f"{folder} exists already; choose another name, or remove it first", path=folder)
    try:
        write_project(folder, name)
    except OSError as error:
        raise TidegateError(
            f"can't write {folder}: {error.strerror}; choose another place with --in", path=folder
        ) from None
    if as_json:
        print_json({"project": str(folder), "files": sorted(FILES.values())})
        return
    console.print(f"[bold]{folder}[/] is ready:", highlight=False)
    console.print(
        f"  cd {folder}\n  make test     the tests\n  make serve    at http://127.0.0.1:8080", highlight=False
    )


def write_project(folder: Path, name: str) -> None:
    """Write the files of a new project into ``folder``, which does not exist yet."""
    templates = files("tidegate.cli.project")
    (folder / "data").mkdir(parents=True)
    (folder / "data" / ".gitkeep").touch()
    for template, target in FILES.items():
        text = templates.joinpath(template).read_text(encoding="utf-8")
        (folder / target).write_text(Template(text).substitute(name=name, requirement=requirement()), encoding="utf-8")


def requirement() -> str:
    """How pip gets the tidegate that runs here: from where it was installed, or by its version."""
    found = distribution("tidegate")
    source = json.loads(found.read_text("direct_url.json") or "{}").get("url")
    return f"tidegate[server]=={found.version}" if source is None else f"tidegate[server] @ {source}"
