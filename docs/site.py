"""Hooks of mkdocs: what the site needs and the repository has elsewhere, or says already.

Pages at the top of the repository become pages of the site, with their links turned. The decisions get an index, and the
public names a page made of their docstrings, with the members that reference/api.md lists.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
ABOVE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "LICENSE",
    "server/console/icon.svg": "img/icon.svg",
}


def on_config(config: Any) -> None:
    """A folder in the navigation stands for its pages."""
    for entry in config.nav:
        for title, target in entry.items():
            if isinstance(target, str) and target.endswith("/"):
                entry[title] = [f"{target}index.md", *(f"{target}{page.name}" for page in pages(target))]


def on_files(files: Files, config: Any) -> None:
    for name, target in ABOVE.items():
        files.append(File.generated(config, target, content=turned((ROOT / name).read_text())))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    files.append(File.generated(config, "reference/docstrings.md", content=docstrings()))


def pages(folder: str) -> list[Path]:
    return sorted((DOCS / folder).glob("*.md"))


def turned(text: str) -> str:
    """Links from the top of the repository, as links from the top of the site."""

    def turn(link: re.Match[str]) -> str:
        path, mark, anchor = link[1].partition("#")
        path = ABOVE.get(path, path.removeprefix("docs/"))
        return f"]({path + '/index.md' if (DOCS / path).is_dir() and path else path}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s:]+)\)", turn, text)


def decisions() -> str:
    titles = ((page.name, page.read_text().splitlines()[0].removeprefix("# ")) for page in pages("decisions"))
    listed = "\n".join(f"- [{title}]({name})" for name, title in titles)
    return f"# Decisions\n\nChoices that someone will question: context, decision, consequences.\n\n{listed}\n"


def docstrings() -> str:
    """The public names, first those that api.md has a heading for."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "tidegate" / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    sections = re.split(r"^## ", (DOCS / "reference" / "api.md").read_text(), flags=re.MULTILINE)
    members: dict[str, list[str]] = {}
    for section in sections[1:]:
        heading, _, body = section.partition("\n")
        columns = (
            re.findall(r"^\| (`.*?) \| ", body, re.MULTILINE) if re.search(r"^\| m(ethod|ember) ", body, re.M) else []
        )
        for name in re.findall(r"`(?:tidegate\.)?(\w+)", heading):
            members[name] = [m for column in columns for m in re.findall(r"`(\w+)[(`]", column)]
    ordered = [name for name in members if name in names] + [name for name in names if name not in members]
    blocks = [f"::: tidegate.{name}\n    options:\n      members: {members.get(name, [])}" for name in ordered]
    return "\n\n".join(["# API from docstrings", "The same as the [API reference](api.md), at length.", *blocks])
