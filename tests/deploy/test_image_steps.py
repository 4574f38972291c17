"""The image, made by the Dockerfile's own steps: what is in it, and gpumon from it as the chart starts it.

No container engine: scripts/image_steps.py carries the steps out in overlays of this machine's /usr.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumon import __version__
from scripts.image_steps import METRICS, PROFILES, ROOT, Image, Profile
from tests.deploy.image import ImageDaemon, built
from tests.deploy.privileges import Pod
from tests.fakenvml.controller import FakeNode

pytestmark = pytest.mark.slow

PYTHON = "/opt/gpumon/bin/python"
# What a program in the image finds: itself, and where it can write.
LOOK = """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def writable(folder):
    try:
        os.close(os.open(f"{folder}/probe", os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        return error.strerror
    return ""
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": [status[f"Cap{kind}"].strip() for kind in ("Eff", "Prm", "Bnd", "Amb")],
    "no_new_privs": status["NoNewPrivs"].strip(),
    "pids": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "top": sorted(os.listdir("/")),
    "writable": {f: writable(f) for f in ("/", "/usr", "/etc", "/opt/gpumon", "/var/lib/gpumon", "/tmp")},
}))
"""
SYS_PTRACE, DAC_READ_SEARCH = 1 << 19, 1 << 2


@pytest.fixture(scope="module")
def image() -> Image:
    return built()


def ask(image: Image, code: str, profile: Profile = METRICS) -> Any:
    """What a Python program in the image prints, as JSON."""
    command = image.command(["-c", code], profile=profile, entrypoint=[PYTHON])
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.fixture(scope="module")
def bill(image: Image) -> dict[str, Any]:
    found = ask(image, "print(open('/usr/share/doc/gpumon/sbom.cdx.json').read())")
    assert isinstance(found, dict)
    return found


def test_as_nobody_it_can_write_to_tmp_alone(image: Image) -> None:
    found = ask(image, LOOK)
    assert (found["uid"], found["gid"], found["groups"]) == (65534, 65534, [])
    assert {int(mask, 16) for mask in found["capabilities"]} == {0}
    assert found["no_new_privs"] == "1"
    assert found["pids"] == 1
    assert {path for path, error in found["writable"].items() if not error} == {"/tmp"}
    assert not {"home", "root", "work", "src"} & set(found["top"])


def test_as_root_it_has_two_capabilities_and_no_more(image: Image) -> None:
    found = ask(image, LOOK, PROFILES["full"])
    assert found["uid"] == 0
    effective, permitted, bounding, ambient = (int(mask, 16) for mask in found["capabilities"])
    assert effective == permitted == bounding == SYS_PTRACE | DAC_READ_SEARCH
    assert ambient == 0
    assert found["no_new_privs"] == "1"
    assert found["pids"] > 1
    assert {path for path, error in found["writable"].items() if not error} == {"/tmp"}


def test_the_profiles_are_those_of_the_chart() -> None:
    assert Pod.of_chart({"profile": "full"}).profile == PROFILES["full"]
    assert Pod.of_chart({"profile": "metrics"}).profile == Profile("65534:65534")


def test_it_has_what_the_lock_names_and_the_bill_tells_all_of_it(image: Image, bill: dict[str, Any]) -> None:
    code = "import json; from importlib.metadata import distributions as all_\n"
    code += "print(json.dumps({d.name.lower().replace('_', '-').replace('.', '-'): d.version for d in all_()}))"
    installed = ask(image, code)
    lock = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "deploy/image/requirements.lock").read_text(), re.M))
    assert installed == {**lock, "gpumon": __version__}
    told = {each["name"]: each["version"] for each in bill["components"] if each["type"] == "library"}
    assert told == lock


def test_it_has_no_installer_and_no_uncompiled_module(image: Image) -> None:
    code = """
import importlib.util, json, pathlib, sysconfig
folders = [pathlib.Path("/opt/gpumon/lib"), pathlib.Path(sysconfig.get_path("stdlib")) / "asyncio"]
modules = [p for f in folders for p in f.rglob("*.py") if "lib2to3" not in p.parts]
raw = [str(p) for p in modules if not pathlib.Path(importlib.util.cache_from_source(str(p))).exists()]
tools = [name for name in ("pip", "setuptools", "wheel", "ensurepip") if importlib.util.find_spec(name)]
print(json.dumps([len(modules), raw, tools]))
"""
    count, raw, tools = ask(image, code)
    assert (image.layer / "root/opt/gpumon/bin/gpumon").exists()  # for kubectl exec: doctor, diagnose
    assert count > 1000
    assert (raw, tools) == ([], [])


def test_the_bases_own_python_has_no_package_that_the_bill_does_not_tell(image: Image) -> None:
    code = """
import importlib.util, json, os, sysconfig
folder = sysconfig.get_path("purelib", vars={"base": "/usr/local"})
found = os.listdir(folder)
installers = [name for name in os.listdir("/usr/local/bin") if name.startswith(("pip", "wheel"))]
print(json.dumps([folder, found, installers, importlib.util.find_spec("ensurepip") is not None]))
"""
    command = image.command(["-c", code], entrypoint=["/usr/local/bin/python"])
    folder, *found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert folder.startswith("/usr/local/lib/python3")
    assert found == [[], [], False]


def test_it_takes_no_module_from_the_folder_that_it_is_started_in(image: Image) -> None:
    hostile = 'cd /tmp; for name in gpumon json asyncio; do echo "raise SystemExit(77)" >$name.py; done; exec "$@"'
    command = image.command(["--help"], entrypoint=["sh", "-euc", hostile, "sh", *image.stage.entrypoint])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Usage: gpumon" in ended.stdout
    unsafe = [word for word in image.stage.entrypoint if word != "-P"]
    command = image.command(["--help"], entrypoint=["sh", "-euc", hostile, "sh", *unsafe])
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 77


def test_its_labels_say_what_it_is(image: Image) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in image.stage.labels.items()}
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["source"] == "https://github.com/gpumon/gpumon"
    assert set(image.stage.ports) == {9450, 4317, 4318}


@pytest.fixture(params=["metrics", "full"])
def gpumon(request: pytest.FixtureRequest, tmp_path: Path, image: Image) -> Iterator[ImageDaemon]:
    """On eight H200, as this profile of the chart starts it."""
    profile = Pod.of_chart({"profile": request.param}).profile
    with (
        FakeNode.create(tmp_path / "node", profile="h200", count=8) as node,
        ImageDaemon(image, tmp_path / "run", node, profile=profile) as daemon,
    ):
        yield daemon


def test_it_serves_and_ends_when_asked_to(gpumon: ImageDaemon) -> None:
    gpumon.await_ready()
    gpumon.await_series("gpumon_gpu_utilization_ratio", 8)
    page = gpumon.await_series("gpumon_gpus", 3)
    assert page.value("gpumon_gpus", state="present") == 8
    assert gpumon.ask("/-/healthy").status == 200
    assert gpumon.ask("/api/v1/gpus").status == 200  # the JSON API is imported only now
    assert gpumon.end_gracefully() == 0
    assert "Traceback" not in gpumon.log
