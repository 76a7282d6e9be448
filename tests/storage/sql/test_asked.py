"""What asks for a partition that is not named is refused, on every path; what does not is answered as if there were no other."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from stores import Store

from tidegate.errors import AccessError

DDL = (
    """CREATE TABLE t (p INTEGER, id INTEGER, v INTEGER, PRIMARY KEY (p, id));
    CREATE INDEX by_v ON t (v); CREATE INDEX by_p ON t (p)""",
    "CREATE TABLE o (p INTEGER, id INTEGER, v INTEGER, PRIMARY KEY (p, id))",
)
MINE = (1, 2)
OTHERS = (3, 4)
BATCH = "p INTEGER, q INTEGER, n INTEGER"


class World:
    """The same rows of one's own partitions, beside more or fewer rows of others."""

    def __init__(self, others: int, whole: bool = False) -> None:
        self.store = Store(*DDL, partition_by=("p",))
        self.relation = self.store.relation("b", BATCH)
        self.whole = whole
        view = self.store.view()
        for p in MINE:
            for i in range(4):
                view.insert("t", (p, i, p * 10 + i))
        for i in range(others):
            view.insert("t", (OTHERS[i % 2], i, 10 + i))
        self.store.commit(view)

    def outcome(self, sql: str, given: Any, batch: Any, compiled: bool = True) -> Any:
        """The rows and the writes, or that it is refused."""
        view = self.store.view(position=1_000, by_key=None if self.whole else MINE)
        view.relations = {"b": (self.relation, tuple(self.relation.conform_all(batch)))}
        try:
            found = self.store.prepare(sql, compiled).run(view, given)
        except AccessError as error:
            return f"refused: {str(error).partition('but ')[2].partition(' ')[0] in ('asked', 'touched')}"
        return [tuple(row) for row in found], found.count, view.writes


@pytest.fixture(scope="module")
def worlds() -> Any:
    made = World(0), World(9), World(0, whole=True)
    yield made
    for world in made:
        world.store.close()


class Dice(random.Random):
    """Random conditions: texts, with the partitions that they ask for added to ``asked``."""

    def begin(self) -> None:
        self.asked: set[int] = set()
        self.given: dict[str, Any] = {}

    def part(self) -> int:
        found = self.choice((1, 1, 1, 2, 2, 3, 4, 7))
        self.asked.add(found)
        return found

    def value(self, value: Any) -> str:
        """A literal or a parameter."""
        if not isinstance(value, list) and self.random() < 0.5:
            return "NULL" if value is None else str(value)
        name = f"g{len(self.given)}"
        self.given[name] = value
        return f"${name}"

    def fixing(self, p: str) -> str:
        parts = [self.part() for _ in range(self.randrange(1, 3))]
        first, listed = self.value(parts[0]), ", ".join(self.value(part) for part in parts)
        if self.random() < 0.4:
            self.asked.difference_update(set(parts[1:]) - {parts[0]})
            return self.choice(
                (f"{p} = {first}", f"{first} = {p}", f"({p}) IS NOT DISTINCT FROM {first}", f"({p}, 1) = ({first}, 1)")
            )
        array = self.value(list(parts))
        return self.choice(
            (
                f"{p} IN ({listed})",
                f"{p} IN {array}",
                f"{p} = ANY({array})",
                f"list_contains({array}, {p})",
                f"{p} IN (SELECT unnest({array}))",
                "(" + " OR ".join(f"{p} = {self.value(part)}" for part in parts) + ")",
            )
        )

    def other(self, t: str) -> str:
        """A condition that fixes nothing."""
        n = self.value(self.randrange(25))
        return self.choice(
            (
                f"{t}v = {n}",
                f"{t}v > {n}",
                f"{t}id = {self.value(self.randrange(5))}",
                f"{t}v BETWEEN 11 AND {n}",
                f"{t}p <> {self.value(3)}",
                f"{t}p > {self.value(1)}",
                f"({t}p = {self.value(3)} OR {t}v = {n})",
                f"{t}id < {t}v",
                f"{t}p IN ({t}id, {n})",
                f"NOT ({t}p = {self.value(3)})",
            )
        )

    def conditions(self, t: str = "") -> str:
        parts = [self.other(t) for _ in range(self.randrange(3))]
        if self.random() < 0.6:
            parts.append(self.fixing(f"{t}p"))
        self.shuffle(parts)
        return " AND ".join(parts) or "true"

    def batch(self) -> list[tuple[Any, ...]]:
        return [
            (self.choice((1, 2, None)), self.choice((1, 2, 2, 3, None)), self.randrange(3))
            for _ in range(self.randrange(4))
        ]


