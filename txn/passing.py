"""Time that passes through procedures: watermarks move windows, with rows or without, and are passed on.

Everything here belongs to the transaction: an abort undoes it, a replay repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.streams.batch import Batch, batch_of
from tidegate.streams.watermarks import END, NEVER
from tidegate.txn.log.record import to_us
from tidegate.txn.program import Program

if TYPE_CHECKING:
    from tidegate.txn.transaction import Transaction

PASSED_ON = ""  # in place of a stream: the last watermark that was passed on


class Heard:
    """The watermarks that a procedure has heard: part of its transaction, as a window's slide is."""

    slid = False

    def __init__(self, program: Program, key: Any, marks: dict[str, int]) -> None:
        self._program = program
        self._key = key
        self._marks = marks

    def commit(self) -> None:
        self._program.marks[self._key] = self._marks


def without_rows(txn: Transaction, program: Program) -> list[Batch] | None:
    """What a procedure gets that has no rows to work on: empty batches, if time has passed on one of its inputs."""
    if not any(stream in txn.streams for stream in program.inputs):
        return None
    assert txn.batch_id is not None
    txn.relations = {name: (relation, ()) for name, relation in program.inputs.items()}  # in its SQL, too
    return [Batch(relation, txn.batch_id, (), txn.key) for relation in program.inputs.values()]


def slide_in_time(txn: Transaction, program: Program, batches: Sequence[Batch]) -> bool:
    """Slide the windows by the rows of these batches and by the watermarks that came with them; does one fire?"""
    now_us = to_us(txn.time) if program.timed else 0
    rows = {batch.relation.name: batch.given for batch in batches}
    marks = {stream: txn.streams[stream].watermark for stream in program.inputs if stream in txn.streams}
    fired = False
    for name, streams in program.window_streams:
        state: Any = program.window(name, txn.key)
        timed = name in program.minding and any(marks.get(stream) is not None for stream in streams)
        if not timed and not any(len(rows[stream]) for stream in streams):
            slide = state.still()
        elif len(streams) > 1:
            slide = state.slide(tuple(rows[s] for s in streams), now_us, tuple(marks.get(s) for s in streams))
        elif timed:
            slide = state.slide(rows[streams[0]], now_us, marks[streams[0]])
        else:
            slide = state.slide(rows[streams[0]], now_us)
        txn.slides[program.name, name] = slide
        fired |= slide.slid
    return fired


def pass_on(txn: Transaction, program: Program) -> None:
    """Tell the procedure's consumers how far time has come: as far as on all inputs, held back by open windows."""
    if not program.passes:
        return
    before = program.marks.get(txn.key, {})
    marks = dict(before)
    for stream in program.inputs:
        mark = txn.streams[stream].watermark if stream in txn.streams else None
        if mark is not None:
            marks[stream] = max(marks.get(stream, NEVER), mark)
    ended = all(marks.get(stream) == END for stream in program.inputs)
    reached = END if ended else _reached(txn, program, marks)
    if reached > marks.get(PASSED_ON, NEVER):
        marks[PASSED_ON] = reached
        for stream, all_of_it in program.passes.items():
            if ended or all_of_it:
                _put(txn, stream, program, reached)
    if marks != before:
        txn.slides[program.name, PASSED_ON] = Heard(program, txn.key, marks)  # type: ignore[assignment]


def _reached(txn: Transaction, program: Program, marks: Mapping[str, int]) -> int:
    if not any(program.passes.values()):
        return NEVER
    own = [txn.slides[program.name, name].held_back() for name in program.windows]
    return min([*own, *(marks.get(stream, NEVER) for stream in program.uncovered)])


def _put(txn: Transaction, stream: str, program: Program, mark: int) -> None:
    """The batch on an output stream carries the watermark; without rows, there is one all the same."""
    assert txn.batch_id is not None
    emitted = txn.emitted.get(stream)
    rows = () if emitted is None else emitted.given
    batch = batch_of(program.outputs[stream], txn.batch_id, rows, txn.key, mark)
    txn.streams[stream] = batch
    if emitted is not None:
        txn.emitted[stream] = batch
