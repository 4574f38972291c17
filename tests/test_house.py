"""What the repository promises outside its code: packaging, image, unit, scripts, and pages that tell the truth."""

from __future__ import annotations

import ast
import configparser
import os
import re
import tomllib
from pathlib import Path

import pytest

from gpumon import __version__, cli
from gpumon.catalogue import METRICS
from gpumon.config import Config
from gpumon.config_keys import FLAGS, keys
from gpumon.model import Kind

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), comments left out and lines joined."""
    text = "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]


def last(instruction: str) -> str:
    return [arguments for name, arguments in instructions() if name == instruction][-1]


def test_every_module_has_its_place_in_the_import_contract() -> None:
    layers = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {name.strip().removeprefix("gpumon.") for layer in layers for name in layer.split("|")}
    present = {
        path.stem
        for path in (ROOT / "gpumon").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.stem.startswith("__")
    }
    assert placed == present


def test_sources_are_forbidden_to_know_the_store_and_the_configuration() -> None:
    contract = PROJECT["tool"]["importlinter"]["contracts"][1]
    assert contract["type"] == "forbidden"
    assert {"gpumon.store", "gpumon.config"} <= set(contract["forbidden_modules"])


def test_only_package_roots_say_anything_in_init() -> None:
    for path in (ROOT / "gpumon").rglob("__init__.py"):
        assert path.parent == ROOT / "gpumon" or path.read_text().strip() == "", path


def test_only_the_nvml_bindings_have_an_upper_bound() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    capped = [name for name in PROJECT["project"]["dependencies"] if "<" in name]
    assert [re.split(r"[<>=]", name)[0] for name in capped] == ["nvidia-ml-py"]


def test_the_image_runs_as_nobody_without_a_shell() -> None:
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", last("USER"))
    assert last("ENTRYPOINT") == '["/opt/gpumon/bin/python", "-P", "-m", "gpumon"]'
    assert last("CMD") == '["run"]'
    assert not {"HEALTHCHECK", "ADD", "VOLUME"} & {name for name, _ in instructions()}


def test_the_image_is_built_in_stages_on_one_glibc_base_that_can_be_pinned() -> None:
    bases = [arguments for name, arguments in instructions() if name == "FROM"]
    assert bases == ["${BASE} AS build", "${BASE}"]
    default = next(arguments for name, arguments in instructions() if name == "ARG" and arguments.startswith("BASE="))
    assert default == "BASE=python:3.11-slim-bookworm"


def test_nothing_runs_in_the_image_after_its_user_is_set() -> None:
    names = [name for name, _ in instructions()]
    assert "RUN" not in names[names.index("USER") :]


def test_the_image_is_compiled_and_carries_the_version() -> None:
    assert "compileall" in last("RUN")
    assert f"VERSION={__version__}" in [arguments for name, arguments in instructions() if name == "ARG"]


def test_the_build_context_is_what_the_image_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [arguments.split() for name, arguments in instructions() if name == "COPY" and "--from" not in arguments]
    assert {source for words in copied for source in words[:-1]} == allowed


@pytest.fixture
def unit() -> configparser.SectionProxy:
    """The [Service] section of the systemd unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # its keys are case-sensitive
    parser.read(ROOT / "deploy/systemd/gpumon.service")
    return parser["Service"]


