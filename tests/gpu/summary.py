"""Last step: the table of what was found, printed and kept as summary.txt. Exit status 1 on any ERROR or NO."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.gpu.common import OUT, ROWS, Row

WIDTH = 32


def main(steps: list[str]) -> int:
    """``steps``: ``name=exit status`` of each, in order."""
    lines: list[str] = []
    bad = 0
    for entry in steps:
        step, _, status = entry.partition("=")
        seconds, rows = _rows(OUT / ROWS / f"{step}.json")
        if not rows:
            rows = [Row(step, _last_line(step, status), "ERROR")]
        lines.append(f"-- {step} ({seconds:.0f} s)" if seconds else f"-- {step}")
        for what, value, verdict in rows:
            bad += verdict in ("ERROR", "NO")
            lines.append(f"{verdict:<6}{what:<{WIDTH}} {value}")
    text = "\n".join(lines) + "\n"
    (OUT / "summary.txt").write_text(text)
    print(text, end="")
    return 1 if bad else 0


def _rows(path: Path) -> tuple[float, list[Row]]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return 0.0, []
    return document["seconds"], [Row(*row) for row in document["rows"]]


def _last_line(step: str, status: str) -> str:
    if status in ("124", "137"):
        return "took too long and was ended"
    try:
        lines = (OUT / "logs" / f"{step}.txt").read_text().strip().splitlines()
    except OSError:
        lines = []
    return f"ended with status {status}: {lines[-1] if lines else 'without a word'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
