"""Writes the generated pages of docs/ (``PAGES``) from the code; with --check only says if they are fresh.

Exit code 1 with --check when a file differs from what the code says now.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpumon.docs import (
    render_configuration_markdown,
    render_detectors_markdown,
    render_explaining_markdown,
    render_metrics_markdown,
    render_scenarios_markdown,
)

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "docs/METRICS.md": render_metrics_markdown,
    "docs/CONFIGURATION.md": render_configuration_markdown,
    "docs/DETECTORS.md": render_detectors_markdown,
    "docs/EXPLAINING.md": render_explaining_markdown,
    "docs/SCENARIOS.md": render_scenarios_markdown,
}


def stale(root: Path) -> list[str]:
    """Pages below ``root`` that differ from what the code says now, or are not there."""
    return [
        page
        for page, render in PAGES.items()
        if not (root / page).is_file() or (root / page).read_text(encoding="utf-8") != render()
    ]


def main(arguments: list[str]) -> int:
    """The script. Returns the exit code."""
    if arguments == ["--check"]:
        pages = stale(ROOT)
        for page in pages:
            sys.stderr.write(f"{page} is stale: run `make docs` and commit the result\n")
        return 1 if pages else 0
    if arguments:
        sys.stderr.write("usage: gen_docs.py [--check]\n")
        return 2
    for page, render in PAGES.items():
        (ROOT / page).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
