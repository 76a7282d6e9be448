"""Why something failed on Spark, in one line: Spark's own text is pages long, with the cause in the middle."""

from __future__ import annotations

import re

RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
THROWN = re.compile(r"^(?:: |Caused by: )?[\w.$]+(?:Exception|Error): +(.+)$", re.MULTILINE)
CODES = re.compile(r"^\[[A-Z_.0-9]+\] *|\s*SQLSTATE: \w+$")


def reason_of(error: BaseException) -> str:
    """For an exception in a Python worker, that exception; for one in the JVM, its chain of causes."""
    text = str(error)
    raised = [line.strip() for line in text.splitlines() if RAISED.match(line)]
    if not raised:
        thrown = THROWN.findall(text) or text.strip().splitlines()[:1] or [type(error).__name__]
        return ": ".join(dict.fromkeys(CODES.sub("", message).rstrip(" .") for message in thrown))
    found = raised[-1]
    if "No module named" in found:
        found += (
            "; Spark's Python workers lack that module: install it there, put it on their PYTHONPATH, or "
            "name the right Python with PYSPARK_PYTHON before the session starts"
        )
    return found
