"""Where the windows over waveforms are evaluated: in this process, or on Spark."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tidegate import windows as w
from tidegate.errors import TidegateError


@dataclass(frozen=True)
class Where:
    """``settings`` for tidegate.open, ``window`` for the declaration, ``told`` for the user.

    On Spark a job costs the same for one window as for many: batches of five seconds of all patients are collected, and
    their windows are evaluated in one job.
    """

    told: str
    settings: dict[str, Any] = field(default_factory=dict)
    window: dict[str, Any] = field(default_factory=dict)

    @property
    def spark(self) -> bool:
        return self.window.get("backend") == "spark"


def choose_backend(wanted: str = "auto") -> Where:
    """``auto`` and ``local``: this process; ``spark``: Spark, or an error.

    For a ward of some patients Spark, with its start and a job for every few seconds, costs more than it saves. So ``auto``
    is a fixed choice, not a measured one; a window's ``backend="auto"`` measures.
    """
    if wanted == "local":
        return Where("windows: evaluated in this process")
    if wanted == "auto":
        return Where(
            "windows: evaluated in this process, which costs less than starting Spark; Spark pays for heavier functions over "
            "more patients, and on clusters (--backend spark)"
        )
    why = _without_spark()
    if why is not None:
        raise TidegateError(f"no Spark for the windows: {why}")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\..*")  # about versions of pandas
    told = "windows of the alert: evaluated on Spark, embedded in this process"
    return Where(told, {"executor": "threads", "workers": 4}, {"pattern": w.KeyFarm(2), "backend": "spark"})


def _without_spark() -> str | None:
    """Why there is no Spark; None: there is."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'tidegate[spark]'"
    from tidegate.streams.spark.java import find_java

    try:
        find_java()
    except TidegateError as error:
        return str(error).splitlines()[0]
    return None
