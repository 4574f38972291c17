"""A scraped page, read by prometheus_client's parsers: what other people's software makes of it."""

from __future__ import annotations

import math
import shutil
import subprocess

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

Labels = frozenset[tuple[str, str]]


class Page:
    """Samples by name and labels. Two samples of one series fail at once."""

    def __init__(self, body: bytes, *, openmetrics: bool = False) -> None:
        self.text = body.decode()
        parse = parse_openmetrics if openmetrics else parse_text
        self.families: dict[str, Metric] = {}
        self.samples: dict[str, dict[Labels, float]] = {}
        for family in parse(self.text):
            assert family.name not in self.families, f"{family.name} is there twice"
            self.families[family.name] = family
            for sample in family.samples:
                series = self.samples.setdefault(sample.name, {})
                labels = frozenset(sample.labels.items())
                assert labels not in series, f"{sample.name}{dict(labels)} is there twice"
                series[labels] = sample.value

    def names(self) -> set[str]:
        """Names of the families as the page's TYPE lines spell them."""
        return {line.split(" ")[2] for line in self.text.splitlines() if line.startswith("# TYPE ")}

    def select(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """All series of the name that have these labels."""
        wanted = set(labels.items())
        return [(dict(found), value) for found, value in self.samples.get(name, {}).items() if wanted <= found]

    def value(self, name: str, **labels: str) -> float:
        """The one series with these labels."""
        found = self.select(name, **labels)
        assert len(found) == 1, f"{name}{labels}: {len(found)} series"
        return found[0][1]

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Values by one label; it must tell the series apart."""
        found = self.select(name, **labels)
        values = {series[label]: value for series, value in found}
        assert len(values) == len(found), f"{name}{labels} has more labels than {label}"
        return values

    def finite(self) -> None:
        """Every number is one (a histogram's last bound apart, which is a label)."""
        for name, series in self.samples.items():
            for labels, value in series.items():
                assert math.isfinite(value), f"{name}{dict(labels)} = {value}"


def promtool_complaints(body: bytes) -> str:
    """What ``promtool check metrics`` has to say; "" for a clean page."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: it is in Debian's package prometheus"
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)
    complaints = (done.stdout + done.stderr).decode()
    return complaints if complaints or done.returncode == 0 else f"exit status {done.returncode}"
