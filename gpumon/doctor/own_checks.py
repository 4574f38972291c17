"""Checks of gpumon's own needs: its address, its file descriptors, its clock, its configuration."""

from __future__ import annotations

from collections.abc import Iterator

from gpumon import catalogue
from gpumon.config import Config
from gpumon.config_keys import keys
from gpumon.doctor.report import Check, Status
from gpumon.doctor.surroundings import Surroundings
from gpumon.host.files import Files, ReadError

GIVES_REQUESTS = tuple(metric for metric in catalogue.METRICS if metric.labels[:2] == ("server", "model"))
FILES_MIN = 1024
"""Below this, half of the descriptors do not hold the files of 64 processes, and reading them costs three times as
much (host.host_files keeps half of the limit at most)."""
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "refined-jiffies", "jiffies"})
_CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"


def own_checks(config: Config, files: Files, around: Surroundings) -> list[Check]:
    """All checks of the section ``gpumon``."""
    ports = [_listen(config, around), *_receivers(config, around)]
    return [*ports, *_state_folder(config, around), _open_files(around), _clock(files), _configuration(config)]


def _listen(config: Config, around: Surroundings) -> Check:
    address = config.http.listen
    if not around.listen:
        return Check("listen", "gpumon", "Address", Status.OK, f"{address} is free")
    if around.already_running:
        return Check("listen", "gpumon", "Address", Status.OK, f"{address} is served by a gpumon that runs already")
    fix = "end what holds it, or choose another with --listen (http.listen)"
    return Check("listen", "gpumon", "Address", Status.MISSING, f"{address}: {around.listen}", fix)


def _receivers(config: Config, around: Surroundings) -> Iterator[Check]:
    errors = dict(around.otlp_listen)
    for protocol, name, listen in (("grpc", "OTLP/gRPC", config.otlp.grpc), ("http", "OTLP/HTTP", config.otlp.http)):
        if not config.otlp.enabled or listen is None:
            continue
        error = errors.get(protocol)
        if error is None or around.already_running:
            held = "is free" if error is None else "is served by a gpumon that runs already"
            yield Check(f"otlp_{protocol}", "gpumon", name, Status.OK, f"{listen} {held}", gives=GIVES_REQUESTS)
        else:
            fix = f"end what holds it, or choose another with --otlp-{protocol} (otlp.{protocol})"
            yield Check(
                f"otlp_{protocol}", "gpumon", name, Status.MISSING, f"{listen}: {error}", fix, gives=GIVES_REQUESTS
            )


def _state_folder(config: Config, around: Surroundings) -> Iterator[Check]:
    folder = config.state.folder
    if folder is None or not config.detect.enabled:
        return
    if around.state_folder:
        fix = "let gpumon's user write there (systemd: StateDirectory=gpumon; a pod: a volume), or set state.folder"
        detail = f"{around.state_folder}: no flight recordings, and counters of incidents begin anew at each start"
        yield Check("state_folder", "gpumon", "State folder", Status.DEGRADED, detail, fix)
    else:
        yield Check("state_folder", "gpumon", "State folder", Status.OK, f"{folder} can be written to")


def _open_files(around: Surroundings) -> Check:
    limit = around.open_files
    shown = "unlimited" if limit < 0 else str(limit)
    if 0 <= limit < FILES_MIN:
        fix = f"raise it to {8 * FILES_MIN} (systemd: LimitNOFILE=, a shell: ulimit -n)"
        return Check("open_files", "gpumon", "Open files", Status.DEGRADED, f"the limit is {shown}", fix)
    return Check("open_files", "gpumon", "Open files", Status.OK, f"the limit is {shown}")


def _clock(files: Files) -> Check:
    try:
        source = files.read(_CLOCK).decode("ascii", "replace").strip()
    except ReadError:
        return Check("clock", "gpumon", "Clock", Status.UNSUPPORTED, "the kernel does not tell its clock source")
    if source in _SLOW_CLOCKS:
        fix = "boot the kernel with clocksource=tsc tsc=reliable, if the machine's TSC is sound"
        detail = f"{source}: reading the time is a slow access to a device"
        return Check("clock", "gpumon", "Clock", Status.DEGRADED, detail, fix)
    return Check("clock", "gpumon", "Clock", Status.OK, source)


def _configuration(config: Config) -> Check:
    changed = [key.path for key in keys() if getattr(getattr(config, key.section), key.name) != key.field.get_default()]
    detail = f"sets {', '.join(changed)}" if changed else "all defaults"
    return Check("configuration", "gpumon", "Configuration", Status.OK, detail)