def test_the_unit_has_three_capabilities_and_no_user_of_its_own(unit: configparser.SectionProxy) -> None:
    expected = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}
    assert set(unit["AmbientCapabilities"].split()) == set(unit["CapabilityBoundingSet"].split()) == expected
    assert unit["DynamicUser"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["NoNewPrivileges"] == "yes"


def test_the_unit_does_not_try_a_wrong_configuration_again(unit: configparser.SectionProxy) -> None:
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2"
    assert unit["ExecStart"] == "/opt/gpumon/bin/python -P -m gpumon run --config /etc/gpumon/gpumon.yaml"
    assert "-HUP" in unit["ExecReload"]


def test_the_unit_and_the_image_have_the_state_folder_for_their_own_user_alone(unit: configparser.SectionProxy) -> None:
    folder = Config().state.folder
    assert folder is not None
    assert f"/var/lib/{unit['StateDirectory']}" == str(folder)
    assert unit["StateDirectoryMode"] == "0700"
    user, group = last("USER").split(":")
    assert f"install -d -o {user} -g {group} -m 0700 {folder} " in last("RUN")


def test_the_unit_may_read_the_kernel_log_and_the_gpus(unit: configparser.SectionProxy) -> None:
    text = (ROOT / "deploy/systemd/gpumon.service").read_text()
    assert "DeviceAllow=char-nvidia* rw" in text
    assert "DeviceAllow=/dev/kmsg r" in text
    assert "PrivateDevices" not in unit
    assert "ProtectKernelLogs" not in unit


@pytest.mark.parametrize("script", [".ci/run", *(f"scripts/{path.name}" for path in (ROOT / "scripts").glob("*.sh"))])
def test_shell_scripts_stop_at_the_first_error_and_can_be_run(script: str) -> None:
    lines = (ROOT / script).read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert os.access(ROOT / script, os.X_OK)


def test_ci_runs_tests_and_checks_without_input() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert lines[-2:] == ["make test", "make check"]
    assert "exec </dev/null" in lines


def test_no_case_has_a_name_with_the_time_in_it() -> None:
    """Two workers that collect in different seconds would not find the same tests."""
    timed = [
        f"{path}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in function.decorator_list
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "gzip.compress"
        and "mtime" not in {keyword.arg for keyword in call.keywords}
    ]
    assert not timed


def test_no_file_names_a_package_registry() -> None:
    files = [ROOT / "Makefile", ROOT / ".ci/run", ROOT / "Dockerfile", ROOT / "pyproject.toml"]
    for path in [*files, *(ROOT / "scripts").iterdir()]:
        if path.is_file():
            assert not re.search(
                r"https?://(?!127\.0\.0\.1|github\.com/gpumon/gpumon)|index-url|trusted-host", path.read_text()
            ), path


def test_the_readme_names_the_two_commands_and_they_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    readme = (ROOT / "README.md").read_text()
    assert {"demo", "test"} <= set(re.findall(r"^\$ make ([a-z]+)", readme, re.M))
    assert "http://127.0.0.1:9450/metrics" in readme
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z]+)`", page.read_text())) <= targets, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_speak_only_of_metrics_that_exist(page: Path) -> None:
    families = {metric.name for metric in METRICS}
    families |= {
        f"{metric.name}_{suffix}"
        for metric in METRICS
        if metric.kind is Kind.HISTOGRAM
        for suffix in ("bucket", "sum", "count")
    }
    # Within colons it is a recording rule's; tests/deploy/test_runbook_queries.py reads those.
    assert set(re.findall(r"(?<!:)\bgpumon_(?:[a-z0-9]+_)*[a-z0-9]+\b", page.read_text())) <= families


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_speak_only_of_commands_flags_and_keys_that_exist(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"(?:`|\$ )gpumon ([a-z]+)", text)) <= set(cli.commands.commands)
    flags = {option for command in cli.commands.commands.values() for item in command.params for option in item.opts}
    servers_too = page.name == "RUNBOOKS.md"  # it says which flags of vLLM and SGLang help
    alone = "" if servers_too else "?"
    assert set(re.findall(rf"`(?:gpumon [a-z]+ ){alone}(--[a-z-]+)", text)) <= flags
    sections = "|".join({key.section for key in keys()})
    assert set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?:`|:)", text)) <= {key.path for key in keys()} | {
        f"{section}.py" for section in ("host", "store", "config")
    }


def test_every_flag_of_the_configuration_is_an_option() -> None:
    options = {option for item in cli.commands.commands["run"].params for option in item.opts}
    assert set(FLAGS) | {"--config"} <= options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
