"""Carries out the Dockerfile's own steps without a container engine, and starts what they made, as an image would.

The base is this machine's /usr and /etc, never written to (overlayfs), with this Python at /usr/local; all else is
what the steps put there, and nothing of the machine beside it is in sight: no /home, no checkout. What is run gets a
read-only file system, a tmpfs at /tmp, few devices, and the user, capabilities and pid namespace that are asked for,
with no_new_privs. Network and hostname are the machine's. Needs root, util-linux and overlayfs, and the network to
build.

The layers are folders below the one that is named. Ending what runs leaves no mount behind: each has a mount namespace
of its own.

Usage: python -m scripts.image_steps build FOLDER
       python -m scripts.image_steps run [--profile metrics|full] FOLDER [ARGUMENT…]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.dockerfile import DEFAULT_PATH, Copy, Stage, parse

ROOT = Path(__file__).resolve().parent.parent
FULL = ("sys_ptrace", "dac_read_search")
"""Capabilities of the chart's profile full."""
_PASSED = ("PIP_", "SSL_CERT", "REQUESTS_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Of the environment, for RUN steps: where packages come from is pip's own configuration."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MERGED = ("bin", "sbin", "lib", "lib64")  # links into /usr, as on every Debian of today
# As the base's own build does: libpython is found, and the standard library comes without its tests and uncompiled.
# What else is installed for this machine's Python is none of the base's, but an installer is.
_BASE = """ldconfig
library=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -rf "$library"/site-packages/*
find "$library" -depth -type d '(' -name test -o -name tests -o -name idle_test -o -name __pycache__ ')' \
  -exec rm -rf '{}' +
python -m ensurepip --default-pip >/dev/null"""
_PLAIN = ("dev", "etc", "opt", "proc", "run", "sys", "tmp", "usr", "var/lib")


@dataclass(frozen=True, slots=True)
class Profile:
    """What a pod's securityContext and hostPID say. ``user``: None is the image's own."""

    user: str | None = None
    capabilities: tuple[str, ...] = ()
    host_pid: bool = False


METRICS = Profile()
PROFILES = {"metrics": METRICS, "full": Profile("0:0", FULL, host_pid=True)}


@dataclass(frozen=True, slots=True)
class Image:
    """What was built: the folder of the last stage, and how it starts."""

    layer: Path
    stage: Stage

    @classmethod
    def load(cls, folder: Path) -> Image:
        """One that ``build`` made there."""
        fields = json.loads((folder / "image.json").read_text())
        return cls(folder / fields.pop("layer"), Stage(**fields, steps=[]))

    def command(
        self,
        arguments: Sequence[str] | None = None,
        *,
        profile: Profile = METRICS,
        environment: Mapping[str, str] | None = None,
        binds: Mapping[Path, str] | None = None,
        entrypoint: Sequence[str] | None = None,
    ) -> list[str]:
        """A command line that starts it. ``binds``: folders of this machine, and where they are in the image.

        The exit status is that of what runs. SIGTERM has to go to the child of the process that this starts.
        """
        root = self.layer / "root"
        script = [*_mounts(self.layer, writable=False), *_surroundings(root, profile)]
        for source, target in (binds or {}).items():
            script += [f"mkdir -p {_q(root)}{_q(target)}", f"mount --rbind {_q(source)} {_q(root)}{_q(target)}"]
        script += [f"mount -o remount,bind,ro {_q(root)}"]
        uid, _, gid = (profile.user or self.stage.user).partition(":")
        kept = ",".join(["-all", *(f"+{name}" for name in profile.capabilities)])
        start = ["chroot", str(root), "env", "-i"]
        start += [f"{name}={value}" for name, value in {**self.stage.environment, **(environment or {})}.items()]
        start += ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"]
        # As runtimes do: what is added is in the bounding set, from which a program of root's gets it, and no other's.
        start += ["--inh-caps=-all", "--ambient-caps=-all", f"--bounding-set={kept}"]
        start += entrypoint or self.stage.entrypoint
        start += self.stage.command if arguments is None else arguments
        script.append(f"exec {shlex.join(start)}")
        pids = [] if profile.host_pid else ["--pid"]
        return [*_namespace(*pids), "sh", "-euc", "\n".join(script)]


def build(folder: Path) -> Image:
    """Carry out all steps of all stages, in ``folder``, which must be empty or not be there."""
    if os.geteuid() != 0:
        raise PermissionError("mounts need root")
    context = folder / "context"
    folder.mkdir(parents=True, exist_ok=True)
    _write_context(context)
    stages = parse((ROOT / "Dockerfile").read_text())
    layers: dict[str, Path] = {}
    for stage in stages:
        layers[stage.name] = layer = folder / f"stage-{stage.name}"
        _lay(layer)
        for step in stage.steps:
            if isinstance(step, Copy):
                _copy(step, layer, layers[step.stage] if step.stage else None, context)
            else:
                _run(step.command, stage, layer)
    last = stages[-1]
    for name in [stage.name for stage in stages[:-1]]:
        shutil.rmtree(layers[name])
    shutil.rmtree(context)
    fields = {**asdict(last), "layer": layers[last.name].name}
    del fields["steps"]
    (folder / "image.json").write_text(json.dumps(fields, indent=1))
    return Image.load(folder)


def _write_context(target: Path) -> None:
    """The build context: what .dockerignore lets through."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    ignored = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines if line.startswith("**/")))
    for name in (line[1:] for line in lines if line.startswith("!")):
        source, copied = ROOT / name, target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copied, ignore=ignored)
        else:
            shutil.copy2(source, copied)


def _lay(layer: Path) -> None:
    """The folders of a stage, and what Debian's base has and we do not take from this machine."""
    for name in ("root", "usr", "usr-work", "local", "local-work", "etc", "etc-work"):
        (layer / name).mkdir(parents=True)
    for name in _PLAIN:
        (layer / "root" / name).mkdir(parents=True)
    (layer / "root/tmp").chmod(0o1777)
    for name in _MERGED:
        (layer / "root" / name).symlink_to(f"usr/{name}")
    # The base calls its interpreter python, in /usr/local/bin.
    local = layer / ("local" if _own_python() else "usr/local") / "bin"
    if not (Path(sys.base_prefix) / "bin/python").exists():
        local.mkdir(parents=True)
        (local / "python").symlink_to(Path(sys.base_prefix if not _own_python() else "/usr/local") / "bin/python3")
    _inside(["sh", "-euc", _BASE], layer, {"PATH": DEFAULT_PATH})


def _own_python() -> bool:
    """Whether this Python is beside /usr, so that it has to be shown at /usr/local."""
    return not Path(sys.base_prefix).is_relative_to("/usr")


def _mounts(layer: Path, *, writable: bool) -> list[str]:
    """Commands that put a stage together below its ``root``."""
    root = layer / "root"
    lines = [f"mount --bind {_q(root)} {_q(root)}"]
    parts = [("usr", "/usr", "usr"), ("etc", "/etc", "etc")]
    if _own_python():
        parts.insert(1, ("local", sys.base_prefix, "usr/local"))
    for name, below, target in parts:
        if writable:
            options = f"lowerdir={below},upperdir={layer / name},workdir={layer / f'{name}-work'}"
        else:
            options = f"lowerdir={layer / name}:{below}"
        lines.append(f"mount -t overlay overlay -o {_q(options)} {_q(root / target)}")
    return lines


def _surroundings(root: Path, profile: Profile) -> list[str]:
    """What a container runtime mounts: /proc, /sys, /dev, and the tmpfs that the chart asks for."""
    proc = "mount --rbind /proc" if profile.host_pid else "mount -t proc proc"
    lines = [
        f"{proc} {_q(root / 'proc')}",
        f"mount -t sysfs -o ro sysfs {_q(root / 'sys')}",
        f"mount --rbind /sys/fs/cgroup {_q(root / 'sys/fs/cgroup')}",
        f"mount -t tmpfs -o mode=1777 tmpfs {_q(root / 'tmp')}",
        f"mount -t tmpfs -o mode=755 tmpfs {_q(root / 'dev')}",
    ]
    for name in _DEVICES:
        node = root / "dev" / name
        lines += [f": >{_q(node)}", f"mount --bind /dev/{name} {_q(node)}"]
    return lines


def _copy(step: Copy, layer: Path, source_layer: Path | None, context: Path) -> None:
    lines = _mounts(layer, writable=True)
    if source_layer is not None:
        lines += _mounts(source_layer, writable=False)
    origin = context if source_layer is None else source_layer / "root"
    target = f"{layer / 'root'}{step.target}"
    is_folder = target.endswith("/") or len(step.sources) > 1
    lines.append(f"mkdir -p {_q(target if is_folder else os.path.dirname(target))}")
    for name in step.sources:
        source = _q(f"{origin}/{name.lstrip('/')}")
        # Of a folder COPY takes what is in it.
        lines.append(f"if [ -d {source} ]; then mkdir -p {_q(target)}; cp -a {source}/. {_q(target)}; ")
        lines.append(f"else cp -a {source} {_q(target)}; fi")
    subprocess.run([*_namespace(), "sh", "-euc", "\n".join(lines)], check=True)


def _run(command: str, stage: Stage, layer: Path) -> None:
    passed = {name: value for name, value in os.environ.items() if name.upper().startswith(_PASSED)}
    environment = {"HOME": "/tmp", **passed, **stage.arguments, **stage.environment}  # noqa: S108 - the image's own
    _inside(["sh", "-euc", f"mkdir -p {_q(stage.folder)}\ncd {_q(stage.folder)}\n{command}"], layer, environment)


def _inside(command: Sequence[str], layer: Path, environment: Mapping[str, str]) -> None:
    """Run as root in a stage that can be written to."""
    root = layer / "root"
    lines = _mounts(layer, writable=True)
    lines += [f"mount -t proc proc {_q(root / 'proc')}", f"mount --bind /dev {_q(root / 'dev')}"]
    settings = [f"{name}={value}" for name, value in environment.items()]
    lines.append(f"exec {shlex.join(['chroot', str(root), 'env', '-i', *settings, *command])}")
    subprocess.run([*_namespace(), "sh", "-euc", "\n".join(lines)], check=True, stdin=subprocess.DEVNULL)


def _namespace(*more: str) -> list[str]:
    """Mounts of its own; a process of its own too, so that what --pid makes is entered, which ends with this one."""
    return ["unshare", "--mount", "--propagation=private", *more, "--fork", "--kill-child=SIGTERM"]


def _q(text: Path | str) -> str:
    return shlex.quote(str(text))


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", choices=tuple(PROFILES), default="metrics")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.what == "build":
        build(folder)
        return 0
    command = Image.load(folder).command(asked.arguments or None, profile=PROFILES[asked.profile])
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
