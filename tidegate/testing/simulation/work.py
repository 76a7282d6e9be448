"""What simulated procedures do: every operation, and what is folded into the number that decides the rest."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from tidegate.errors import AccessError, ConstraintError
from tidegate.streams.windows.patterns.matches import PatternSlide
from tidegate.streams.windows.state.tuples import TupleSlide
from tidegate.testing.simulation.specs import COLUMN, IDS, KEYS, TAGS, Access, Op, ProcedureSpec, Rows, Simulated
from tidegate.testing.simulation.world import EXPIRING, PARTITIONED, SIDES
from tidegate.txn.transaction import Transaction

FINDS = ("scan", "find", "count", "delete_where", "sql_read", "sql_write")  # they need no key

READ_SQL = (
    "SELECT v, d FROM {table} WHERE id = $i",
    "SELECT id, v FROM {table} WHERE tag = $t ORDER BY id DESC",
    "SELECT sum(d), count(*), max(v) FROM {table}",
    "SELECT tag, sum(d * v) FROM {table} WHERE v > $n GROUP BY tag",
    "SELECT id, tag FROM {table} WHERE tag >= $t ORDER BY tag DESC LIMIT 3",
)
WRITE_SQL = (
    "UPDATE {table} SET v = v + $n WHERE id = $i AND v < 100000",
    "UPDATE {table} SET d = d * 1.1 WHERE tag = $t",
    "DELETE FROM {table} WHERE id = $i",
    "DELETE FROM {table} WHERE v % 5 = $t",
    "DELETE FROM {table} WHERE tag < $t",
    "UPDATE {table} SET v = v + 7 WHERE tag BETWEEN $t AND 2",
    "UPDATE {table} SET d = (SELECT sum(d) FROM {table}) / 3 WHERE v % 3 = 0",
)


class Work:
    """One running procedure: the number everything is folded into, and the operations."""

    def __init__(
        self, spec: ProcedureSpec, txn: Transaction, seen: Any, key: Any, simulated: Simulated, rows: Rows
    ) -> None:
        self.spec = spec
        self.txn = txn
        self.key = key
        self.simulated = simulated
        self.number = crc32(repr((spec.name, txn.batch_id, key, seen)).encode())
        self.how = {access.table: access.how for access in spec.access}
        self.mine = {access.table: self._named(access, rows) for access in spec.access if access.how == "named"}

    def _named(self, access: Access, rows: Rows) -> list[Any]:
        """The partitions that it may touch, worked out from its own rows where they name them."""
        if any("." in name for name in access.by):
            return sorted(self.txn.partitions[access.table])
        values = {self.key if name == "" else row[COLUMN[name]] for name in access.by for row in rows}
        return sorted(value for value in values if value is not None)

    def fold(self, seen: Any) -> int:
        """Fold in what was seen; returns the new number."""
        self.number = crc32(repr(seen).encode(), self.number)
        return self.number

    def run(self) -> int:
        for op in self.spec.ops:
            if self.how.get(op.table) == "named":
                self._check_refused(op.table)
                if not self.mine[op.table] and op.kind not in FINDS:
                    continue
            getattr(self, f"do_{op.kind}")(op)
        return self.number

    def _check_refused(self, table: str) -> None:
        """A partition that is not named is out of reach."""
        allowed = self.txn.partitions[table]  # in a nested transaction, those that other members name too
        other = next((k for k in range(KEYS) if k not in allowed), None)
        if other is not None:
            try:
                self.txn.get(table, (other, 0))
            except AccessError:
                return
            raise AssertionError(f"{self.spec.name} read partition {other} of {table}, but was to work on {allowed}")

    def key_of(self, table: str) -> Any:
        number = self.fold(table)
        if table not in PARTITIONED:
            return number % IDS
        if self.how[table] == "named":
            return (self.mine[table][number % len(self.mine[table])], number // 8 % IDS)
        return (self.key if self.how[table] == "partition" else number % KEYS, number // 8 % IDS)

    def row_of(self, table: str) -> tuple[Any, ...]:
        key = self.key_of(table)
        number = self.fold("row")
        tag = number // 16 % (TAGS + 1)
        values: tuple[Any, ...] = (number % 1000, number % 97 / 10, tag if tag < TAGS else None)
        if table in EXPIRING:
            values += (self.txn.now if number % 7 else None,)
        return (*key, *values) if isinstance(key, tuple) else (key, *values)

    def do_get(self, op: Op) -> None:
        self.fold(_plain(self.txn.get(op.table, self.key_of(op.table))))

    def do_scan(self, op: Op) -> None:
        self.fold([tuple(row) for row in self.txn.scan(op.table)])

    def do_find(self, op: Op) -> None:
        self.fold([tuple(row) for row in self.txn.scan(op.table, tag=self.number % TAGS)])

    def do_count(self, op: Op) -> None:
        self.fold(self.txn.count(op.table, tag=self.number % TAGS))

    def do_upsert(self, op: Op) -> None:
        self.txn.upsert(op.table, self.row_of(op.table))

    def do_insert(self, op: Op) -> None:
        self.txn.insert(op.table, self.row_of(op.table))

    def do_try_insert(self, op: Op) -> None:
        try:
            self.txn.insert(op.table, self.row_of(op.table))
        except ConstraintError as error:
            self.fold(str(error))

    def do_update(self, op: Op) -> None:
        key = self.key_of(op.table)
        self.fold(_plain(self.txn.update(op.table, key, v=self.number % 1000, d=self.number % 89 / 10)))

    def do_add(self, op: Op) -> None:
        key = self.key_of(op.table)
        row = self.txn.get(op.table, key)
        if row is not None:
            self.txn.update(op.table, key, v=(row.v * 3 + self.number) % 1000)

    def do_delete(self, op: Op) -> None:
        self.fold(self.txn.delete(op.table, self.key_of(op.table)))

    def do_delete_where(self, op: Op) -> None:
        self.fold(self.txn.delete_where(op.table, tag=self.number % TAGS))

    def do_update_each(self, op: Op) -> None:
        """As ``add``, for a few keys, perhaps one of them twice."""
        keys = [self.key_of(op.table) for _ in range(self.number % 5)]
        made = self.txn.update_each(op.table, keys, v=lambda row: (row.v * 3 + 1) % 1000, d=self.number % 83 / 10)
        self.fold([tuple(row) for row in made])

    def do_move(self, op: Op) -> None:
        """Keep both sides equal."""
        key, value = self.number % IDS, self.number % 1000
        for side in SIDES:
            self.fold(_plain(self.txn.get(side, key)))
            self.txn.upsert(side, (key, value))

    def do_audit(self, op: Op) -> None:
        """A committed read may see any consistent state, so its result must not be folded in."""
        left, right = ([tuple(row) for row in self.txn.scan(side)] for side in SIDES)
        if left != right:
            raise AssertionError(f"a committed read saw two sides of different transactions: {left} and {right}")

    def do_sql_read(self, op: Op) -> None:
        self._sql(READ_SQL[op.number % len(READ_SQL)], op.table)

    def do_sql_write(self, op: Op) -> None:
        self._sql((*READ_SQL, *WRITE_SQL, *WRITE_SQL)[op.number % (len(READ_SQL) + 2 * len(WRITE_SQL))], op.table)

    def _sql(self, text: str, table: str) -> None:
        number = self.fold(text)
        values = {"i": number % IDS, "t": number // 8 % TAGS, "n": number // 64 % 100}
        named = {name: value for name, value in values.items() if f"${name}" in text}
        rows = self.txn.execute(text.format(table=table), **named)
        self.fold(([tuple(row) for row in rows], rows.count))

    def do_window(self, op: Op) -> None:
        slide = self.txn.window("win")
        if isinstance(slide, PatternSlide):
            told = [[tuple(row) for row in one.rows] for one in (*slide.matches, *slide.timed_out)]
            self.fold((told, [tuple(row) for row in slide.results or ()]))
        elif slide.results is not None:
            self.fold([tuple(row) for row in slide.results])
        elif isinstance(slide, TupleSlide):
            extents = [[tuple(row) for row in slide.extent(number)] for number in slide.fired]
            self.fold((extents, [tuple(row) for row in slide.rows], [tuple(row) for row in slide.expired]))
        else:
            self.fold([(e.number, e.key, e.start, e.end, [tuple(row) for row in e.rows]) for e in slide.windows])

    def do_after(self, op: Op) -> None:
        """Set timers, due within so many seconds, and cancel some of them."""
        number = self.fold("after")
        for i in range(number % 3):
            row = with_j(number // (3 + i) % KEYS, number // (5 + i) % 1000)
            timer = self.txn.after(f"{number // (7 + i) % op.number}s", self.spec.timers[0], row)
            if self.fold(timer) % 4 == 0:
                self.txn.cancel(timer)

    def do_chance(self, op: Op) -> None:
        self.fold((self.txn.random.random(), self.txn.uuid()))

    def do_now(self, op: Op) -> None:
        self.fold(self.txn.now)

    def do_abort(self, op: Op) -> None:
        if self.number % op.number == 0:
            self.txn.abort(f"number {self.number}")

    def do_raise(self, op: Op) -> None:
        if self.number % op.number == 0 and (self.spec.on_failure == "dead_letter" or not self.spec.inputs):
            raise ValueError(f"number {self.number}")

    def do_flaky(self, op: Op) -> None:
        if self.txn.attempts < self.spec.retries:
            raise OSError("try again")

    def do_break(self, op: Op) -> None:
        if (self.spec.name, self.txn.batch_id) in self.simulated.broken:
            raise OSError("out of order")

    def emit(self) -> None:
        for stream in self.spec.outputs:
            number = self.fold(stream)
            key = self.key if self.key is not None else number % KEYS
            if stream in self.spec.rekeyed:
                rows = [with_j(number // (7 + i) % KEYS, number // (5 + i)) for i in range(number % 7)]
                if number % 5:  # else its key may be NULL
                    rows = [(k, x, k if j is None else j) for k, x, j in rows]
            else:
                near, count = self.spec.near, 0 if self.spec.drops and number % 5 else number % 4
                rows = [with_j(key, self._time(number, i) if near else number // (5 + i)) for i in range(count)]
            self.txn.emit(stream, rows)

    def _time(self, number: int, i: int) -> int:
        """A time that comes forward with the batch-ids."""
        return 10 * (self.txn.batch_id or 0) + number // (5 + i) % 40 - 10


def with_j(k: Any, x: int) -> tuple[Any, int, int | None]:
    """A row: its second number of a partition is NULL now and then."""
    j = x // 3 % (KEYS + 1)
    return k, x, None if j == KEYS else j


def _plain(row: Any) -> Any:
    return None if row is None else tuple(row)
