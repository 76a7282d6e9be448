"""Every ``python`` block of the README and of docs/ runs: all blocks of one page in order, as one script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUNNABLE = [page for page in PAGES if BLOCK.search(page.read_text())]


def needs_spark(page: Path) -> bool:
    return any(
        word in block for block in BLOCK.findall(page.read_text()) for word in ("spark_session", 'backend="spark"')
    )


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.xdist_group("spark")] if needs_spark(page) else []) for page in RUNNABLE],
    ids=[name_of(page) for page in RUNNABLE],
)
def test_blocks_run_as_one_script(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if needs_spark(page):
        request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    scope: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        above = "\n" * text.count("\n", 0, block.start(1))  # so that a traceback names the line of the page
        code = compile(above + block[1], str(page), "exec")
        exec(code, scope)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{name_of(page)} links to {', '.join(missing)}"


def test_the_readme_example_is_short() -> None:
    first = BLOCK.search((ROOT / "README.md").read_text())
    assert first is not None
    assert len(first[1].splitlines()) < 30
