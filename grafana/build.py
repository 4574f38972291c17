"""Writes the dashboards: ``python -m grafana.build``; with ``--check`` only says which are not what it would write."""

from __future__ import annotations

import sys
from pathlib import Path

from grafana.boards import explain, fleet, health, inference, node

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = (fleet.board, node.board, inference.board, explain.board, health.board)


def texts() -> dict[str, str]:
    """JSON by file name."""
    return {f"{made.uid}.json": made.text() for made in (board() for board in BOARDS)}


def main(arguments: list[str]) -> int:
    """Returns 1 if, with ``--check``, a file is not fresh."""
    wanted = texts()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if arguments == ["--check"]:
        stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
        for name in stale:
            print(f"grafana/dashboards/{name} is not what grafana/boards make: run python -m grafana.build")
        return 1 if stale else 0
    if arguments:
        print("usage: python -m grafana.build [--check]")
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
