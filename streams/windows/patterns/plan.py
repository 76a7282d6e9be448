"""A pattern bound to the columns of its stream: its automaton with compiled conditions, and the relation of its results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlglot import exp

from tidegate.errors import DataError, DeclarationError, near
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.patterns.automaton import Automaton, Guard, automaton_of
from tidegate.streams.windows.patterns.counting import Counting, counted
from tidegate.streams.windows.patterns.declare import PatternSpec, after_variable
from tidegate.streams.windows.patterns.expressions import Expressions, measure_type
from tidegate.streams.windows.patterns.text import PatternText, Tree, elements_of, parse
from tidegate.streams.windows.state.values import at_micros

LABELS = ("match_id", "match_start", "match_end")
NO_END = -1
STREAM = "stream_name"  # the column that tells rows of several streams apart

Node = tuple[Any, int, int, Any, int]  # the rows of a match, the last first: (before, number, position, row, time)
Test = Callable[[Any, Any, Any], Any]  # of a row, the slots, and the rows bound so far


class Take(NamedTuple):
    """What it takes to bind a row to a position: that nothing came which ``guard`` looks for, the bit of its element, and a
    condition that looks at earlier rows.
    """

    to: int
    guard: Guard
    bit: int
    test: Test | None
    update: Callable[[Any, Any], Any] | None
    end: int  # the guard of the position's end, NO_END: no match ends here
    goes_on: bool  # is there anything to wait for?


def relation_of(spec: PatternSpec, relations: Mapping[str, Relation]) -> Relation:
    """The columns that conditions can name: those of the stream, or of all streams and the stream's name."""
    if len(spec.streams) == 1:
        return relations[spec.streams[0]]
    columns: dict[str, Column] = {}
    for stream in spec.streams:
        for column in relations[stream].columns:
            known = columns.setdefault(column.name, column)
            if known.type != column.type:
                raise DeclarationError(
                    f"pattern over {spec.stream}: column {column.name} is {known.type} in one stream and {column.type} in "
                    f"{stream}; columns of one name must be of one type"
                )
    everywhere = [
        name
        for name in columns
        if all(name in relations[s].index_of and not relations[s].column(name).nullable for s in spec.streams)
    ]
    found = [Column(c.name, c.type, nullable=name not in everywhere) for name, c in columns.items()]
    if STREAM in columns:
        raise DeclarationError(
            f"pattern over {spec.stream}: a column can't be called {STREAM}: it is the name of a row's stream"
        )
    return Relation("_".join(spec.streams), (*found, Column(STREAM, column_type("VARCHAR"), nullable=False)))