def statement(dice: Dice, batch: list[tuple[Any, ...]]) -> str:
    kind = dice.randrange(14)
    if kind >= 11:  # joined with the batch, which alone says what is asked for
        place, column = dice.choice(((0, "p"), (1, "q")))
        limit = dice.choice((None, 0, 1))
        dice.asked |= {row[place] for row in batch if limit is None or row[2] <= limit} - {None}
        where = "true" if limit is None else f"b.n <= {dice.value(limit)}"
        return dice.choice(
            (
                f"SELECT b.n, t.v FROM b JOIN t ON t.p = b.{column} AND t.id = b.n WHERE {where}",
                f"SELECT b.n, t.v FROM b LEFT JOIN t ON t.p = b.{column} AND t.id = b.n WHERE {where}",
                f"SELECT sum(t.v) FROM t, b WHERE b.{column} = t.p AND {where}",
                f"UPDATE t SET v = b.n FROM b WHERE t.p = b.{column} AND {where}",
                f"INSERT INTO o SELECT t.p, t.id, max(t.v) FROM t JOIN b ON b.{column} = t.p AND {where} GROUP BY ALL",
                f"DELETE FROM t USING b WHERE t.p = b.{column} AND {where}",
            )
        )
    if kind == 10:
        dice.asked |= {row[1] for row in batch} - {None}
        return "SELECT id, v FROM t WHERE p IN (SELECT q FROM b)"
    if kind == 9:
        return f"SELECT l.v, r.v FROM t AS l JOIN t AS r ON l.p = r.p AND l.id = r.id WHERE {dice.conditions('r.')}"
    if kind == 8:
        return f"SELECT count(*) FROM t AS l JOIN t AS r USING (p) WHERE {dice.conditions('l.')}"
    where = dice.conditions()
    return (
        f"SELECT p, id, v FROM t WHERE {where}",
        f"SELECT sum(v), count(*) FROM t WHERE {where}",
        f"SELECT v FROM t WHERE {where} ORDER BY v LIMIT 3",
        f"WITH x AS (SELECT * FROM t WHERE {where}) SELECT count(*) FROM x",
        f"WITH x AS (SELECT id, p, v FROM t) SELECT id, v FROM x WHERE {where}",
        f"UPDATE t SET v = v + 1 WHERE {where} RETURNING id, v",
        f"DELETE FROM t WHERE {where}",
        f"INSERT INTO o SELECT p, id, v + 1 FROM t WHERE {where}",
    )[kind]


def check(worlds: Any, seed: int) -> str:
    """Refused exactly if it asks for another partition, whatever that holds; else answered from one's own rows."""
    dice = Dice(seed)
    dice.begin()
    batch = dice.batch()
    sql = statement(dice, batch)
    given = {name: dice.given[name] for name in re.findall(r"\$(g\d+)", sql)}
    few, many, alone = worlds
    wanted = "refused: True" if dice.asked - set(MINE) else alone.outcome(sql, given, batch)
    for world in (few, many):
        for compiled in (True, False):
            found = world.outcome(sql, given, batch, compiled)
            assert found == wanted, (seed, sql, given, batch, "compiled" if compiled else "DuckDB")
    return "refused" if wanted == "refused: True" else "answered"


def test_refused_exactly_if_another_partition_is_asked_for(worlds: Any) -> None:
    outcomes = [check(worlds, seed) for seed in range(100)]
    assert min(outcomes.count("refused"), outcomes.count("answered")) > 12


