"""What windows keep as bytes and back: exactly as it was, or refused when it is made; never anything that could run."""

from __future__ import annotations

import datetime as dt
import enum
import math
import pickle
import uuid
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate
from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.errors import CorruptionError, ProcedureFailed
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.state.saving import pack, unpack, unstorable

RELATION = Relation("readings", (Column("n", column_type("BIGINT")), Column("word", column_type("VARCHAR"))))
STRUCTURED = np.dtype([("at", "M8[us]"), ("value", "<f4"), ("where", "<i2", (2,))])


def again(value: Any) -> Any:
    return unpack(pack([value], RELATION), RELATION, ())[0]


def same(one: Any, two: Any) -> bool:
    """Equal, and of the same kind all the way down; NaN is NaN, and -0.0 is not 0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            return False
        if one.dtype == object:
            return all(map(same, one.reshape(-1), two.reshape(-1)))
        return bool(one.tobytes() == two.tobytes())
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, two) and (one == two or (one != one and two != two))
    if isinstance(one, dict):
        return len(one) == len(two) and all(map(same, one.items(), two.items()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.floats(width=32).map(np.float32),
    st.integers(0, 255).map(np.uint8),
    st.lists(st.floats(), max_size=4).map(np.array),
    st.lists(st.integers(-9, 9), min_size=6, max_size=6).map(lambda v: np.array(v, "i2").reshape(2, 3)),
)
KEYS = st.one_of(st.integers(), st.text(max_size=5), st.dates(), st.tuples(st.integers(), st.text(max_size=3)))
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
        st.dictionaries(KEYS, st.integers(), max_size=4).map(Counter),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_can_be_kept_comes_back_as_it_was(value: Any) -> None:
    assert unstorable(value, RELATION) is None
    assert same(again(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.array([(1, 2.5, (3, 4))], STRUCTURED),
        np.array([(1, 2.5, (3, 4))], STRUCTURED)[0],
        np.array(["a", "bcd"]),
        np.array(3.5),
        np.array([[1, None], ["x", 2.5]], object),
        np.array(["2026-01-02"], "M8[D]"),
        np.array([1 + 2j]),
        np.zeros((2, 0, 3), "u4"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([1, 2], ">i4"),
        10**5_000,
        RELATION.named((1, "a")),
        RELATION.row._make((1, "a")),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_arrays_large_numbers_and_rows(value: Any) -> None:
    assert unstorable([value], RELATION) is None
    found = again(value)
    if isinstance(value, tuple) and not isinstance(value, np.void):
        assert (found, found.n, found.word) == ((1, "a"), 1, "a")
    else:
        assert same(found, value)


class Colour(enum.IntEnum):
    RED = 1


@dataclass
class Sketch:
    bins: list[int]


Pair = namedtuple("Pair", "left right")


class Text(str):
    __slots__ = ()


REFUSED = [
    (Sketch([1]), "Sketch"),
    (Colour.RED, "Colour"),
    (Pair(1, 2), "Pair"),
    (Text("a"), "Text"),
    (defaultdict(int), "defaultdict"),
    (OrderedDict(), "OrderedDict"),
    (len, "builtin_function_or_method"),
    ("half a pair \ud800", "not valid Unicode"),
    (np.ma.masked_array([1], [True]), "MaskedArray"),
    (np.array([(1, None)], [("n", "i4"), ("any", "O")]), "array of"),
    (np.array([Sketch([1])], object), "Sketch"),
]


@pytest.mark.parametrize(("value", "told"), REFUSED, ids=[told for _, told in REFUSED])
@pytest.mark.parametrize("inside", [lambda v: v, lambda v: [1, {"a": (v,)}], lambda v: {"x": v}])
def test_what_would_not_come_back_is_named(value: Any, told: str, inside: Callable[[Any], Any]) -> None:
    found = unstorable(inside(value), RELATION)
    assert found is not None
    assert told in found


def test_what_is_nested_too_deep_is_refused_and_what_is_not_comes_back() -> None:
    value: Any = 1
    for _ in range(50):
        value = [value]
    assert unstorable(value, RELATION) is None
    assert again(value) == value
    assert "deep" in str(unstorable([[value]], RELATION))


def test_a_pickle_in_a_base_is_not_opened(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (tmp_path / "pwned").touch, ()

    for hostile in (
        {"pickle": pickle.dumps(Evil())},
        {"objects": [{"pickle": pickle.dumps(Evil())}], "shape": [1]},
        {"npy": b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
         + pickle.dumps(Evil())},
        {"array": "|O", "shape": [1], "data": b"\0" * 8},
    ):  # fmt: skip
        with pytest.raises((CorruptionError, ValueError)):
            unpack(msgspec.msgpack.encode(hostile), RELATION, ())
    assert not (tmp_path / "pwned").exists()


# ---- at work


def make_app(pane: Callable[[Any], Any], combine: Callable[[Any], Any]) -> App:
    app = App("panes")
    app.stream("readings", "n BIGINT NOT NULL, word VARCHAR NOT NULL", border=True)
    app.stream("found", "told VARCHAR")

    @app.procedure(
        inputs="readings",
        outputs="found",
        windows={"last": window("readings", count=6, slide=2, compute=w.decomposed(pane, combine, "told VARCHAR"))},
    )
    def tell(txn: Transaction, readings: Batch) -> None:
        txn.emit("found", [(row.told,) for row in txn.window("last").results])

    return app


PANES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Counter": (lambda p: Counter(p["word"].tolist()), lambda panes: repr(sum(panes, Counter()))),
    "rows": (lambda p: p.rows[-1], lambda panes: " ".join(row.word for row in panes)),
    "float32": (lambda p: np.float32(p["n"].sum() / 3), lambda panes: repr(sum(panes))),
    "large numbers": (lambda p: 3 ** (50 + len(p)) * int(p["n"][0] + 1), lambda panes: repr(sum(panes))),
    "fields": (lambda p: np.array([(p["n"][0], 0.1)], [("n", "i8"), ("f", "f4")]), lambda panes: repr([p["n"] for p in panes])),
    "frozenset": (lambda p: frozenset(p["word"].tolist()), lambda panes: repr(sorted(frozenset().union(*panes)))),
    "nested": (lambda p: {"at": dt.date(2026, 1, 2), "d": Decimal("1.50"), "u": uuid.UUID(int=7), "s": {1, 2}}, repr),
}  # fmt: skip


@pytest.mark.parametrize("kind", PANES)
def test_windows_go_on_after_a_restart_as_if_there_had_been_none(kind: str, tmp_path: Path) -> None:
    def told(directories: list[Path | None]) -> list[str]:
        found, n = [], 0
        for directory in directories:
            with tidegate.open(make_app(*PANES[kind]), directory) as engine:
                results = engine.subscribe("found")
                for _ in range(12 // len(directories)):
                    engine.push("readings", [(n, f"word{n % 5}")]).result()
                    n += 1
                found += [row.told for batch in results for row in batch]
        return found

    once = told([None])
    assert len(once) == 4
    assert told([tmp_path] * 4) == once


def test_a_pane_function_that_returns_what_can_t_be_kept_fails_when_it_does(tmp_path: Path) -> None:
    app = make_app(lambda p: Sketch([len(p)]), repr)
    with tidegate.open(app, tmp_path) as engine:
        engine.push("readings", [(1, "a")]).result()
        with pytest.raises(ProcedureFailed) as told:
            engine.push("readings", [(2, "b")]).result()
        assert engine.query("SELECT count(*) FROM tidegate.aborts").scalar() == 0  # its batch waits for a fix
        for part in ("over readings", "Sketch for a pane", "can't be kept in a checkpoint", "Return numbers"):
            assert part in str(told.value)
        engine.checkpoint()
    with tidegate.open(app, tmp_path) as engine:
        assert engine.query("SELECT count(*) FROM tidegate.windows").scalar() == 1
