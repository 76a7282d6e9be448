"""The report: what was measured, as tables and plots."""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.benchmarks.report import SECTIONS, write
from tidegate.cli.main import bench


def test_every_section_is_a_command() -> None:
    commands = {command.name for command in bench.registered_commands}
    assert {section.arguments[0] for section in SECTIONS} <= commands


def test_plain_values_and_groups_become_tables(tmp_path: Path) -> None:
    facts = {
        "votes_per_s": 40_000, "feed_votes_per_s": 41_000, "dicts_votes_per_s": 1_000_000, "correct": True, "commit": "abc",
        "peers": {
            "sqlite": {"votes_per_s": 7_000, "correct": True, "guarantees": {"atomic": "each vote"}},
            "redis": {"skipped": "there is no redis-server | here"},
        },
    }  # fmt: skip
    (tmp_path / "leaderboard.json").write_text(json.dumps(facts))
    text = write(tmp_path).read_text()
    assert "| votes_per_s | 40,000 |" in text
    assert "| sqlite | 7,000 | yes | atomic: each vote |  |" in text
    assert "there is no redis-server / here" in text
    assert "commit abc" in text
