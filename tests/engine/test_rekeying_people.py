"""People who are asked behind an interior stream with its own key: one question for each key, and answers before questions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.errors import BatchError, NotAsked
from tidegate.offline.verify import verify

Make = Callable[..., Engine]


def asking(recovery: Any = "weak") -> App:
    """lines → words by word → (ask, decide) → counts: each word of a line is counted if somebody says so."""
    app = App("asking", recovery=recovery)
    app.table("CREATE TABLE counts (word VARCHAR PRIMARY KEY, n INTEGER NOT NULL)", partition_by="word")
    app.stream("lines", "line VARCHAR NOT NULL", border=True)
    app.stream("words", "word VARCHAR NOT NULL", key="word")
    app.stream("asked", "word VARCHAR NOT NULL, n INTEGER NOT NULL")
    app.stream(
        "answers",
        "word VARCHAR NOT NULL, yes BOOLEAN NOT NULL",
        border=True,
        key="word",
        deadline_s=3600,
        default={"yes": False},
    )

    @app.procedure(inputs="lines", outputs="words")
    def split(txn: Transaction, lines: Batch) -> None:
        txn.emit("words", [(word,) for row in lines for word in row.line.split()])

    @app.procedure(inputs="words", outputs="asked")
    def ask(txn: Transaction, words: Batch) -> None:
        txn.emit("asked", [(txn.key, len(words))])

    @app.procedure(inputs=["asked", "answers"], writes=[partition("counts")])
    def decide(txn: Transaction, asked: Batch, answers: Batch) -> None:
        if answers[0].yes:
            row = txn.get("counts", txn.key)
            txn.upsert("counts", (txn.key, asked[0].n + (row.n if row else 0)))

    app.nested(ask, decide)
    return app


def counts(engine: Engine) -> dict[str, int]:
    return {row.word: row.n for row in engine.query("SELECT * FROM counts ORDER BY word")}


def asked(engine: Engine) -> list[tuple[str, int]]:
    return sorted((question.key, question.batch_id) for question in engine.questions())


def test_each_key_has_its_own_question(engine_of: Make) -> None:
    engine = engine_of(asking())
    engine.push("lines", [("a b a",)])
    engine.push("lines", [("b c",)])
    engine.run_until_idle()
    assert asked(engine) == [
        ("a", 1),
        ("b", 1),
        ("c", 2),
    ]  # that of b in the second line comes when its first one is settled
    for question in engine.questions():
        engine.answer(question, yes=True).result()
    assert counts(engine) == {"a": 2, "b": 1, "c": 1}
    assert asked(engine) == [("b", 2)]
    engine.push("answers", [("b", False)], 2).result()
    assert counts(engine) == {"a": 2, "b": 1, "c": 1}
    assert engine.scheduler.idle


def test_an_answer_may_come_before_anybody_knows_that_its_key_occurs(engine_of: Make) -> None:
    engine = engine_of(asking())
    engine.push("answers", [("a", True)], 2)  # its own number is 1, so that the next line has number 2
    engine.push("lines", [("a b",)])
    engine.run_until_idle()
    assert counts(engine) == {"a": 1}
    assert asked(engine) == [("b", 2)]
    assert engine.push("answers", [("a", True)], 2).duplicate
    with pytest.raises(BatchError):
        engine.push("answers", [("a", False)], 2)
    engine.answer(engine.questions()[0], yes=True).result()
    assert counts(engine) == {"a": 1, "b": 1}


def test_an_answer_comes_while_the_keys_are_unknown(open_engine: Make) -> None:
    """The line is accepted and has not run: its execution behind the words stands for all keys."""
    engine = open_engine(asking(), executor="manual")
    engine.push("lines", [("a b",)], 7)
    (_, whole) = engine.scheduler.waiting()
    assert whole.parts is not None
    engine.push("answers", [("b", True)], 1)
    engine.push("answers", [("d", True)], 1)  # a word that never comes
    with pytest.raises(NotAsked, match=r"Open there: none"):
        engine.push("answers", [("a", True)], 1, digest="0" * 16)
    engine.run_until_idle()
    assert asked(engine) == [("a", 1)]
    assert counts(engine) == {"b": 1}
    engine.push("lines", [("d b",)], 8)  # the answer for d was for number 1, which had none
    engine.run_until_idle()
    assert [key for key, _ in asked(engine)] == ["a", "b", "d"]
    for question in engine.questions():
        engine.answer(question, yes=True)
    engine.run_until_idle()
    assert counts(engine) == {"a": 1, "b": 2, "d": 1}
    assert engine.scheduler.idle
    assert engine.scheduler.early == {}


@pytest.mark.parametrize("recovery", ["weak", "strong", "effects"])
@pytest.mark.parametrize("ending", ["close", "merge and kill", "kill"])
def test_an_early_answer_survives_a_restart(
    recovery: Any, ending: str, tmp_path: Path, open_engine: Make, killed: Callable[[Engine], None]
) -> None:
    app = asking(recovery)
    engine = open_engine(app, tmp_path / "db", merge_every_s=3600.0)
    engine.push("answers", [("a", True)], 3)
    engine.push("lines", [("c",)])
    if ending == "close":
        engine.close()
    else:
        if ending == "merge and kill":
            engine.checkpoint()
        killed(engine)
    engine = open_engine(app, tmp_path / "db")
    assert asked(engine) == [("c", 2)]
    engine.push("lines", [("a b a",)])
    assert counts(engine) == {"a": 2}
    assert asked(engine) == [("b", 3), ("c", 2)]
    engine.close()
    assert verify(app, tmp_path / "db").differences == []
