"""Punctuations: rows that carry no data but say how far a stream's event time has advanced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.errors import DataError, TidegateError
from tidegate.streams.windows.declare.kinds import WindowSpec

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


def punctuation_rows(
    engine: Engine, stream: str, at: Any, key: Any, source: Any, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The rows that tell every window over ``stream`` that no row before ``at`` will follow. The caller holds the lock."""
    border = engine.acceptance.border(stream)
    windows = _windows(engine, stream)
    fixed = dict(values)
    for spec in windows.values():
        fixed |= {str(spec.on): at, str(spec.punctuation): True}
    relation = border.relation
    for name in values:
        relation.column(name)
    if key is not None and border.key is None:
        raise TidegateError(f"punctuate({stream!r}): stream {stream} has no key, got key={key!r}", stream=stream)
    keys = [key] if key is not None or border.key is None else list(border.sequences)
    rows = [
        {**fixed, **({} if border.key is None else {border.key: one}), **sources}
        for one in keys
        for sources in _sources(engine, windows, one, source)
    ]
    for row in rows[:1]:
        missing = [c.name for c in relation.columns if not c.nullable and row.get(c.name) is None]
        if missing:
            raise DataError(
                f"punctuate({stream!r}): {', '.join(missing)} of {stream} can't be NULL, and a punctuation has no data. Give "
                f"any value, it is ignored: punctuate({stream!r}, at, {missing[0]}=…), or declare the column without NOT NULL",
                relation=stream,
                column=missing[0],
            )
    return rows


def _windows(engine: Engine, stream: str) -> dict[tuple[str, str], WindowSpec]:
    """The windows over a stream, by procedure and name; raises unless all of them recognise punctuations."""
    found: dict[tuple[str, str], WindowSpec] = {}
    deaf = []
    for procedure in engine.app.procedures.values():
        for name, spec in procedure.windows.items():
            if isinstance(spec, WindowSpec) and spec.stream == stream and spec.punctuation is not None:
                found[procedure.name, name] = spec
            elif stream in spec.streams:
                deaf.append(f"{procedure.name}.{name}")
    if not found or deaf:
        told = f"the windows {', '.join(deaf)} would treat it as data" if deaf else f"there is no window over {stream}"
        raise TidegateError(
            f"punctuate({stream!r}): {told}. Give the stream a BOOLEAN column and name it in its windows: "
            f"window({stream!r}, …, on=…, punctuation=…)",
            stream=stream,
        )
    return found


def _sources(
    engine: Engine, windows: Mapping[tuple[str, str], WindowSpec], key: Any, source: Any
) -> list[dict[str, Any]]:
    """The source columns of one row each: for the given source, or for every source that the windows have seen."""
    columns = sorted({spec.source for spec in windows.values() if spec.source is not None})
    if not columns:
        if source is not None:
            raise TidegateError(f"punctuate: none of the stream's windows follows a source, got source={source!r}")
        return [{}]
    if source is not None:
        return [dict.fromkeys(columns, source)]
    heard: dict[str, dict[Any, None]] = {column: {} for column in columns}
    for (procedure, name), spec in windows.items():
        time = getattr(engine.runtime.programs[procedure].window(name, key), "time", None)
        if spec.source is not None and time is not None:
            heard[spec.source].update(dict.fromkeys(time.sources))
    every = dict.fromkeys(one for column in columns for one in heard[column])
    return [dict.fromkeys(columns, one) for one in every]
