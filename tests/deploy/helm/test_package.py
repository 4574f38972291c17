"""The chart as a package: with the files that its folder has links to, and small enough for Helm to keep."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import tarfile
from pathlib import Path

import helm_python
import pytest

from tests.deploy.helm.charts import CHART, ROOT, texts, values_of, variant_text

SECRET_BYTES = 1 << 20
"""Of a secret, in which Helm keeps chart, values and objects of a release."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(helm_python.package(CHART, destination=tmp_path_factory.mktemp("package")))


def test_links_have_become_files(package: Path) -> None:
    with tarfile.open(package) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert all(member.isreg() for member in members.values())
        for folder, pattern in (("deploy/prometheus/rules", "*.yaml"), ("grafana/dashboards", "*.json")):
            for path in (ROOT / folder).glob(pattern):
                packed = archive.extractfile(members[f"gpumon/{Path(folder).name}/{path.name}"])
                assert packed is not None
                assert packed.read() == path.read_bytes()


def test_what_only_ci_needs_is_not_in_it(package: Path) -> None:
    with tarfile.open(package) as archive:
        assert not [name for name in archive.getnames() if "/ci/" in name or name.endswith(".pyc")]


def test_it_renders_what_the_folder_renders(package: Path) -> None:
    assert texts(values_of("full"), chart=package) == variant_text("full")


def test_a_release_with_everything_on_fits_into_its_secret() -> None:
    with helm_python.Chart.load(CHART) as chart:
        parts = (chart.files, chart.templates, chart.schema, chart.values)
    # As Helm stores it: JSON, in which files are base64, compressed, and base64 again, twice.
    chart_text = base64.b64encode(json.dumps(parts).encode()).decode()
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps([chart_text, variant_text("full")]).encode())))
    assert len(packed) < SECRET_BYTES * 0.75


@pytest.mark.parametrize("section", ["prometheusRule", "dashboards"])
def test_a_copy_that_lost_its_links_says_so(section: str, tmp_path: Path) -> None:
    copy = tmp_path / "gpumon"
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("rules", "dashboards"))
    assert texts({}, chart=copy)
    with pytest.raises(helm_python.HelmRenderError, match=rf"{section}\.enabled: there are no"):
        texts({section: {"enabled": True}}, chart=copy)
