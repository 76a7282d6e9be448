"""Text that can be stored: everything but halves of surrogate pairs, which some JSON contains."""

from __future__ import annotations

HALF = "is not valid Unicode: it contains half of a surrogate pair, which can't be stored"


def is_unicode(value: str) -> bool:
    """Can it be stored?"""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
