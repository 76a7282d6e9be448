"""The graph: ranks, contraction of nested transactions, ancestors, and what each border batch causes."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate import App, DeclarationError, committed, partition
from tidegate.dataflows.graph import Graph, Unit


def build(border: str, *procedures: str, nested: tuple[str, ...] = ()) -> Graph:
    """``build("b", "p: b > x y", "q: x")``: streams are declared as they are named."""
    app = App()
    links = []
    for text in procedures:
        name, _, rest = text.partition(":")
        inputs, _, outputs = rest.partition(">")
        links.append((name, inputs.split(), outputs.split()))
    for name in border.split():
        app.stream(name, "a INTEGER", border=True)
    for name in dict.fromkeys(stream for _, _, outputs in links for stream in outputs):
        app.stream(name, "a INTEGER")
    for name, inputs, outputs in links:

        def body(txn: Any, *batches: Any) -> None: ...

        body.__name__ = name
        app.procedure(inputs=inputs, outputs=outputs)(body)
    for members in nested:
        app.nested(*members.split(), name="nest_" + "_".join(members.split()))
    return app.graph()


def ranks(graph: Graph) -> dict[str, int]:
    return {unit.name: unit.rank for unit in graph.units}


def names(units: list[Unit]) -> list[str]:
    return [unit.name for unit in units]


def test_a_chain_is_ranked_from_its_border() -> None:
    graph = build("b", "r: y", "q: x > y", "p: b > x")
    assert ranks(graph) == {"p": 0, "q": 1, "r": 2}
    assert names(graph.caused_by["b"]) == ["p", "q", "r"]
    assert names(graph.consumers["x"]) == ["q"]


def test_declaration_order_decides_where_the_graph_leaves_a_choice() -> None:
    assert ranks(build("b", "p: b > x y", "r: y", "q: x")) == {"p": 0, "r": 1, "q": 2}


def test_fan_out_and_fan_in() -> None:
    graph = build("b", "p: b > x y", "q: x > z", "r: y > w", "s: z w")
    assert ranks(graph) == {"p": 0, "q": 1, "r": 2, "s": 3}
    (last,) = graph.consumers["w"]
    assert (last.name, last.ancestors) == ("s", {"b"})


def test_a_unit_with_two_border_ancestors_is_caused_by_both() -> None:
    graph = build("a b", "p: a > x", "q: x b", "r: b")
    ancestors = {unit.name: set(unit.ancestors) for unit in graph.units}
    assert ancestors == {"p": {"a"}, "q": {"a", "b"}, "r": {"b"}}
    assert names(graph.caused_by["a"]) == ["p", "q"]
    assert set(names(graph.caused_by["b"])) == {"q", "r"}


def test_a_nested_transaction_is_one_unit_with_adjacent_ranks() -> None:
    graph = build("b", "p: b > x", "q: x > y", "r: y > z", "s: z", nested=("r q",))
    assert ranks(graph) == {"p": 0, "nest_r_q": 1, "s": 3}
    unit = graph.units[1]
    assert [member.name for member in unit.members] == ["q", "r"]
    assert (unit.nested, unit.inputs, unit.outputs) == (True, ("x",), ("y", "z"))


def test_contraction_orders_what_would_otherwise_stand_between() -> None:
    """other reads what first emits; as one unit, first and second stand in front of it."""
    graph = build("b", "first: b > x", "other: x", "second: x", nested=("first second",))
    assert ranks(graph) == {"nest_first_second": 0, "other": 2}


def test_dataflows_are_the_connected_parts_named_after_their_first_unit() -> None:
    graph = build("a b c", "p: a > x", "q: x", "r: b", "s: c", "t: c")
    assert {unit.name: unit.dataflow for unit in graph.units} == {
        "p": "p",
        "q": "p",
        "r": "r",
        "s": "s",
        "t": "s",
    }
    assert ranks(graph) == {"p": 0, "q": 1, "r": 0, "s": 0, "t": 1}


def test_streams_that_meet_late_are_one_dataflow() -> None:
    graph = build("a b", "p: a > x", "q: b > y", "r: x y")
    assert {unit.dataflow for unit in graph.units} == {"p"}


def test_oltp_procedures_stand_apart() -> None:
    app = App()
    app.table("CREATE TABLE t (a INTEGER PRIMARY KEY)")

    @app.procedure(reads="t")
    def look(txn: Any) -> None: ...

    graph = app.graph()
    assert graph.units == []
    assert graph.oltp["look"].rank == 0


def test_a_key_is_inherited_downstream() -> None:
    app = App()
    app.stream("orders", "patient INTEGER", border=True, key="patient")
    app.stream("checked", "drug VARCHAR")
    app.procedure(inputs="orders", outputs="checked")(named("check"))
    app.procedure(inputs="checked")(named("give"))
    assert app.graph().keyed == {"orders": "INTEGER", "checked": "INTEGER"}


def named(name: str) -> Any:
    def body(txn: Any, *given: Any) -> None: ...

    body.__name__ = name
    return body


def test_a_units_access_is_the_union_of_its_members() -> None:
    app = App()
    app.table("CREATE TABLE meds (patient INTEGER PRIMARY KEY)", partition_by="patient")
    app.table("CREATE TABLE log (id INTEGER PRIMARY KEY)")
    app.table("CREATE TABLE stock (id INTEGER PRIMARY KEY)")
    app.stream("orders", "patient INTEGER", border=True, key="patient")
    app.stream("checked", "patient INTEGER")
    app.procedure(inputs="orders", outputs="checked", reads=[partition("meds"), committed("log"), "stock"])(
        named("check")
    )
    app.procedure(inputs="checked", writes=[partition("meds"), "stock"], reads=[committed("log")])(named("give"))
    app.nested("check", "give")
    (unit,) = app.graph().units
    access = {a.table: (a.write, a.by_key, a.committed) for a in unit.access}
    assert access == {"meds": (True, True, False), "log": (False, False, True), "stock": (True, False, False)}


def test_a_trigger_widens_the_access_of_the_procedure_it_runs_in() -> None:
    app = App()
    app.table("CREATE TABLE seen (a INTEGER PRIMARY KEY)")
    app.table("CREATE TABLE kept (a INTEGER PRIMARY KEY)")
    app.stream("b", "a INTEGER", border=True)
    app.stream("x", "a INTEGER")
    app.procedure(inputs="b", outputs="x", reads=["seen"])(named("p"))
    app.procedure(inputs="x")(named("q"))
    app.trigger("b", "INSERT INTO seen SELECT a FROM b")
    app.trigger("x", "INSERT INTO kept SELECT a FROM x")
    access = {name: {(a.table, a.write) for a in found} for name, found in app.graph().access_of.items()}
    assert access == {"p": {("seen", True), ("kept", True)}, "q": set()}


def test_a_nested_transaction_inside_another_only_groups() -> None:
    app = App("grouped")
    app.stream("a", "x INTEGER", border=True)
    for name in ("b", "c"):
        app.stream(name, "x INTEGER")
    app.procedure(inputs="a", outputs="b")(named("first"))
    app.procedure(inputs="b", outputs="c")(named("second"))
    app.procedure(inputs="c")(named("third"))
    inner = app.nested("first", "second", name="inner")
    with pytest.raises(DeclarationError, match=r"there is no procedure 'fourth'"):
        app.nested(inner, "fourth", name="outer")
    assert list(app.nested_groups) == ["inner"], "a mistake leaves the app as it was"
    with pytest.raises(DeclarationError, match=r"in two nested transactions.*name 'inner' as a member"):
        app.nested("second", "third", name="outer")
    app.nested(inner, "third", name="outer")
    (unit,) = app.graph().units
    assert (unit.name, [member.name for member in unit.members]) == ("outer", ["first", "second", "third"])