@pytest.mark.slow
def test_refused_exactly_if_another_partition_is_asked_for_many_times(worlds: Any) -> None:
    for seed in range(10_000, 12_000):
        check(worlds, seed)


# ---- values and forms


def asking(ddl: str, by: tuple[str, ...], mine: Any, sql: str, *given: Any) -> list[str]:
    """What comes of a statement by row access and by DuckDB."""
    store = Store(ddl, partition_by=by)
    found = []
    for compiled in (True, False):
        try:
            found.append(str(list(store.prepare(sql, compiled).run(store.view(by_key=mine), given))))
        except AccessError as error:
            found.append(str(error).partition("asked for rows with ")[2].partition(";")[0])
    store.close()
    return found


@pytest.mark.parametrize(
    ("kind", "mine", "sql", "given", "told"),
    [
        ("INTEGER", 1, "p = ?", 3.0, "p = 3"),
        ("INTEGER", 1, "p = ?", 1.0, "[]"),
        ("INTEGER", 1, "p = ?", 3.5, "[]"),  # no row has it
        ("INTEGER", 1, "p = ?", Decimal(3), "p = 3"),
        ("INTEGER", 1, "p = ?", np.int64(3), "p = 3"),
        ("INTEGER", 1, "p = ?", None, "[]"),
        ("INTEGER", 1, "p = ? + 2", 1, "p = 3"),
        ("INTEGER", 1, "p = 3.0 AND ? IS NULL", None, "p = 3"),
        ("INTEGER", 1, "p = CAST(? AS INTEGER)", 3, "p = 3"),
        ("BIGINT", 2**40, "p IN ?", [2**40, 2**41], f"p = {2**41}"),
        ("VARCHAR", "a", "p = ?", "b", "p = 'b'"),
        ("VARCHAR", "a", "p = ANY(?)", ["a", "b"], "p = 'b'"),
        ("DATE", dt.date(2024, 1, 1), "p = DATE '2024-01-02' AND ? IS NULL", None, "p = datetime.date(2024, 1, 2)"),
        ("DATE", dt.date(2024, 1, 1), "p = ?", dt.date(2024, 1, 3), "p = datetime.date(2024, 1, 3)"),
        ("DECIMAL(9, 2)", Decimal("1.50"), "p = ?", Decimal("1.5"), "[]"),
        ("DECIMAL(9, 2)", Decimal("1.50"), "p = ?", Decimal("2.5"), "p = Decimal('2.50')"),
    ],
)
def test_values_of_every_type(kind: str, mine: Any, sql: str, given: Any, told: str) -> None:
    ddl = f"CREATE TABLE t (p {kind}, id INTEGER, PRIMARY KEY (p, id)); CREATE INDEX by_p ON t (p)"
    assert asking(ddl, ("p",), (mine,), f"SELECT id FROM t WHERE {sql}", given) == [told] * 2


