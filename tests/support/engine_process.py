"""A served engine for the kill tests: python engine_process.py DIRECTORY PORT. Prints its URL when it takes requests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main(directory: str, port: int) -> None:
    from meters import make_app

    import tidegate
    from tidegate.server.serve import serve
    from tidegate.server.settings import Settings
    from tidegate.server.tokens import load_tokens

    with tidegate.open(make_app(), directory, merge_rows=200) as engine:
        settings = Settings(port=port)
        serve(engine, settings, load_tokens(None, None), on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
