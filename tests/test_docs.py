"""Every ``python`` block of the README and of docs/ runs: those of one page in order, as one script. Links lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
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


@cache
def anchors(page: Path) -> set[str]:
    """Where links into a page may lead: its headings, as code hosts name them. The second of the same name gets a number."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)", FENCED.sub("", page.read_text()), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(page: Path, text: str) -> list[str]:
    """Links of a page to files that are not there, or to headings that they do not have."""
    missing = []
    for link in LINK.findall(FENCED.sub("", text)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page, page.read_text())


def test_a_broken_link_would_be_noticed() -> None:
    page = ROOT / "README.md"
    fine = "[a](docs/tutorial.md) [b](docs/reference/windows.md#aggregates) [c](#see-it) [d](https://example.org/#x)"
    assert broken(page, f"{fine} [e](docs/gone.md) [f](docs/tutorial.md#gone) [g](#gone)") == [
        "docs/gone.md",
        "docs/tutorial.md#gone",
        "#gone",
    ]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    docs = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert {page for page in docs - listed if not page.startswith("decisions/")} == set()


def test_the_readme_example_is_short() -> None:
    first = BLOCK.search((ROOT / "README.md").read_text())
    assert first is not None
    assert len(first[1].splitlines()) < 30
