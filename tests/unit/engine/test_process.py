"""What an open engine changes in its process, and that it puts it back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import tidegate
from tidegate import App, TidegateError, process
from tidegate.process import SWITCH_INTERVAL_S


@pytest.fixture
def interval(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Before each test no engine is open, nothing is frozen, and threads take turns as Python likes."""
    monkeypatch.setattr(process, "_open", 0)  # another test may have left one behind
    gc.unfreeze()
    sys.setswitchinterval(0.005)
    before = sys.getswitchinterval()
    yield before
    assert gc.get_freeze_count() == 0
    assert sys.getswitchinterval() == before


def test_what_existed_before_is_left_out_of_collections_while_an_engine_is_open(interval: float) -> None:
    first, second = tidegate.open(App("one")), tidegate.open(App("two"))
    assert gc.get_freeze_count() > 1_000
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    first.close()
    first.close()
    assert gc.get_freeze_count() > 1_000  # the other one is still open
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    second.close()


def test_a_process_with_rules_of_its_own_is_left_alone(interval: float) -> None:
    with tidegate.open(App("one"), tune_process=False):
        assert gc.get_freeze_count() == 0
        assert sys.getswitchinterval() == interval


def test_a_shorter_interval_stays(interval: float) -> None:
    sys.setswitchinterval(0.0001)
    try:
        with tidegate.open(App("one")):
            assert sys.getswitchinterval() < SWITCH_INTERVAL_S / 2
    finally:
        sys.setswitchinterval(interval)


def test_an_abandoned_engine_puts_it_back_too(interval: float) -> None:
    tidegate.open(App("one")).abandon()


def test_other_values_are_refused() -> None:
    with pytest.raises(TidegateError, match="tune_process must be True or False, got 'yes'"):
        tidegate.open(App("one"), tune_process="yes")
