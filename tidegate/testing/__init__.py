"""Test doubles and the order oracle, for apps on tidegate as much as for tidegate itself.

- :class:`ManualClock`, :class:`ListSource`, :class:`ListSink`: time, input and output under a test's control;
- :func:`past_the_door`: a row with values that its table would refuse;
- :class:`SimulatedFiles`: a disk that loses power, fills up or fails at any operation;
- :class:`Faults`, :class:`FaultyFiles`, :class:`Lines`: an error at one call, or an interrupt at one line, of a run;
- :class:`SeededDriver`: runs an engine through one random but repeatable interleaving;
- :func:`check_order`: runs an app concurrently, runs it one execution after another in position order, and
  raises :class:`OrderViolation` with the smallest history it can find when the two differ in anything.
"""

from tidegate.testing.disk import PowerLoss, SimulatedFiles
from tidegate.testing.doubles import ListSink, ListSource, ManualClock, past_the_door
from tidegate.testing.driver import Call, Input, Push, SeededDriver
from tidegate.testing.faults import Faults, FaultyFiles, Lines
from tidegate.testing.history import Entry, History, Outcome, differences
from tidegate.testing.order import OrderViolation, Report, check_order
from tidegate.testing.reference import run_serially

__all__ = [
    "Call",
    "Entry",
    "Faults",
    "FaultyFiles",
    "History",
    "Input",
    "Lines",
    "ListSink",
    "ListSource",
    "ManualClock",
    "OrderViolation",
    "Outcome",
    "PowerLoss",
    "Push",
    "Report",
    "SeededDriver",
    "SimulatedFiles",
    "check_order",
    "differences",
    "past_the_door",
    "run_serially",
]
