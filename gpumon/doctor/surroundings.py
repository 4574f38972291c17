"""What the doctor must know of its own process and machine that no port to the host tells.

Environment, user, open files, device nodes, packages, whether the address is free, whether page placement and the
kernel log can be had. Gathered once, here, so that every check is a function of values. Changes nothing: what is
opened is closed, the one child that is started ends at once.
"""

from __future__ import annotations

import errno
import http.client
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from gpumon.config import Config
from gpumon.config_types import Address, parse_listen
from gpumon.doctor.server_checks import ServersFound
from gpumon.host.files import Files, ReadError
from gpumon.host.kmsg import DevKmsg
from gpumon.host.move_pages import MovePages
from gpumon.host.nvml import DRIVER_ROOT
from gpumon.host.pages import Pages
from gpumon.host.podresources import Answer, PodResources, PodResourcesError
from gpumon.machine import pod_resources
from gpumon.model import Reason, SourceError
from gpumon.sources.procfs import parse_maps

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_CONNECT_S = 1.0


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One /dev/nvidia* node."""

    name: str
    usable: bool
    """May be opened for reading and writing, by its mode; a container's device filter is asked only for nvidiactl."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """See the module's docstring. The defaults are those of a machine without any trouble."""

    uid: int = 0
    open_files: int = 65_536
    """Soft RLIMIT_NOFILE."""
    environ: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    driver_root: bool = False
    """Whether /run/nvidia/driver shows a driver container's files."""
    marked_container: bool = False
    """A container runtime left its mark."""
    bindings: str | None = None
    """Version of nvidia-ml-py; None if it is not installed."""
    namesake: str | None = None
    """Version of the other package that brings a module called pynvml."""
    page_placement: ReadError | None = None
    """Why move_pages(2) on a child of our own fails; None if it works."""
    kernel_log: ReadError | None = None
    """Why the kernel log cannot be read; None if it can, or is not to be."""
    listen: str = ""
    """Why the address cannot be listened on; empty if it can."""
    already_running: bool = False
    """What holds the address answers as gpumon does."""
    otlp_listen: tuple[tuple[str, str], ...] = ()
    """Protocol and why its receiver's address cannot be listened on, for each that cannot."""
    state_folder: str = ""
    """Why nothing can be written to state.folder; empty if it can, or there is none."""
    kubelet: Answer | PodResourcesError | None = None
    """What the kubelet listed, or why it did not; None where it is not asked."""
    servers: ServersFound = field(default_factory=ServersFound)
    """Inference servers, asked once as the daemon would."""


def gather(
    config: Config, files: Files, environ: Mapping[str, str], *, open_driver: bool = True, dev: str = "/dev"
) -> Surroundings:
    """Look around. ``open_driver``: whether the driver's control node may be opened, which hangs where the driver
    does. ``dev``: where device nodes are."""
    listen = _listen_error(config.http.address)
    return replace(
        gather_within(config, files, environ, open_driver=open_driver, dev=dev),
        listen=listen,
        already_running=bool(listen) and _is_gpumon(config.http.address),
        otlp_listen=tuple(_otlp_errors(config)),
        kubelet=_try_kubelet(pod_resources(config)),
        page_placement=_try_page_placement(files, MovePages(str(config.host.procfs))),
    )


def gather_within(
    config: Config, files: Files, environ: Mapping[str, str], *, open_driver: bool = False, dev: str = "/dev"
) -> Surroundings:
    """The same for a gpumon that runs, and starts no child: its addresses are its own, the kubelet and the driver are
    asked already, and page placement is tried on itself."""
    return Surroundings(
        uid=os.geteuid(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        environ=dict(environ),
        device_nodes=tuple(_device_nodes(dev, open_driver)),
        driver_root=os.path.isdir(f"{DRIVER_ROOT}/usr"),
        marked_container=any(map(os.path.exists, _CONTAINER_MARKS)),
        bindings=_version("nvidia-ml-py"),
        namesake=_version("pynvml"),
        page_placement=_page_error(files, MovePages(str(config.host.procfs)), os.getpid()),
        kernel_log=_try_kernel_log(config),
        state_folder=writing_fails_for(config.state.folder),
    )


def _device_nodes(dev: str, open_driver: bool) -> list[DeviceNode]:
    try:
        names = sorted(os.listdir(dev))
    except OSError:
        return []
    nodes = []
    for name in names:
        path = f"{dev}/{name}"
        if not name.startswith("nvidia"):
            continue
        try:
            if not stat.S_ISCHR(os.stat(path).st_mode):
                continue
        except OSError:
            continue  # gone between listing and looking
        usable = os.access(path, os.R_OK | os.W_OK) and (name != "nvidiactl" or not open_driver or _opens(path))
        nodes.append(DeviceNode(name, usable))
    return nodes


def _opens(path: str) -> bool:
    """Only the control node: opening a GPU's own node may start the GPU."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _try_page_placement(files: Files, pages: Pages) -> ReadError | None:
    """Ask for one page of a child of our own: what remains is only the right to other users' processes."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # no more processes allowed: our own then, which tells of all but ptrace rights
        return _page_error(files, pages, os.getpid())
    with child:
        assert child.stdout is not None
        child.stdout.readline()  # its memory is there once it speaks
        error = _page_error(files, pages, child.pid)
        child.kill()
    return error


def _page_error(files: Files, pages: Pages, pid: int) -> ReadError | None:
    try:
        pages.nodes(pid, [parse_maps(files.read(f"proc/{pid}/maps"))[0].start])
    except ReadError as error:
        return error
    except (SourceError, IndexError):
        return ReadError(f"proc/{pid}/maps", Reason.MALFORMED)
    return None


def _try_kernel_log(config: Config) -> ReadError | None:
    if config.host.kernel_log is None:
        return None
    log = DevKmsg(str(config.host.kernel_log))
    try:
        log.read()
    except ReadError as error:
        return error
    finally:
        log.close()
    return None


def _try_kubelet(kubelet: PodResources | None) -> Answer | PodResourcesError | None:
    if kubelet is None:
        return None
    try:
        return kubelet.list()
    except PodResourcesError as error:
        return error


def _listen_error(address: Address) -> str:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _otlp_errors(config: Config) -> Iterator[tuple[str, str]]:
    for protocol, listen in (("grpc", config.otlp.grpc), ("http", config.otlp.http)):
        if config.otlp.enabled and listen is not None and (error := _listen_error(parse_listen(listen))):
            yield protocol, error


def _is_gpumon(address: Address) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(host, address.port, timeout=_CONNECT_S)
    try:
        connection.request("GET", "/metrics")
        return b"gpumon_build_info" in connection.getresponse().read(1 << 16)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def writing_fails_for(folder: Path | None) -> str:
    """Why no file could be made in the folder, or the folder in the nearest one that is there; empty if it could.

    Makes nothing.
    """
    if folder is None:
        return ""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there}: {os.strerror(errno.EACCES)}"
