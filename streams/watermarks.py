"""Watermarks: the time before which no row of a stream will follow.

A watermark is a whole number: microseconds since 1970 for TIMESTAMP and DATE, else the integers of the column itself.
"""

from __future__ import annotations

NEVER = -(2**62)  # before any time: nothing is known
END = 2**62  # after any time: nothing follows
