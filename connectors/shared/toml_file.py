"""Connectors from a TOML file: the kinds, their parameters, and errors that name the key.

    app = "shop.py:app"             the engine: an app in a directory …
    directory = "shop.db"
    url = "http://127.0.0.1:8080"   … or one that is served (token = "${TIDEGATE_TOKEN}")

    [[source]]                      [[sink]]
    name = "orders"                 name = "warehouse"
    kind = "files"                  kind = "sql"
    stream = "orders"               stream = "shipments"
    path = "in"                     url = "postgresql://…"

Everything else is a parameter of the connector's class, under the same name, except ``size``, ``limit`` and ``finish`` of a
source and ``tries`` of a sink, which are those of ``ingest`` and ``deliver``. ``${NAME}`` in a text is an environment
variable.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError
from tidegate.guard.addresses import without_secrets
from tidegate.guard.private import check_secret

SOURCES = {
    "files": ("files.source", "FileSource"),
    "sql": ("sql.source", "SqlSource"),
    "postgres_changes": ("postgres.changes", "PostgresChanges"),
    "kafka": ("kafka.source", "KafkaSource"),
    "mqtt": ("mqtt", "MqttSource"),
    "http": ("http.source", "HttpSource"),
    "websocket": ("http.source", "WebSocketSource"),
    "wfdb": ("wfdb", "WfdbSource"),
}
SINKS = {
    "files": ("files.sink", "FileSink"),
    "sql": ("sql.sink", "SqlSink"),
    "kafka": ("kafka.sink", "KafkaSink"),
    "webhook": ("http.webhook", "WebhookSink"),
}
VALUES = {"json": "JsonValues", "json_schema": "JsonSchemaValues", "avro": "AvroValues"}
EXTRAS = {"kafka": "kafka", "mqtt": "mqtt", "wfdb": "wfdb", "postgres_changes": "postgres", "websocket": "server"}
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET_KEY = re.compile(r"(password|secret|token|authorization)$", re.IGNORECASE)
TOP = ("app", "directory", "url", "token", "source", "sink")
OPTIONS = {"source": ("size", "limit", "finish"), "sink": ("tries",)}
COMMON = {what: ("name", "kind", "stream", *options) for what, options in OPTIONS.items()}


@dataclass(frozen=True)
class Connector:
    """One entry: its place in the file, and the source or sink it describes."""

    key: str
    name: str
    kind: str
    stream: str
    made: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """A file, read and understood."""

    app: str | None
    directory: str | None
    url: str | None
    token: str | None
    sources: list[Connector]
    sinks: list[Connector]


def read_setup(path: str | Path) -> Setup:
    """The connectors that a file describes; TidegateError names the file and the key that is wrong."""
    try:
        told = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise TidegateError(f"can't read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise TidegateError(f"{path} is not valid TOML: {error}") from None
    if _secrets(told):
        check_secret(Path(path), "passwords or tokens (write them as ${NAME}, and they come from the environment)")
    try:
        return _setup(_filled(told, "file"))
    except TidegateError as error:
        raise TidegateError(f"{path}: {error}") from None


def _secrets(value: Any, key: str = "") -> bool:
    """Is there a password or a token in it that does not come from the environment?"""
    if isinstance(value, dict):
        return any(_secrets(inner, name) for name, inner in value.items())
    if isinstance(value, list):
        return any(_secrets(inner, key) for inner in value)
    if not isinstance(value, str) or _VARIABLE.search(value):
        return False
    return bool(_SECRET_KEY.search(key) or re.search(r"://[^/@\s]*:[^/@\s]+@", value))


def _setup(told: Mapping[str, Any]) -> Setup:
    _known("", told, TOP)
    app, directory, url, token = (_text("", told, key) for key in ("app", "directory", "url", "token"))
    if (url is None) == (directory is None):
        raise TidegateError("give either directory (with app) or url: where is the engine?")
    if url is not None and not url.startswith(("http://", "https://")):
        raise TidegateError(
            f"url = {without_secrets(url)!r}: expected the address of a server, http://host:port or https://host"
        )
    if directory is not None and app is None:
        raise TidegateError("key app is missing: file.py:app or package.module:app, the app of the directory")
    sources = [_connector("source", i, entry) for i, entry in enumerate(_list(told, "source"), 1)]
    sinks = [_connector("sink", i, entry) for i, entry in enumerate(_list(told, "sink"), 1)]
    if not sources and not sinks:
        raise TidegateError("there is no [[source]] or [[sink]]: nothing to connect")
    for found in (sources, sinks):
        names = [connector.name for connector in found]
        for connector in found:
            if names.count(connector.name) > 1:
                raise TidegateError(f"{connector.key}.name: {connector.name!r} is used twice; offsets are kept by name")
    return Setup(app, directory, url, token, sources, sinks)


def _connector(what: str, number: int, entry: Any) -> Connector:
    key = f"{what}[{number}]"
    if not isinstance(entry, dict):
        raise TidegateError(f"{key} must be a table: [[{what}]]")
    kinds = SOURCES if what == "source" else SINKS
    for needed in ("name", "kind", "stream"):
        if _text(f"{key}.", entry, needed) is None:
            raise TidegateError(f"{key}.{needed} is missing")
    kind = entry["kind"]
    if kind not in kinds:
        raise TidegateError(f"{key}.kind = {kind!r}: use one of {', '.join(kinds)}")
    given = {name: value for name, value in entry.items() if name not in COMMON[what]}
    options = {name: _option(f"{key}.{name}", name, entry[name]) for name in OPTIONS[what] if name in entry}
    return Connector(key, entry["name"], kind, entry["stream"], _made(key, kind, *kinds[kind], given), options)


def _option(key: str, name: str, value: Any) -> Any:
    if name != "finish":
        return _whole(key, value)
    if not isinstance(value, bool):
        raise TidegateError(f"{key} = {value!r}: expected true or false")
    return value


def _made(key: str, kind: str, module: str, name: str, given: dict[str, Any]) -> Any:
    try:
        made = getattr(importlib.import_module(f"tidegate.connectors.{module}"), name)
    except ImportError as error:
        extra = EXTRAS.get(kind, kind)
        raise TidegateError(f"{key}.kind = {kind!r}: {error}; pip install 'tidegate[{extra}]'") from None
    parameters = inspect.signature(made).parameters
    _known(f"{key}.", given, [*parameters])
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in given:
            raise TidegateError(f"{key}.{parameter.name} is missing; {kind} takes {', '.join(parameters)}")
    for given_name, value in given.items():
        _check_type(f"{key}.{given_name}", value, str(parameters[given_name].annotation))
    if "values" in given:
        given = {**given, "values": _values(f"{key}.values", given["values"])}
    try:
        return made(**given)
    except TidegateError as error:
        raise TidegateError(f"{key}: {error}") from None


def _values(key: str, told: Any) -> Any:
    values = importlib.import_module("tidegate.connectors.shared.values")
    if not isinstance(told, (str, dict)):
        raise TidegateError(f"{key} = {told!r}: expected a table, such as {{ format = 'avro', schema = 'order.avsc' }}")
    told = {"format": told} if isinstance(told, str) else dict(told)
    chosen = told.pop("format", None)
    if chosen not in VALUES:
        raise TidegateError(f"{key}.format = {chosen!r}: use one of {', '.join(VALUES)}")
    made = getattr(values, VALUES[chosen])
    _known(f"{key}.", told, [*inspect.signature(made).parameters])
    if chosen != "json" and "schema" not in told:
        raise TidegateError(f"{key}.schema is missing: the path of the schema")
    try:
        return made(**told)
    except TidegateError as error:
        raise TidegateError(f"{key}: {error}") from None


_TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "Mapping": dict, "list": list, "Path": str}


def _check_type(key: str, value: Any, annotation: str) -> None:
    """Is it of a type that the parameter declares? Types that TOML does not have are left to the connector."""
    wanted = [
        _TYPES[word] for word in re.findall(r"\b(?:str|int|float|bool|Mapping|list|Path)\b", annotation.split("[")[0])
    ]
    wanted += [_TYPES[w] for part in annotation.split("|") for w in [part.strip().split("[")[0]] if w in _TYPES]
    if not wanted or key.endswith(".values"):
        return
    texts = "Mapping[str, str]" not in annotation or (
        isinstance(value, dict) and all(isinstance(inner, str) for inner in value.values())
    )
    fits = texts and any(isinstance(value, kind) and (type(value) is not bool or kind is bool) for kind in wanted)  # type: ignore[arg-type]
    if not fits:
        secret = key.rpartition(".")[2] in ("headers", "password", "settings", "token", "url")
        shown = f"a {type(value).__name__}" if secret else repr(value)
        raise TidegateError(f"{key} = {shown}: expected {annotation.replace(' | None', '')}")


def _known(prefix: str, told: Mapping[str, Any], known: Any) -> None:
    for key in told:
        if key not in known:
            raise TidegateError(f"unknown key {prefix}{key}; there are {', '.join(known)}")


def _text(prefix: str, told: Mapping[str, Any], key: str) -> str | None:
    value = told.get(key)
    if value is not None and not isinstance(value, str):
        raise TidegateError(f"{prefix}{key} = {value!r}: expected text")
    return value


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise TidegateError(f"{key} = {value!r}: expected a positive whole number")
    return value


def _list(told: Mapping[str, Any], key: str) -> list[Any]:
    found = told.get(key, [])
    if not isinstance(found, list):
        raise TidegateError(f"{key} must be a list of tables: [[{key}]]")
    return found


def _filled(value: Any, key: str) -> Any:
    """Texts with ``${NAME}`` replaced by the environment variable."""
    if isinstance(value, dict):
        return {name: _filled(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, key) for inner in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise TidegateError(f"key {key} names the environment variable {match[1]}, which is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(variable, value)
