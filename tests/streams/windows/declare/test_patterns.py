"""Which patterns there are, how they nest, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plan_cases import DECOMPOSED, INCREMENTAL, KINDS, NAMED, PATTERNS, WHOLE, spec_of

from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.kinds import CONTEXT_FREE
from tidegate.streams.windows.declare.patterns import KeyFarm, PaneFarm, Sequential, WindowFarm, WindowMapReduce, check


@pytest.mark.parametrize(
    ("made", "text", "total"),
    [
        (Sequential(), "Sequential()", 1),
        (KeyFarm(4), "KeyFarm(workers=4)", 4),
        (WindowFarm(workers=3, active=True), "WindowFarm(workers=3, active=True)", 3),
        (PaneFarm(2), "PaneFarm(workers=2)", 2),
        (WindowMapReduce(workers=5), "WindowMapReduce(workers=5)", 5),
        (WindowMapReduce(2, parts=9), "WindowMapReduce(workers=2, parts=9)", 2),
        (KeyFarm(PaneFarm(workers=2), workers=3), "KeyFarm(PaneFarm(workers=2), workers=3)", 6),
        (WindowFarm(WindowMapReduce(4), workers=2), "WindowFarm(WindowMapReduce(workers=4), workers=2)", 8),
    ],
)
def test_what_they_say_of_themselves(made: Any, text: str, total: int) -> None:
    assert repr(made) == text
    assert made.total == total
    assert made == eval(text)
    assert hash(made) == hash(eval(text))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WindowMapReduce(4, parts=3), ["one for each of the 4 workers at least", "got 3"]),
        (lambda: WindowMapReduce(2, parts=True), ["parts must be a whole number", "got True"]),
        (lambda: KeyFarm(KeyFarm(2)), ["KeyFarm(KeyFarm(workers=2))", "PaneFarm or WindowMapReduce"]),
        (lambda: KeyFarm(WindowFarm(2)), ["KeyFarm(WindowFarm(workers=2))", "not a possible nesting"]),
        (lambda: WindowFarm(KeyFarm(2)), ["WindowFarm(KeyFarm(workers=2))", "not a possible nesting"]),
        (lambda: WindowFarm(Sequential(), workers=3), ["WindowFarm(Sequential())", "write WindowFarm(workers=3)"]),
        (lambda: PaneFarm(KeyFarm(2)), ["PaneFarm(KeyFarm(workers=2))", "KeyFarm(PaneFarm(workers=2), workers=2)"]),
        (lambda: PaneFarm(WindowMapReduce(2)), ["PaneFarm(WindowMapReduce(workers=2))", "not a possible nesting"]),
        (lambda: WindowMapReduce(PaneFarm(2)), ["WindowMapReduce(PaneFarm(workers=2))", "not a possible nesting"]),
        (lambda: KeyFarm(workers=0), ["KeyFarm", "positive", "0"]),
        (lambda: PaneFarm(workers=True), ["PaneFarm", "positive", "True"]),
        (lambda: WindowFarm("four"), ["WindowFarm(four)", "not a possible nesting"]),
    ],
)
def test_other_nestings_are_refused_by_name(make: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(DeclarationError) as refused:
        make()
    for word in words:
        assert word in str(refused.value)


def valid(pattern: Any, kind: str, function: Any) -> bool:
    """The rules, written once more."""
    free = kind in (*CONTEXT_FREE, "hopping")
    if isinstance(pattern.core, (PaneFarm, WindowMapReduce)) and function not in (DECOMPOSED, NAMED):
        return False
    if isinstance(pattern.core, PaneFarm) and not free:
        return False
    return free or not pattern.active


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_what_is_not_valid_is_refused(pattern: Any, kind: str) -> None:
    for function in (WHOLE, DECOMPOSED, INCREMENTAL, NAMED):
        spec = spec_of(kind, function)
        if valid(pattern, kind, function):
            check(pattern, spec, function)
        else:
            with pytest.raises(DeclarationError, match="window over readings") as refused:
                check(pattern, spec, function)
            assert repr(pattern) in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "kind", "function", "words"),
    [
        (PaneFarm(2), "count", WHOLE, ["whole(spread)", "decomposed(pane, combine)", "KeyFarm or WindowFarm"]),
        (WindowMapReduce(2), "count", INCREMENTAL, ["incremental(folded)", "can't be decomposed"]),
        (PaneFarm(2), "session", DECOMPOSED, ["session window", "use WindowMapReduce"]),
        (WindowFarm(2, active=True), "slide_by_tuple", WHOLE, ["slide-by-tuple window", "leave out active=True"]),
        (KeyFarm(2, active=True), "delta", WHOLE, ["delta window", "leave out active=True"]),
    ],
)
def test_a_refusal_names_cause_and_remedy(pattern: Any, kind: str, function: Any, words: list[str]) -> None:
    with pytest.raises(DeclarationError) as refused:
        check(pattern, spec_of(kind, function), function)
    for word in [repr(pattern), *words]:
        assert word in str(refused.value)


def test_a_key_farm_needs_keys() -> None:
    spec = spec_of("count", WHOLE, by=())
    with pytest.raises(DeclarationError, match=r"KeyFarm\(workers=2\) divides by key.*by=.*WindowFarm"):
        check(KeyFarm(2), spec, WHOLE)
    check(KeyFarm(2), spec, WHOLE, keyed=True)
    check(KeyFarm(2), spec_of("count", WHOLE), WHOLE)


def test_something_else_is_no_pattern() -> None:
    with pytest.raises(DeclarationError, match="pattern= takes Sequential, KeyFarm"):
        check("farm", spec_of("count", WHOLE), WHOLE)  # type: ignore[arg-type]
