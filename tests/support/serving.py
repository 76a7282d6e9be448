"""A server process for tests: the real server over the shop, with its query replica when that is asked for.

    python serving.py '{"app": "shop", "data": …, "settings": {…}, "tokens": "…", "queries": true, "engine": {…}, "sink": "sqlite:///…",
                        "descriptors": 200}'

Prints one line with its URL when it takes requests.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    asked = json.loads(sys.argv[1])
    if "descriptors" in asked:
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked["descriptors"] // 2, asked["descriptors"]))
    app = importlib.import_module(asked.get("app", "shop")).app

    import tidegate
    from tidegate.connectors.sql.sink import SqlSink
    from tidegate.server.logs import set_up_logs
    from tidegate.server.serve import serve, start_replica
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import load_tokens

    set_up_logs(as_json=True)
    given = {k: Path(v) if k.startswith("tls") else v for k, v in asked.get("settings", {}).items()}
    settings = Settings(**{"port": 0, **given})
    tokens = load_tokens(None, asked.get("tokens"))
    with ExitStack() as stack:
        engine = stack.enter_context(tidegate.open(app, asked.get("data"), **asked.get("engine", {})))
        if "sink" in asked:
            engine.deliver("shipments", SqlSink(asked["sink"], "shipped", at_once=7), "out", background=True)
        replica = start_replica(engine, settings, None, None) if asked.get("queries") else None
        if replica is not None:
            stack.callback(replica.stop)
        serve(engine, settings, tokens, replica, on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
