"""Aggregates over all matches of a pattern, without making any: ``aggregate={"n": "count(*)", "most": "max(f.amount)"}``.

The partial matches that end at a position are a number; a row makes new ones out of those before it. So a row is a
linear step: a matrix with which the vector of these numbers is multiplied. A guard is a number of its own, set to
zero by what it looks for. Sums, least and largest values are the same with other numbers: a pair (matches, sum), or
a value with min for + and min for ×.

Within W, only matches count whose first row is not too old: the product of the matrices of the rows that are not.
The product is associative, so two stacks hold it: of the older rows, the product from each of them on; of the
younger ones, the product of all. When the older stack is empty, the younger rows are turned over. So a row costs
the same whatever W is, and nothing is ever subtracted: sums of floats are exact to the order of additions, and the
same in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from tidegate.errors import DeclarationError
from tidegate.storage.types import ColumnType, column_type
from tidegate.streams.windows.patterns.automaton import Automaton
from tidegate.streams.windows.patterns.expressions import Code, Expressions, measure_type

Vector = list[Any]


class Numbers:
    """What is counted with. ``value`` is of a row that is bound to the variable."""

    zero: Any = 0
    one: Any = 1

    def plus(self, a: Any, b: Any) -> Any:
        return a + b

    def times(self, a: Any, b: Any) -> Any:
        return a * b

    def weight(self, value: Any) -> Any:
        return 1

    def result(self, a: Any) -> Any:
        return a


class Sums(Numbers):
    """(matches, sum of values, values that are not NULL)."""

    zero = (0, 0, 0)
    one = (1, 0, 0)

    def plus(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    def times(self, a: Any, b: Any) -> Any:
        if not a[0] or not b[0]:
            return self.zero
        return a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + a[2] * b[0]

    def weight(self, value: Any) -> Any:
        return self.one if value is None else (1, value, 1)

    def result(self, a: Any) -> Any:
        return a[1] if a[2] else None


class Means(Sums):
    """The same; what comes out is the mean."""

    def result(self, a: Any) -> Any:
        return float(a[1]) / a[2] if a[2] else None


class Best(Numbers):
    """None: no match; (): a match without a value; else the best value."""

    zero = None
    one = ()

    def __init__(self, better: Callable[[Any, Any], Any]) -> None:
        self.better = better

    def _best(self, a: Any, b: Any) -> Any:
        return a if not b else b if not a else (self.better(a[0], b[0]),)

    def plus(self, a: Any, b: Any) -> Any:
        return b if a is None else a if b is None else self._best(a, b)

    def times(self, a: Any, b: Any) -> Any:
        return None if a is None or b is None else self._best(a, b)

    def weight(self, value: Any) -> Any:
        return () if value is None else (value,)

    def result(self, a: Any) -> Any:
        return a[0] if a else None


class Counted(NamedTuple):
    """One aggregate: its numbers, the variable whose rows have values (None: all matches are counted), how to get a value."""

    name: str
    numbers: Numbers
    variable: str | None
    value: Callable[[Any], Any] | None
    kind: ColumnType


COUNT = Counted("", Numbers(), None, None, column_type("BIGINT"))
_KINDS: dict[type[exp.Expression], str] = {exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"}


def counted(what: str, name: str, sql: Any, expressions: Expressions, whole: str) -> Counted:
    """What ``aggregate={name: sql}`` asks for. ``whole``: the type of counts and of sums of whole numbers."""
    role = f"aggregate {name}"
    tree = expressions.parse(sql, role) if isinstance(sql, str) else None
    if isinstance(tree, exp.Count) and isinstance(tree.this, exp.Star):
        return Counted(name, Numbers(), None, None, column_type(whole))
    kind = _KINDS.get(type(tree)) if tree is not None else None
    variables = set() if tree is None else expressions.variables_in(tree)
    if tree is None or kind is None or len(variables) != 1:
        raise DeclarationError(
            f"{what}: {role} is {sql!r}; it can be count(*), or sum, avg, min or max over the rows of one variable: sum(f.amount)"
        )
    (variable,) = variables
    code: Code = expressions.value_of(tree.this, role, variable)
    value = expressions.function("r", code.text)
    if kind in ("sum", "avg") and code.family not in ("integer", "float", "decimal"):
        raise DeclarationError(f"{what}: {role} is over {code.sql}, not numbers")
    better = {"min": lambda a, b: b if b < a else a, "max": lambda a, b: b if b > a else a}
    numbers = Sums() if kind == "sum" else Means() if kind == "avg" else Best(better[kind])
    return Counted(name, numbers, variable, value, _type(kind, code, whole))


def _type(kind: str, code: Code, whole: str) -> ColumnType:
    if kind == "avg":
        return column_type("DOUBLE")
    if kind == "sum":
        return column_type({"integer": whole, "float": "DOUBLE"}.get(code.family, "DECIMAL(38,9)"))
    return measure_type(code)


class Step(NamedTuple):
    """What a row does that may be certain elements, where nothing but matches is counted: integers in generated code.

    ``after``: of a vector; ``whole``: the complete matches, None if there are none; ``before``: of the product of what is later.
    """

    after: Callable[[Vector], Vector]
    whole: Callable[[Vector], int] | None
    before: Callable[[list[Vector]], list[Vector]]


class Steps:
    """The matrices of a pattern, for one aggregate. A component of the vector is the number of partial matches at a
    position, for each guard that an edge from there has; the last one is 1.
    """

    def __init__(self, automaton: Automaton, of: Counted) -> None:
        self.numbers = of.numbers
        self.of = of
        self.bits = [1 << p.element for p in automaton.positions]
        self.weighted = [of.variable is not None and p.variable == of.variable for p in automaton.positions]
        self.starts = frozenset(automaton.starts)
        self.ends = frozenset(automaton.ends)
        components = sorted({(p, guard) for p, edges in enumerate(automaton.edges) for _, guard in edges})
        place = {component: number for number, component in enumerate(components)}
        self.size = len(components) + 1
        self.guards = [(number, guard) for number, (_, guard) in enumerate(components) if guard]
        self.into = [[number for number, (at, _) in enumerate(components) if at == p] for p in range(len(self.bits))]
        self.out_of: list[list[int]] = [[] for _ in self.bits]
        for p, edges in enumerate(automaton.edges):
            for to, guard in edges:
                self.out_of[to].append(place[p, guard])
        self.plain = of.variable is None
        self.known: dict[int, Step] = {}
        self.first = [of.numbers.zero] * (self.size - 1) + [of.numbers.one]

    def positions(self, hit: int) -> list[int]:
        """The positions that a row may be bound to."""
        return [p for p, bit in enumerate(self.bits) if hit & bit]

    def apply(self, vector: Vector, hit: int, weight: Any) -> tuple[Vector, Any]:
        """The vector after a row, and the matches that it completes. ``weight``: of the row, where its value counts."""
        numbers = self.numbers
        plus, times, zero = numbers.plus, numbers.times, numbers.zero
        made = []
        whole = zero
        for p in self.positions(hit):
            new = vector[-1] if p in self.starts else zero
            for component in self.out_of[p]:
                new = plus(new, vector[component])
            if self.weighted[p]:
                new = times(new, weight)
            if p in self.ends:
                whole = plus(whole, new)
            made.append((p, new))
        after = list(vector)
        for component, guard in self.guards:
            if hit & guard:
                after[component] = zero
        for p, new in made:
            for component in self.into[p]:
                after[component] = plus(after[component], new)
        return after, whole

    def step(self, hit: int) -> Step:
        """The matrix of such rows, as code."""
        found = self.known.get(hit)
        if found is None:
            rows = [self.apply(unit, hit, 1) for unit in self.identity()]
            size = range(self.size)
            after = [_sum("x", [row[0][column] for row in rows]) for column in size]
            whole = _sum("x", [row[1] for row in rows])
            before = [_rows(number, rows[number][0]) for number in size]
            found = self.known[hit] = Step(
                eval(f"lambda x: [{', '.join(after)}]"),
                None if whole == "0" else eval(f"lambda x: {whole}"),
                eval(f"lambda f: [{', '.join(before)}]"),
            )
        return found

    def weight(self, row: Any) -> Any:
        """What a row counts for."""
        return self.numbers.one if self.of.value is None else self.numbers.weight(self.of.value(row))

    def identity(self) -> list[Vector]:
        zero, one = self.numbers.zero, self.numbers.one
        return [[one if i == j else zero for j in range(self.size)] for i in range(self.size)]

    def product(self, vector: Vector, matrix: Sequence[Vector]) -> Vector:
        """A row of the product: the vector, and then the rows whose matrix this is."""
        numbers = self.numbers
        plus, times, zero = numbers.plus, numbers.times, numbers.zero
        found = [zero] * self.size
        for value, row in zip(vector, matrix, strict=True):
            if value != zero:
                found = [plus(a, times(value, b)) for a, b in zip(found, row, strict=True)]
        return found

    def turned(self, rows: Sequence[tuple[int, int, Any]]) -> list[Vector]:
        """For each of these rows (time, hit, weight): the vector of matches that begin with it or later, up to the last."""
        matrix = self.identity()
        found: list[Vector] = []
        if self.plain:
            for _, hit, _ in reversed(rows):
                matrix = self.step(hit).before(matrix)
                found.append(matrix[-1])
            return found
        for _, hit, weight in reversed(rows):
            steps = [self.apply(unit, hit, weight)[0] for unit in self.identity()]
            matrix = [self.product(step, matrix) for step in steps]
            found.append(matrix[-1])
        return found


def _sum(name: str, factors: Sequence[int]) -> str:
    """Code for the sum of what is in a list, times these."""
    told = [f"{name}[{i}]" if factor == 1 else f"{factor}*{name}[{i}]" for i, factor in enumerate(factors) if factor]
    return " + ".join(told) or "0"


def _rows(number: int, factors: Sequence[int]) -> str:
    """Code for the sum of lists, times these; the list itself where nothing changes."""
    used = [i for i, factor in enumerate(factors) if factor]
    if used == [number] and factors[number] == 1:
        return f"f[{number}]"
    if not used:
        return "[0] * len(f)"
    names = ", ".join(f"v{i}" for i in used)
    told = " + ".join(f"v{i}" if factors[i] == 1 else f"{factors[i]}*v{i}" for i in used)
    lists = ", ".join(f"f[{i}]" for i in used)
    return f"[{told} for {names} in {lists if len(used) == 1 else f'zip({lists})'}]"


Kept = tuple[int, int, tuple[Any, ...]]  # a row: its time, its hit, its weights for each aggregate


class Stacks(NamedTuple):
    """What is kept of a key, for all aggregates: never changed, but replaced.

    ``older``: from the youngest of the older rows to the oldest, the time and the vectors of what begins with it or
    later; ``low``: so many of them are left. ``younger``: so many of ``rows``;
    ``products``: of these. Without
    WITHIN there is just one vector each.
    """

    older: list[tuple[int, tuple[Vector, ...]]]
    low: int
    rows: list[Kept]
    younger: int
    products: tuple[list[Vector], ...]

    @property
    def last(self) -> int:
        """The time of the youngest row."""
        return self.rows[self.younger - 1][0] if self.younger else self.older[0][0]


class Counting:
    """The aggregates of one pattern, for all its states."""

    def __init__(self, automaton: Automaton, wanted: Sequence[Counted], size: int | None) -> None:
        self.wanted = tuple(wanted)
        number = next((one for one in wanted if one.variable is None), COUNT)
        different = [number, *(one for one in wanted if one.variable is not None)]
        self.steps = [Steps(automaton, one) for one in different]
        self.places = [0 if one.variable is None else different.index(one) for one in wanted]
        self.size = size
        self.starts_with = 0
        for p in automaton.starts:
            self.starts_with |= 1 << automaton.positions[p].element
        self.identities = tuple([step.identity() for step in self.steps])
        self.empty = Stacks([], 0, [], 0, self.identities)

    def weights(self, row: Any) -> tuple[Any, ...]:
        return tuple([step.weight(row) for step in self.steps])

    def take(self, kept: Stacks, at: int, hit: int, weights: tuple[Any, ...]) -> tuple[Stacks, tuple[Any, ...] | None]:
        """What a row makes of what is kept of its key; the aggregates over the matches that it completes."""
        if self.size is not None:
            kept = self.without(kept, at - self.size)
        oldest = kept.older[kept.low - 1][1] if kept.low else None
        whole, products = [], []
        for number, step in enumerate(self.steps):
            product = kept.products[number]
            if step.plain:
                known = step.step(hit)
                if known.whole is None:
                    whole.append(0)
                else:
                    whole.append(known.whole(product[-1] if oldest is None else step.product(oldest[number], product)))
                rows_of = product if self.size is not None else product[-1:]
                products.append([known.after(vector) for vector in rows_of])
                continue
            before = product[-1] if oldest is None else step.product(oldest[number], product)
            whole.append(step.apply(before, hit, weights[number])[1])
            if self.size is None:
                products.append([step.apply(product[-1], hit, weights[number])[0]])
            else:
                products.append([step.apply(vector, hit, weights[number])[0] for vector in product])
        rows = kept.rows
        younger = kept.younger
        if self.size is not None:
            if len(rows) > younger:  # somebody else went on from here, and was undone
                rows = rows[:younger]
            rows.append((at, hit, weights))
            younger += 1
        after = Stacks(kept.older, kept.low, rows, younger, tuple(products))
        if not whole[0]:
            return after, None
        return after, tuple([self.steps[place].numbers.result(whole[place]) for place in self.places])

    def without(self, kept: Stacks, until: int) -> Stacks:
        """Without the rows up to this time."""
        older, low, rows, younger, products = kept
        while True:
            while low and older[low - 1][0] <= until:
                low -= 1
            if low or not younger or rows[0][0] > until:
                break
            mine = rows[:younger]
            turned = [
                step.turned([(at, hit, weights[number]) for at, hit, weights in mine])
                for number, step in enumerate(self.steps)
            ]
            older = [(mine[-1 - i][0], tuple([vectors[i] for vectors in turned])) for i in range(len(mine))]
            low, rows, younger, products = len(older), [], 0, self.identities
        return Stacks(older, low, rows, younger, products)