@pytest.mark.parametrize(
    ("sql", "given", "told"),
    [
        ("a = ? AND b = ?", (1, "x"), "[]"),
        ("a = ? AND b = ?", (1, "y"), "a = 1 and b = 'y'"),
        ("a = ?", (1,), "[]"),  # of one column: some named partition has it
        ("a = ?", (3,), "a = 3"),
        ("b IN ('x', 'z')", (), "b = 'z'"),
        ("(a, b) = (?, 'y')", (1,), "a = 1 and b = 'y'"),
        ("a = 1 OR b = 'z'", (), "[]"),
    ],
)
def test_tables_with_several_partition_columns(sql: str, given: Any, told: str) -> None:
    ddl = "CREATE TABLE t (a INTEGER, b VARCHAR, id INTEGER, PRIMARY KEY (a, b, id)); CREATE INDEX by_a ON t (a)"
    mine = {(1, "x"): None, (2, "y"): None}
    assert asking(ddl, ("a", "b"), mine, f"SELECT id FROM t WHERE {sql}", *given) == [told] * 2


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("t LEFT JOIN b ON t.p = 3", "answered"),  # rows of every partition come, with or without a match
        ("b LEFT JOIN t ON t.p = 3", "refused"),
        ("b RIGHT JOIN t ON t.p = 3", "answered"),
        ("t RIGHT JOIN b ON t.p = 3", "refused"),
        ("t FULL JOIN b ON t.p = 3", "answered"),
        ("b ANTI JOIN t ON t.p = 3", "refused"),
        ("t ANTI JOIN b ON t.p = 3", "answered"),
        ("t SEMI JOIN b ON t.p = 3", "refused"),
        ("t LEFT JOIN b ON true WHERE t.p = 3", "refused"),
        ("b JOIN t USING (p)", "refused"),
        ("b JOIN (SELECT * FROM t) AS t ON t.p = b.p", "refused"),
        ("b JOIN (SELECT p + 1 AS p FROM t) AS t ON t.p = b.p", "answered"),  # another column
        ("(SELECT v, p AS site FROM t WHERE id > 1) AS s WHERE site = 3", "refused"),
        ("(SELECT v AS p, p AS v FROM t) AS s WHERE p = 3", "answered"),
        ("(SELECT p, sum(v) AS v FROM t GROUP BY p) AS s WHERE s.p IN (1, 3)", "refused"),
        ("(SELECT * FROM (SELECT t.* FROM t) AS i, b) AS s WHERE s.id = 3 AND s.q < 3", "answered"),
        ("(SELECT id, v, p FROM t UNION ALL SELECT n, q, p FROM b) AS s WHERE s.p = 3", "refused"),
        ("(SELECT n, q, p FROM b UNION ALL SELECT id, p, v FROM t) AS s WHERE s.q = 3", "refused"),
        ("(SELECT n, q, p FROM b UNION ALL SELECT id, p, v FROM t) AS s WHERE s.p = 3", "answered"),
        ("(WITH w AS (SELECT * FROM t) SELECT * FROM w) AS s WHERE s.p = 3", "refused"),
        ("(WITH t AS (SELECT 3 AS p) SELECT * FROM t) AS s WHERE s.p = 3", "answered"),
        ("b, LATERAL (SELECT * FROM t WHERE t.p = 3)", "refused"),
    ],
)
def test_joins(source: str, told: str) -> None:
    store = Store(*DDL, partition_by=("p",))
    relation = store.relation("b", BATCH)
    view = store.view(by_key=MINE)
    view.relations = {"b": (relation, tuple(relation.conform_all([(1, 3, 0), (3, 1, 0)])))}
    found = "answered"
    try:
        store.run(f"SELECT count(*) FROM {source}", view=view)
    except AccessError:
        found = "refused"
    store.close()
    assert found == told


def test_row_access_with_conditions() -> None:
    store = World(4).store
    for use in (
        lambda view: view.scan("t", p=3),
        lambda view: view.scan("t", v=30, p=3),
        lambda view: view.count("t", p=3),
        lambda view: view.count("t", p=3, v=30),
        lambda view: view.delete_where("t", p=3),
    ):
        with pytest.raises(
            AccessError, match=re.escape("works on partitions (1,), (2,) of t (p), but asked for rows with p = 3")
        ):
            use(store.view(by_key=MINE))
    view = store.view(by_key=MINE)
    assert (len(view.scan("t", p=2)), view.count("t", p=1), view.scan("t", p=None)) == (4, 4, [])
    assert (view.scan("t", id=0, v=30), view.count("t", id=0)) == ([], 2)  # no more rows than those
    store.close()


def test_the_error_shows_the_statement_and_explain_says_what_is_seen() -> None:
    store = World(4).store
    statement = store.prepare("SELECT sum(v) FROM t WHERE p = 3")
    with pytest.raises(AccessError, match=r"(?s)asked for rows with p = 3; name its partition too.*SELECT sum"):
        statement.run(store.view(by_key=MINE))
    told = "restricted to the partitions of t named by its procedure, if it names any"
    assert f"reads t; {told}: another one that it asks for is refused)" in statement.explain()
    assert store.prepare("SELECT sum(v) FROM t").explain().endswith(f"reads t; {told})")
    store.close()
