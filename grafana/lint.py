"""Lints dashboards: ``python -m grafana.lint [FILES]`` prints ``file: panel: rule: text`` lines, and then exits 1.

Without FILES it takes grafana/dashboards, and what holds for the folder as a whole. ``.lint.yaml`` beside this file has
the exclusions, each with its reason; one that excludes nothing is itself a finding.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from grafana import lint_dashboard
from grafana.lint_model import Dashboard, read
from grafana.lint_panel import PANEL_RULES, leads_wrong, urls
from grafana.lint_target import TARGET_RULES, Asked
from grafana.promql import problems
from grafana.promql_names import Recorded, load_recorded
from grafana.promql_tree import parse

FOLDER = Path(__file__).parent / "dashboards"
EXCLUSIONS = Path(__file__).parent / ".lint.yaml"


class Finding(NamedTuple):
    """Something wrong with a dashboard."""

    file: str
    panel: str
    """Title of the panel; else what it is of, such as ``variable node``; empty for the whole."""
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.panel or '-'}: {self.rule}: {self.text}"


class Exclusion(NamedTuple):
    """Findings that are meant to be. What is empty excludes nothing from being excluded."""

    rule: str
    reason: str
    file: str = ""
    panel: str = ""
    text: str = ""
    """Part of the finding's text."""

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is meant."""
        same = self.rule == finding.rule and self.file in ("", finding.file) and self.panel in ("", finding.panel)
        return same and self.text in finding.text


def lint(board: Dashboard, recorded: Recorded) -> Iterator[Finding]:
    """What is wrong with one dashboard."""
    for name, rule in lint_dashboard.RULES:
        yield from (Finding(board.file, found.where, name, found.text) for found in rule(board, recorded))
    for panel in board.panels:
        for name, panel_rule in PANEL_RULES:
            yield from (Finding(board.file, panel.name, name, text) for text in panel_rule(panel, board))
        for target in panel.targets:
            found = problems(target.expr, recorded)
            yield from (Finding(board.file, panel.name, problem.rule, problem.text) for problem in found)
            if any(problem.rule == "target-promql" for problem in found):
                continue
            asked = Asked(target, panel, board, recorded, parse(target.expr))
            for name, target_rule in TARGET_RULES:
                yield from (Finding(board.file, panel.name, name, text) for text in target_rule(asked))


def lint_folder(boards: Sequence[Dashboard]) -> Iterator[Finding]:
    """What is wrong between dashboards: names taken twice, links that lead nowhere."""
    uids, titles = Counter(board.uid for board in boards), Counter(board.title for board in boards)
    for board in boards:
        if not board.uid or uids[board.uid] > 1:
            yield Finding(board.file, "", "unique-uid", f"uid {board.uid!r}: expected is one that no other has")
        if not board.title or titles[board.title] > 1:
            yield Finding(board.file, "", "unique-title", f"title {board.title!r}: expected is one that no other has")
        for panel in board.panels:
            for url in urls(panel):
                for text in leads_wrong(url, boards):
                    yield Finding(board.file, panel.name, "panel-links", text)


def load_exclusions(path: Path = EXCLUSIONS) -> list[Exclusion]:
    """The exclusions of a file. Raises TypeError for one without a rule or a reason, or with another key."""
    return [Exclusion(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or []]


def without(findings: Sequence[Finding], exclusions: Sequence[Exclusion]) -> list[Finding]:
    """The findings that no exclusion covers, and the exclusions that cover none."""
    left = [finding for finding in findings if not any(exclusion.covers(finding) for exclusion in exclusions)]
    idle = [each for each in exclusions if not any(each.covers(finding) for finding in findings)]
    return left + [
        Finding(each.file or EXCLUSIONS.name, each.panel, "exclusion-used", f"{each.rule} is excluded and not found")
        for each in idle
    ]


def main(arguments: list[str]) -> int:
    """Returns 1 if something is found."""
    paths = [Path(argument) for argument in arguments] or sorted(FOLDER.glob("*.json"))
    boards, recorded, exclusions = [read(path) for path in paths], load_recorded(), load_exclusions()
    findings = [finding for board in boards for finding in lint(board, recorded)]
    if arguments:  # of some files: exclusions may be for the others
        files = {board.file for board in boards}
        exclusions = [each for each in exclusions if each.file in files or any(map(each.covers, findings))]
    else:
        findings += lint_folder(boards)
    left = without(findings, exclusions)
    for finding in left:
        print(finding)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
