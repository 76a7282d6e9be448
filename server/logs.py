"""Logs as plain text, or as one JSON object per line. Tokens never get here: nothing logs headers or query strings."""

from __future__ import annotations

import datetime as dt
import logging
import sys

from tidegate.wire import encode


class JsonLines(logging.Formatter):
    """One JSON object for each record, with the facts it carries (position, batch-ids, …) as fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return encode(line).decode()


class Plain(logging.Formatter):
    """One line of plain text: time, level, message and facts."""

    def format(self, record: logging.LogRecord) -> str:
        at = dt.datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        told = " ".join(f"{name}={value}" for name, value in getattr(record, "facts", {}).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {told}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(as_json: bool, level: int = logging.INFO) -> None:
    """Everything tidegate and uvicorn log goes to standard error, in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Plain())
    for name in ("tidegate", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level if name == "tidegate" else logging.WARNING)
