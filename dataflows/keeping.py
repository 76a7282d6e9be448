"""``keep=`` of a stream: how long its batches stay after they have committed."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any

from tidegate.errors import DeclarationError
from tidegate.streams.windows.declare.durations import described, microseconds

FOREVER = "forever"
SIZES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(kb|mb|gb|tb)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Retention:
    """For so long, or in so much room; neither: forever."""

    us: int | None = None
    bytes: int | None = None
    text: str = FOREVER

    def __str__(self) -> str:
        return repr(self.text)


def declared_retention(stream: str, keep: Any) -> Retention | None:
    """What ``keep=`` of a stream means.

    >>> declared_retention("orders", "10GB").bytes, declared_retention("orders", "7d").us
    (10000000000, 604800000000)
    """
    if keep is None:
        return None
    if keep == FOREVER:
        return Retention()
    size = _SIZE.fullmatch(keep) if isinstance(keep, str) else None
    if size is not None:
        return _longer(stream, keep, Retention(bytes=int(float(size[1]) * SIZES[size[2].lower()]), text=keep))
    try:
        if not isinstance(keep, (str, dt.timedelta)):
            raise DeclarationError(f"{keep!r} is neither")
        us = microseconds(keep)
    except DeclarationError as error:
        raise DeclarationError(
            f"stream {stream}: keep={keep!r}: {error}. Give a length of time ('7d'), a size ('10GB'), or 'forever'",
            stream=stream,
        ) from None
    return _longer(stream, keep, Retention(us=us, text=described(us)))


def _longer(stream: str, keep: Any, found: Retention) -> Retention:
    if not (found.us or found.bytes):
        raise DeclarationError(f"stream {stream}: keep={keep!r} keeps nothing; leave it out", stream=stream)
    return found