class PatternPlan:
    """Everything that the states of one pattern share."""

    def __init__(self, spec: PatternSpec, relations: Mapping[str, Relation], what: str | None = None) -> None:
        self.spec = spec
        self.what = what or f"pattern over {spec.stream}"
        self.relations = tuple(relations[stream] for stream in spec.streams)
        self.relation = relation_of(spec, relations)
        self._check_columns()
        self.tree: Tree = parse(self.what, spec.match)
        self.source = PatternText(self.what, spec.match)
        self.automaton: Automaton = automaton_of(self.tree, self.source)
        self._check_names()
        self._compile()
        self._check_meaning()
        self._by = [self.relation.index_of[name] for name in spec.by]
        self.key_of = _key_of(self.relation, spec.by)
        self.counting: Counting | None = None
        self.results = self._counted_relation() if spec.aggregate else self._result_relation()
        self._make = self.results.row._make
        self._as_came = dict(zip(spec.streams, stream_rows(self.relations, self.relation), strict=True))
        self.widened = rows_of(self.relations, self.relation, spec.streams)
        self.seconds_axis = spec.on is not None and self.relation.column(spec.on).type.family in ("timestamp", "date")

    # ---- checks

    def _check_columns(self) -> None:
        spec, relation = self.spec, self.relation
        for role, name in (("on", spec.on), *(("by", by) for by in spec.by)):
            if name is not None and name not in relation.index_of:
                raise DeclarationError(
                    f"{self.what}: {role} names column {name!r}; {near(name, relation.index_of, f'{spec.stream} has')}",
                    column=name,
                )
        for name in spec.by:
            kind = relation.column(name).type
            if not kind.hashable_key:
                raise DeclarationError(
                    f"{self.what}: by names {name}, which is {kind}; equality of its values is not well enough defined to group "
                    f"by. Emit a whole number or text instead"
                )
            if name in LABELS:
                raise DeclarationError(
                    f"{self.what}: by names {name}, but every result has a column of its own of this name; rename it"
                )
        if spec.on is not None:
            self._check_time(relation.column(spec.on))

    def _check_time(self, column: Column) -> None:
        spec = self.spec
        if column.type.family not in ("timestamp", "date", "integer") or column.type.sql == "UBIGINT":
            raise DeclarationError(
                f"{self.what}: on names {column.name}, which is {column.type}; a time must be timestamp, date or integer"
            )
        if column.nullable:
            lacking = "is missing in, or may be NULL in, one of the streams" if len(spec.streams) > 1 else "may be NULL"
            raise DeclarationError(f"{self.what}: on names {column.name}, which {lacking}; it must be NOT NULL")
        timed = column.type.family != "integer"
        if (spec.size is not None or spec.delay) and spec.timed != timed:
            example = repr("10s") if timed else 10
            raise DeclarationError(
                f"{self.what}: {column.name} is {column.type}, so lengths are "
                f"{'lengths of time' if timed else 'whole numbers in its unit'}, for example {example}"
            )

    def _check_names(self) -> None:
        """Elements and variables are what they seem to be."""
        defined = dict(self.spec.define)
        for name in defined:
            if name not in self.automaton.elements:
                raise DeclarationError(
                    f"{self.what}: define names {name!r}, which is no element of match=; "
                    f"{near(name, self.automaton.elements, 'it has')}"
                )
        of: dict[str, str] = {}
        for element in [*elements_of(self.tree), *elements_of(self.tree, negated=True)]:
            if of.setdefault(element.variable, element.name) != element.name:
                raise self.source.wrong(
                    element.at, f"{element.variable} already names rows of {of[element.variable]}; take another name"
                )
            if element.name not in defined and len(self.spec.streams) > 1 and element.name not in self.spec.streams:
                raise self.source.wrong(
                    element.at,
                    f"{element.name} has no condition in define=, and is none of the streams ({', '.join(self.spec.streams)})",
                )
        variables = self.automaton.variables
        named: list[tuple[str, str | None]] = [
            *(("consume", one) for one in self.spec.consume),
            ("after", after_variable(self.spec.after)[1]),
        ]
        for role, wanted in named:
            if wanted is not None and wanted not in variables:
                raise DeclarationError(
                    f"{self.what}: {role} names {wanted!r}; {near(wanted, variables, 'rows are called')}"
                )

    def _check_meaning(self) -> None:
        spec, automaton = self.spec, self.automaton
        if spec.size is None and any(automaton.ends.values()):
            last = list(elements_of(self.tree, negated=True))[-1]
            raise self.source.wrong(
                last.at, f"that no {last.name} comes is known when the pattern's time is over: give within= (and on=)"
            )
        if spec.aggregate:
            self._check_countable()
        if (
            spec.size is None
            and spec.select == "any"
            and not spec.aggregate
            and (automaton.endless or len(automaton.positions) > 1)
        ):
            raise DeclarationError(
                f"{self.what}: select='any' without within= would wait for every combination of rows for ever: give within= (and "
                f"on=), or select='next'"
            )
        if spec.timeout and spec.size is None:
            raise DeclarationError(f"{self.what}: timeout=True needs within=, after which a partial match times out")

    def _check_countable(self) -> None:
        """All that is known of a match is that its conditions hold, so these are about one row each."""
        if self.automaton.ambiguous:
            raise self.source.wrong(
                self.tree.at,
                "the same rows can be bound to the same names in two ways, so matches can't be counted without making them",
            )
        looking = [take for takes in (*self.edges, self.starts) for take in takes if take.test is not None]
        for element in elements_of(self.tree):
            number = self.automaton.elements.index(element.name)
            if any(take.bit == 1 << number for take in looking):
                raise self.source.wrong(
                    element.at,
                    f"the condition of {element.name} looks at other rows, so its matches can't be counted without "
                    f"making them; leave out aggregate=, and count the results",
                )
        for element in elements_of(self.tree, negated=True):
            if self.negated[self.automaton.elements.index(element.name)] is not None or any(
                self.automaton.ends.values()
            ):
                raise self.source.wrong(
                    element.at,
                    f"{element.name} is not about one row, or would be absent at the end: such matches can't be counted "
                    f"without making them; leave out aggregate=",
                )

    # ---- conditions

    def _compile(self) -> None:
        spec, automaton = self.spec, self.automaton
        variables: dict[str, list[str]] = {}
        for element in [*elements_of(self.tree), *elements_of(self.tree, negated=True)]:
            variables.setdefault(element.name, []).append(element.variable)
        aliases = {
            name: found[0]
            for name, found in variables.items()
            if len(set(found)) == 1 and name not in automaton.variables
        }
        self.names = aliases
        conditions = Expressions(self.what, self.relation, automaton.variables, aliases)
        parsed = {name: _Condition(self, conditions, name, given) for name, given in spec.define}
        strict = 1 << len(automaton.elements)
        self._refuse_cycles(parsed)
        for element in [*elements_of(self.tree), *elements_of(self.tree, negated=True)]:
            if element.name not in parsed:
                parsed[element.name] = _Condition(self, conditions, element.name, None)
        negated = {element.name: element.variable for element in elements_of(self.tree, negated=True)}
        tests = [parsed[automaton.elements[p.element]].test(p.variable) for p in automaton.positions]
        self.negated: list[Test | None] = [
            parsed[name].test(negated[name]) if name in negated else None for name in automaton.elements
        ]
        self.hits = hits_of([parsed[name] for name in automaton.elements], conditions)
        more = strict if spec.select == "strict" else 0
        self.begin = conditions.slots.begin()
        self.ends = [automaton.ends.get(p.number, NO_END) for p in automaton.positions]
        self.updates = [conditions.slots.update_for(p.variable, conditions.namespace) for p in automaton.positions]
        self.edges = [[self._take(to, guard | more, tests[to]) for to, guard in edges] for edges in automaton.edges]
        self.starts = [self._take(to, 0, tests[to]) for to in automaton.starts]
        self.watched = [
            _union([*(take.guard for take in takes), max(end, 0)])
            for takes, end in zip(self.edges, self.ends, strict=True)
        ]
        self.interest = [
            _union([watched, *(take.bit for take in takes)])
            for takes, watched in zip(self.edges, self.watched, strict=True)
        ]
        self.moves_on = spec.select == "next"
        self.every = more  # the bit of rows that are none of its elements
        self.starts_with = _union([take.bit for take in self.starts])
        self.consumed = frozenset(p.number for p in automaton.positions if p.variable in spec.consume)
        mode, variable = after_variable(spec.after)
        self.after = mode
        self.to = frozenset(p.number for p in automaton.positions if p.variable == variable)

    def _take(self, to: int, guard: Guard, test: Test | None) -> Take:
        end = self.ends[to]
        goes_on = bool(self.automaton.edges[to]) or end > 0
        return Take(to, guard, 1 << self.automaton.positions[to].element, test, self.updates[to], end, goes_on)

    def _refuse_cycles(self, parsed: Mapping[str, _Condition]) -> None:
        """A condition looks at rows that were bound before: not at each other's, and not at later ones."""
        automaton = self.automaton
        bound_before: dict[str, set[str]] = {}
        for position in automaton.positions:
            earlier = {automaton.positions[p].variable for p in automaton.before(position.number)}
            bound_before.setdefault(automaton.elements[position.element], set()).update(earlier, {position.variable})
        looks_at = {name: condition.looks_at for name, condition in parsed.items()}
        element_of = {p.variable: automaton.elements[p.element] for p in automaton.positions}
        for name, seen in looks_at.items():
            for variable in sorted(seen):
                other = element_of.get(variable, name)
                back = {element_of.get(v) for v in looks_at.get(other, set())}
                if other != name and name in back:
                    raise self.source.wrong(
                        self._place(name),
                        f"the conditions of {name} and {other} look at each other's rows, so neither could be first",
                    )
                if name in bound_before and variable not in bound_before[name]:
                    raise self.source.wrong(
                        self._place(name),
                        f"the condition of {name} looks at {variable}, which is never bound before it",
                    )

    def _place(self, name: str) -> int:
        found = [e.at for negated in (False, True) for e in elements_of(self.tree, negated) if e.name == name]
        return found[0]

    # ---- results

    def _result_relation(self) -> Relation:
        spec, relation = self.spec, self.relation
        family = "" if spec.on is None else relation.column(spec.on).type.family
        bound = column_type("TIMESTAMP" if family in ("timestamp", "date") else "BIGINT")
        columns = [relation.column(name) for name in spec.by]
        columns += [
            Column(LABELS[0], column_type("BIGINT"), nullable=False),
            *(Column(name, bound, nullable=False) for name in LABELS[1:]),
        ]
        measures = Expressions(self.what, relation, self.automaton.variables, self.names)
        codes = []
        for name, sql in spec.measures:
            if not isinstance(sql, str):
                raise DeclarationError(f"{self.what}: measures={{{name!r}: …}} is an SQL expression, got {sql!r}")
            if name in {column.name for column in columns} or not name.isidentifier():
                raise DeclarationError(f"{self.what}: a measure can't be called {name!r}; take a name of its own")
            code = measures.measure(sql, f"measure {name}")
            codes.append(code)
            columns.append(Column(name, measure_type(code), nullable=True))
        self._measures = measures.function("a", f"({''.join(code.text + ', ' for code in codes)})")
        self._coerced = [
            (place, columns[len(columns) - len(codes) + place]) for place, code in enumerate(codes) if code.kind is None
        ]
        self._measured_by = [
            measures.slots.update_for(p.variable, measures.namespace) for p in self.automaton.positions
        ]
        self._measured_from = measures.slots.begin()
        return Relation(f"{spec.stream} matches", tuple(columns))

    def _counted_relation(self) -> Relation:
        spec, relation = self.spec, self.relation
        expressions = Expressions(self.what, relation, self.automaton.variables, self.names)
        whole = "DECIMAL(38,0)" if self.automaton.endless else "BIGINT"  # with each row, there can be twice as many
        wanted = [counted(self.what, name, sql, expressions, whole) for name, sql in spec.aggregate]
        self.counting = Counting(self.automaton, wanted, spec.size)
        family = "" if spec.on is None else relation.column(spec.on).type.family
        bound = column_type("TIMESTAMP" if family in ("timestamp", "date") else "BIGINT")
        columns = [*(relation.column(name) for name in spec.by), Column(LABELS[2], bound, nullable=False)]
        for one in wanted:
            if one.name in {column.name for column in columns} or not one.name.isidentifier():
                raise DeclarationError(
                    f"{self.what}: an aggregate can't be called {one.name!r}; take a name of its own"
                )
            columns.append(Column(one.name, one.kind, nullable=True))
        return Relation(f"{spec.stream} counts", tuple(columns))

    def aggregated(self, labels: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        """The row of results for the matches that end with a row."""
        told = []
        for value, column in zip(values, self.results.columns[len(labels) :], strict=True):
            try:
                told.append(None if value is None else column.type.coerce(value))
            except (ValueError, TypeError, ArithmeticError) as error:
                raise DataError(
                    f"{self.what}: aggregate {column.name} is {value!r}, which is no {column.type}: {error}",
                    relation=self.spec.stream, column=column.name,
                ) from None  # fmt: skip
        return self._make((*labels, *told))

    def measured(self, node: Node) -> tuple[Any, ...]:
        """The measures of a match."""
        if not self.spec.measures:
            return ()
        slots = self._measured_from
        for _, _, position, row, _ in nodes(node):
            update = self._measured_by[position]
            if update is not None:
                slots = update(slots, row)
        values = self._measures(slots)
        if not self._coerced:
            return values  # type: ignore[no-any-return]
        found = list(values)
        for place, column in self._coerced:
            if found[place] is not None:
                try:
                    found[place] = column.type.coerce(found[place])
                except (ValueError, TypeError, ArithmeticError) as error:
                    raise DataError(
                        f"{self.what}: measure {column.name} is {found[place]!r}, which is no {column.type}: {error}",
                        relation=self.spec.stream, column=column.name,
                    ) from None  # fmt: skip
        return tuple(found)

    def bound(self, row: Any) -> dict[str, list[Any]]:
        """The rows of a partial match by variable, for conditions that are functions."""
        found: dict[str, list[Any]] = {variable: [] for variable in self.automaton.variables}
        if row is not None:
            for _, _, position, one, _ in nodes(row):
                found[self.automaton.positions[position].variable].append(one)
        return found

    # ---- what is shown

    def when(self, node: Node) -> Any:
        """The time of a row in readable form; its number, where there is no time."""
        if self.spec.on is None:
            return node[1]
        return at_micros(node[4]) if self.seconds_axis else node[4]

    def by_values(self, row: Any) -> tuple[Any, ...]:
        """The values of the ``by`` columns."""
        return tuple([row[place] for place in self._by])

    def shown(self, row: Any) -> Any:
        """A row as it came on its stream."""
        return row if len(self.relations) == 1 else self._as_came[row[-1]](row)

    def result(self, node: Node, number: int) -> Any:
        """The row of results for a match."""
        first = node
        while first[0] is not None:
            first = first[0]
        if self.spec.measures:
            return self._make(
                (*self.by_values(node[3]), number, self.when(first), self.when(node), *self.measured(node))
            )
        return self._make((*self.by_values(node[3]), number, self.when(first), self.when(node)))


class _Condition:
    """The condition of an element: what is about the row alone, and what looks at earlier ones."""

    def __init__(self, plan: PatternPlan, expressions: Expressions, name: str, given: Any) -> None:
        self.plan = plan
        self.expressions = expressions
        self.role = f"define[{name!r}]"
        self.local: list[exp.Expression] = []
        self.rest: list[exp.Expression] = []
        self.function: Any = None
        self.alone = True
        if name in plan.spec.streams and len(plan.spec.streams) > 1:
            self.local.append(exp.EQ(this=exp.column(STREAM), expression=exp.Literal.string(name)))
        if isinstance(given, str):
            for tree in expressions.conjuncts(expressions.parse(given, self.role)):
                (self.local if expressions.local(tree) else self.rest).append(tree)
        elif given is not None:
            self.function = given
            self.alone = _parameters(plan.what, name, given) == 1
        self.looks_at = (
            set().union(*(expressions.variables_in(tree) for tree in self.rest)) if self.rest else set[str]()
        )

    def test(self, variable: str) -> Test | None:
        """What must be true besides what is about the row alone."""
        if self.function is not None and not self.alone:
            function, bound = self.function, self.plan.bound
            return lambda r, a, c: function(r, bound(c))
        if not self.rest:
            return None
        code = self.expressions.condition(self.rest, self.role, variable)
        test: Test = self.expressions.function("r, a, c", code)
        return test

    def code(self) -> str:
        """Code for what is about the row ``r`` alone."""
        told = self.expressions.condition(self.local, self.role, "")
        if self.function is not None and self.alone:
            called = f"{self.expressions.constant(self.function)}(r)"
            return f"({told}) and {called}" if self.local else called
        return told


def _parameters(what: str, name: str, function: Any) -> int:
    try:
        given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (ValueError, TypeError):
        return 1
    if len(given) not in (1, 2):
        raise DeclarationError(
            f"{what}: define[{name!r}] is a function of a row, or of a row and the rows bound so far, and takes "
            f"{len(given)} arguments"
        )
    return len(given)


def hits_of(conditions: Sequence[_Condition], expressions: Expressions) -> Callable[[Sequence[Any]], list[int]]:
    """Which elements each of some rows may be, as bits, from what is about the row alone.

    Most patterns tell elements apart by one column: its value is looked up, and only what is left of the conditions is tried.
    """
    place, of = _told_apart_by(conditions, expressions.relation)
    table: dict[Any, int] = {}
    other = _union([1 << number for number, values in enumerate(of) if values is None])
    for number, values in enumerate(of):
        for value in values or ():
            table[value] = table.get(value, other) | 1 << number
    codes = [condition.code() for condition in conditions]
    found = f"get(r[{place}], {other})" if table else f"{other}"
    namespace = expressions.namespace
    namespace["get"] = table.get
    if all(code == "True" for code in codes):
        exec(f"def hits(rows):\n    return [{found} for r in rows]", namespace)
    else:
        lines = ["def hits(rows):", "    found = []", "    for r in rows:", f"        h = {found}"]
        for number, code in enumerate(codes):
            if code != "True":
                lines.append(f"        if h & {1 << number} and not ({code}): h ^= {1 << number}")
        exec("\n".join([*lines, "        found.append(h)", "    return found"]), namespace)
    made: Callable[[Sequence[Any]], list[int]] = namespace["hits"]
    return made


def _told_apart_by(conditions: Sequence[_Condition], relation: Relation) -> tuple[int, list[list[Any] | None]]:
    """The column that most elements compare with constants, and the constants of each element; those conditions are done."""
    counted: dict[str, int] = {}
    for condition in conditions:
        for name in {name for tree in condition.local if (name := _compared(tree, relation)) is not None}:
            counted[name] = counted.get(name, 0) + 1
    if not counted:
        return 0, [None] * len(conditions)
    chosen = max(counted, key=lambda name: counted[name])
    found: list[list[Any] | None] = []
    for condition in conditions:
        mine = next((tree for tree in condition.local if _compared(tree, relation) == chosen), None)
        if mine is None:
            found.append(None)
        else:
            condition.local.remove(mine)
            found.append(_constants(mine))
    return relation.index_of[chosen], found


def _compared(tree: exp.Expression, relation: Relation) -> str | None:
    """The column of ``column = constant`` or ``column IN (constants)``, of text or whole numbers."""
    if not isinstance(tree, (exp.EQ, exp.In)) or not isinstance(tree.this, exp.Column) or tree.args.get("query"):
        return None
    name = tree.this.name
    if name not in relation.index_of or relation.column(name).type.family not in ("text", "integer"):
        return None
    text = relation.column(name).type.family == "text"
    given = tree.expressions if isinstance(tree, exp.In) else [tree.expression]
    fits = given and all(isinstance(one, exp.Literal) and (one.is_string if text else one.is_int) for one in given)
    return name if fits else None


def _constants(tree: exp.Expression) -> list[Any]:
    given = tree.expressions if isinstance(tree, exp.In) else [tree.expression]
    return [one.this if one.is_string else int(one.this) for one in given]


def _union(guards: Sequence[Guard]) -> Guard:
    found = 0
    for guard in guards:
        found |= guard
    return found


def _key_of(relation: Relation, by: Sequence[str]) -> Callable[[Any], Any] | None:
    """A row's key: the value of one column, or a tuple of several. None: all rows belong together."""
    return itemgetter(*(relation.index_of[name] for name in by)) if by else None


def nodes(node: Node | None) -> list[Node]:
    """The nodes of a match, the first row first."""
    found = []
    while node is not None:
        found.append(node)
        node = node[0]
    found.reverse()
    return found


def rows_of(relations: Sequence[Relation], relation: Relation, streams: Sequence[str]) -> list[Callable[[Any], Any]]:
    """For each stream: its rows as rows of the pattern's relation."""
    if len(relations) == 1:
        return [lambda row: row]
    found = []
    for stream, one in zip(streams, relations, strict=True):
        places = [one.index_of.get(name) for name in relation.index_of]
        found.append(_widener(relation, places, stream))
    return found


def _widener(relation: Relation, places: Sequence[int | None], stream: str) -> Callable[[Any], Any]:
    make = relation.row._make

    def widen(row: Any) -> Any:
        values = [None if place is None else row[place] for place in places]
        values[-1] = stream
        return make(values)

    return widen


def stream_rows(relations: Sequence[Relation], relation: Relation) -> Iterator[Callable[[Any], Any]]:
    """For each stream: a row of the pattern's relation as the row that came."""
    for one in relations:
        yield _picker(one, [relation.index_of[name] for name in one.index_of])


def _picker(relation: Relation, places: Sequence[int]) -> Callable[[Any], Any]:
    make = relation.row._make
    return lambda row: make([row[place] for place in places])
