"""An app whose windows are evaluated on a cluster: python cluster_process.py MASTER DIRECTORY ROWS.

Feeds the rows in ten parts and prints a line after each; then what became of the evaluations, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

PARTS = 10


def main(master: str, directory: str, count: int) -> None:
    from wards import make_app, rows

    import tidegate

    with tidegate.open(make_app(), directory, backend="spark", spark=master, look_ahead=16) as engine:
        history = rows(count)
        for part in range(PARTS):
            engine.feed("vitals", history[part * count // PARTS : (part + 1) * count // PARTS], size=20)
            print(part, flush=True)
        found = engine.query("SELECT * FROM tidegate.evaluations")
        told = dict(zip(found.columns, found.rows[0], strict=True))
        print(json.dumps({**told, "plan": engine.plan("watch.last").explain()}, default=str), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
