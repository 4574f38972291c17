"""A process of another user that holds a GPU and sends a trace, and what a gpumon with given privileges sees of it."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from scripts.image_steps import Image, Profile
from tests.deploy.helm.charts import objects, one
from tests.deploy.image import ImageDaemon
from tests.e2e.page import Page
from tests.e2e.traces.gateway import Gateway, as_of_now
from tests.e2e.waiting import eventually
from tests.ingest.servers import vllm_request, vllm_sender

PYTHON = "/opt/gpumon/bin/python"
SENDER = Profile("1234:1234", host_pid=True)
UNBOUND, REQUESTS = "gpumon_requests_unbound_total", "gpumon_requests_total"
# 64 MiB of memory in use; then for each line with a port and a size on its standard input, a request of that size, on a
# connection that stays open, as that of an exporter does.
_SENDER = """
import http.client, sys
memory = bytearray(b"x" * (64 << 20))
kept = {}
print("ready", flush=True)
for line in sys.stdin.buffer:
    port, size = map(int, line.split())
    kept.setdefault(port, http.client.HTTPConnection("127.0.0.1", port))
    kept[port].request("POST", "/v1/traces", sys.stdin.buffer.read(size), {"Content-Type": "application/x-protobuf"})
    answer = kept[port].getresponse()
    answer.read()
    print(answer.status, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Pod:
    """What the chart gives gpumon: its privileges, and its configuration."""

    profile: Profile
    config: dict[str, Any]

    @classmethod
    def of_chart(cls, values: Mapping[str, Any]) -> Self:
        """As rendered with these values."""
        rendered = objects(values)
        spec = one(rendered, "DaemonSet")["spec"]["template"]["spec"]
        [container] = spec["containers"]
        rights, user = container["securityContext"], spec["securityContext"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False  # no_new_privs
        added = tuple(name.lower() for name in rights["capabilities"].get("add", ()))
        profile = Profile(f"{user['runAsUser']}:{user['runAsGroup']}", added, host_pid=spec.get("hostPID", False))
        [config] = [each for each in rendered if each["kind"] == "ConfigMap" and "gpumon.yaml" in each["data"]]
        return cls(profile, yaml.safe_load(config["data"]["gpumon.yaml"]))


class Holder:
    """The process. Ends with ``with``."""

    def __init__(self, image: Image) -> None:
        command = image.command(["-c", _SENDER], profile=SENDER, entrypoint=[PYTHON])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._answer() == "ready"
        of_unshare = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.pid = int(of_unshare.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def send(self, port: int) -> None:
        """A vLLM request that does not say where it ran."""
        sender = vllm_sender()
        vllm_request(sender)
        body = as_of_now(sender.spans).SerializeToString()
        assert self.process.stdin is not None
        self.process.stdin.write(f"{port} {len(body)}\n".encode() + body)
        self.process.stdin.flush()
        assert self._answer() == "200"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()


@dataclass(frozen=True, slots=True)
class Seen:
    """What is on the page, and in the log."""

    families: set[str]
    """With a series of the process."""
    denied: set[str]
    """Sources."""
    unbound: str
    """Why the request was not bound to the GPU; empty where it was."""
    log: str

    def warnings(self, of: str) -> list[str]:
        """Lines about something that fails."""
        return [line for line in self.log.splitlines() if of in line and "state=failing" in line]


def look(gpumon: ImageDaemon, holder: Holder, denied: Collection[str]) -> Seen:
    """All there is to see, after two requests of its."""
    gpumon.await_ready()
    port = Gateway(gpumon).http_port
    why = ["pending"]
    while why == ["pending"]:  # nobody has looked yet where its sender is
        why = _send(gpumon, holder, port)
    eventually(lambda: set(denied) <= _denied(gpumon.page()), f"{denied} denied")
    page = gpumon.page()
    families = {
        family
        for family, content in page.families.items()
        if any(sample.labels.get("pid") == str(holder.pid) for sample in content.samples)
    }
    return Seen(families, _denied(page), "".join(why), gpumon.log)


def _denied(page: Page) -> set[str]:
    """Sources that were refused something."""
    found = page.select("gpumon_source_errors_total", reason="denied")
    return {labels["source"] for labels, value in found if value}


def _send(gpumon: ImageDaemon, holder: Holder, port: int) -> list[str]:
    """One request, until it is counted; why it was not bound, if it was not."""
    before = _counts(gpumon)
    holder.send(port)
    eventually(lambda: _counts(gpumon)["all"] > before["all"], "a request", every_s=0.2)
    return list((_counts(gpumon) - before).keys() - {"all"})


def _counts(gpumon: ImageDaemon) -> Counter[str]:
    """Requests that are counted, and by why they were not bound."""
    page = gpumon.page()
    counts = Counter({reason: int(value) for reason, value in page.by("reason", UNBOUND).items()})
    counts["all"] = int(sum(value for _, value in page.select(REQUESTS)))
    return counts
