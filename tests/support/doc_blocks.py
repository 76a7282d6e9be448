"""The examples of docs/ that need something from outside: fenced blocks with a word behind their language."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def block(page: str, fence: str) -> str:
    """The one block of a page under this fence (``python kafka``, ``toml``), at the line where it stands."""
    text = (DOCS / page).read_text()
    (found,) = re.finditer(rf"^```{re.escape(fence)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n" * text.count("\n", 0, found.start(1)) + found[1]


def run(page: str, fence: str, *replaced: tuple[str, str]) -> None:
    """Run it as a reader would after the page's first block, with other addresses."""
    code = block(page, fence)
    for was, now in replaced:
        assert was in code, was
        code = code.replace(was, now)
    scope: dict[str, object] = {"__name__": "__main__"}
    exec("from pathlib import Path\nimport tidegate\nfrom tidegate import App", scope)
    exec(compile(code, str(DOCS / page), "exec"), scope)
