"""The alerts of gpumon-hardware.yaml against the constants of the detectors beside them: the same tiers of XIDs, the
same recovery actions, the same code for a mismatch; and no XID whose first error an alert cannot see.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpumon.catalogue import GPU_XID_ERRORS, GPU_XID_LAST, XID_PRECREATED
from gpumon.detect.detector import Severity
from gpumon.detect.presence import MISMATCH
from gpumon.detect.xid import RECOVERY, XIDS

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/rules/gpumon-hardware.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES}
SECTIONS = {
    section.split("\n", 1)[0]: section
    for section in re.split(r"^## ", (ROOT / "docs/RUNBOOKS.md").read_text(), flags=re.MULTILINE)
}
XID_ALERTS = {Severity.CRITICAL: "GpuXidCritical", Severity.WARNING: "GpuXidWarning"}
FORMS = {GPU_XID_ERRORS.name, GPU_XID_LAST.name}

_SELECTOR = re.compile(r"(gpumon_\w+)\{([^}]*)\}")
_MATCHER = re.compile(r'xid(=~|!~)"([\d|]+)"')


def of(severity: Severity) -> set[str]:
    """XIDs that the detector gives this severity."""
    return {xid for xid, each in XIDS.items() if each.severity is severity}


def selected(alert: str) -> dict[str, list[tuple[str, set[str]]]]:
    """By family, how its expression chooses XIDs: operators with their numbers."""
    return {
        family: [(operator, set(numbers.split("|"))) for operator, numbers in _MATCHER.findall(matchers)]
        for family, matchers in _SELECTOR.findall(ALERTS[alert]["expr"])
    }


def test_the_critical_alert_is_of_the_detectors_critical_xids() -> None:
    for family, matchers in selected("GpuXidCritical").items():
        assert matchers == [("=~", of(Severity.CRITICAL))], family


def test_the_warning_alert_is_of_all_but_critical_and_informative_xids() -> None:
    """So that it has the unknown ones, as the detector's warnings do."""
    for family, matchers in selected("GpuXidWarning").items():
        assert matchers == [("!~", of(Severity.CRITICAL)), ("!~", of(Severity.INFO))], family


@pytest.mark.parametrize("severity", XID_ALERTS, ids=lambda severity: severity.value)
def test_an_xid_that_is_not_there_at_zero_is_seen_by_its_time(severity: Severity) -> None:
    forms = selected(XID_ALERTS[severity]).keys()
    assert forms <= FORMS
    born_with_the_error = of(severity) - {str(xid) for xid in XID_PRECREATED}
    assert not born_with_the_error or GPU_XID_LAST.name in forms, f"increase() does not see {born_with_the_error}"


def test_some_xids_need_that() -> None:
    """Else one form would do."""
    assert of(Severity.CRITICAL) - {str(xid) for xid in XID_PRECREATED}


@pytest.mark.parametrize("severity", XID_ALERTS, ids=lambda severity: severity.value)
def test_the_runbook_has_a_row_for_each_xid_of_its_tier(severity: Severity) -> None:
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \|", SECTIONS[XID_ALERTS[severity]], re.MULTILINE)
    assert {xid for row in rows for xid in row.split(", ")} == of(severity)


def test_every_recovery_action_is_named_where_one_is_asked_for() -> None:
    rows = re.findall(r"^ *\| (\d+) \|", SECTIONS["GpuRecoveryActionNeeded"], re.MULTILINE)
    assert {int(row) for row in rows} == RECOVERY.keys()
    described = re.findall(r"(?<=[:,] )(\d) ", ALERTS["GpuRecoveryActionNeeded"]["annotations"]["description"])
    assert {int(number) for number in described} == RECOVERY.keys()


def test_a_mismatch_of_versions_has_the_detectors_code() -> None:
    assert f'code="{MISMATCH}"' in ALERTS["GpuDriverMismatch"]["expr"]
    mine = yaml.safe_load((ROOT / "deploy/prometheus/rules/gpumon-self.yaml").read_text())
    left_out = [r for g in mine["groups"] for r in g["rules"] if "gpumon_nvml_error_info" in r["expr"]]
    assert left_out
    assert all(f'code="{MISMATCH}"' in rule["expr"] for rule in left_out)
