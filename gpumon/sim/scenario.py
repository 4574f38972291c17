"""Reads a scenario: which node, which servers, what load, and what goes wrong when.

Decides what a scenario may say; ``faults.KINDS`` says what each fault is. YAML by the rules of ``yamlfile``, every key
checked, unknown ones refused. Seconds are those of the story; lengths of prompts are tokens, ``8k`` is 8,192. What
cannot be taken raises ScenarioError with one line per problem, each naming file, line and path of the key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gpumon.sim.boards import MODELS, MOST_GPUS
from gpumon.sim.faults import KINDS, FaultKind, Target
from gpumon.yamlfile import Value, YamlError, parse_yaml, read_yaml

LONGEST_PROMPT = 1 << 20
_LENGTH = re.compile(r"([0-9]{1,7})(k?)")
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?$")]
_Word = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f]+$")]
_Seconds = Annotated[float, Field(ge=0, le=1e6)]
_Weight = Annotated[float, Field(gt=0, le=1e6)]


class ScenarioError(Exception):
    """The scenario cannot be taken. ``str()``: one line for each problem."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=2000)


class NodeSpec(_Part):
    """The machine."""

    model: Literal["h200", "h100", "a100"] = "h200"
    gpus: int = Field(default=8, ge=1, le=MOST_GPUS)
    numa_nodes: int = Field(default=2, ge=1, le=2)


class ServerSpec(_Part):
    """An inference server: one pod, one model, one or several GPUs in tensor parallel."""

    name: _Name
    """Of its pod; also the key of ``World.pods``."""
    namespace: _Name = "inference"
    kind: Literal["vllm", "sglang"] = "vllm"
    model: _Word
    gpus: Annotated[tuple[int, ...], Field(strict=False, min_length=1, max_length=MOST_GPUS)]
    parameters_b: float = Field(gt=0, le=2000)
    """Billions of parameters, all experts together."""
    active_parameters_b: float | None = Field(default=None, gt=0, le=2000)
    """Billions that one token uses. Missing: all, or an eighth where there are experts."""
    bytes_per_parameter: float = Field(default=2.0, ge=0.5, le=4)
    kv_bytes_per_token: float = Field(default=327_680.0, gt=0, le=1e8)
    """Of all layers, all ranks together."""
    kv_capacity_tokens: int = Field(default=400_000, ge=1024, le=10**9)
    max_batch: int = Field(default=64, ge=1, le=4096)
    prefill_chunk_tokens: int = Field(default=2048, ge=16, le=1 << 20)
    experts: int = Field(default=0, ge=0, le=1024)
    """0: a dense model."""
    collectives: bool = True
    """Tells of its collective operations, where it has more than one GPU."""
    cuda_graphs: bool = True
    host_overhead_s: float = Field(default=0.0015, ge=0, le=1)
    """Host work of every step that the GPU waits for."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("gpus: the same GPU stands twice")
        if (self.active_parameters_b or 0) > self.parameters_b:
            raise ValueError("active_parameters_b is above parameters_b")
        return self

    @property
    def active_b(self) -> float:
        """Billions of parameters that one token uses."""
        return self.active_parameters_b or (self.parameters_b / 8 if self.experts else self.parameters_b)


class Wave(_Part):
    """A slow swing of the arrivals, from the middle upwards at the story's begin."""

    amplitude: float = Field(ge=0, le=1)
    period_s: float = Field(ge=1, le=1e6)


class Arrivals(_Part):
    """When requests come."""

    process: Literal["poisson", "constant", "bursty"] = "poisson"
    per_s: float = Field(gt=0, le=1000)
    wave: Wave | None = None


class Outputs(_Part):
    """How many tokens are made."""

    mean: float = Field(default=250.0, ge=1, le=50_000)
    spread: float = Field(default=0.5, ge=0, le=2)
    """Standard deviation over mean."""


class Load(_Part):
    """Requests to one server. Several loads may go to the same one."""

    server: _Name
    arrivals: Arrivals
    prompts: dict[str, _Weight] = Field(default={"1k": 1.0}, min_length=1, max_length=64)
    """Weight by length in tokens. Prompts are up to a quarter longer than what stands here."""
    cached_share: float = Field(default=0.0, ge=0, le=1)
    """Of a prompt's tokens, found in the prefix cache."""
    outputs: Outputs = Outputs()
    tenants: dict[_Word, _Weight] = Field(default={"default": 1.0}, min_length=1, max_length=256)
    parameters: dict[_Word, Annotated[tuple[float, ...], Field(strict=False, min_length=1, max_length=64)]] = Field(
        default={}, max_length=16
    )
    """Values of each request parameter, each as likely as the others."""
    evaluations: dict[_Word, Annotated[float, Field(ge=0, le=1)]] = Field(default={}, max_length=64)
    """Mean score by group of prompts."""

    @field_validator("prompts")
    @classmethod
    def _check_lengths(cls, prompts: dict[str, float]) -> dict[str, float]:
        for text in prompts:
            parse_length(text)
        return prompts

    @property
    def lengths(self) -> dict[int, float]:
        """``prompts`` with numbers for keys."""
        return {parse_length(text): weight for text, weight in self.prompts.items()}


class Fault(_Part):
    """Something that goes wrong for a while."""

    kind: str
    at_s: _Seconds
    for_s: _Seconds = 0.0
    gpu: int | None = Field(default=None, ge=0, lt=MOST_GPUS)
    server: str | None = None
    tenant: str | None = None
    strength: float

    @model_validator(mode="before")
    @classmethod
    def _usual_strength(cls, data: object) -> object:
        if isinstance(data, dict) and "strength" not in data and data.get("kind") in KINDS:
            return data | {"strength": KINDS[data["kind"]].usual}
        return data

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"no such fault; known are {', '.join(KINDS)}")
        return kind

    @model_validator(mode="after")
    def _check(self) -> Self:
        row = KINDS[self.kind]
        for target in (Target.GPU, Target.SERVER, Target.TENANT):
            if (getattr(self, target) is not None) != (row.target is target):
                raise ValueError(f"{self.kind} strikes {_WHOM[row.target]}")
        if not row.low <= self.strength <= row.high:
            raise ValueError(f"strength = {self.strength:g}: expected {row.low:g} to {row.high:g} ({row.strength})")
        return self

    @property
    def what(self) -> FaultKind:
        """Its row in the table."""
        return KINDS[self.kind]


_WHOM = {
    Target.GPU: "a GPU: expected gpu, and neither server nor tenant",
    Target.SERVER: "a server: expected server, and neither gpu nor tenant",
    Target.TENANT: "a tenant: expected tenant, and neither gpu nor server",
    Target.NODE: "the node: expected none of gpu, server, tenant",
}


class Scenario(_Part):
    """The whole story."""

    name: _Word
    description: str = ""
    duration_s: float = Field(ge=1, le=1e6)
    repeat: bool = False
    """The faults come again every ``duration_s``; otherwise once. The load goes on in any case."""
    seed: int = Field(default=1, ge=0, lt=1 << 63)
    node: NodeSpec = NodeSpec()
    servers: Annotated[tuple[ServerSpec, ...], Field(strict=False, max_length=MOST_GPUS)] = ()
    load: Annotated[tuple[Load, ...], Field(strict=False, max_length=64)] = ()
    faults: Annotated[tuple[Fault, ...], Field(strict=False, max_length=1000)] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [server.name for server in self.servers]
        if len(set(names)) != len(names) or "job" in names:
            raise ValueError("servers: every server needs a name of its own, and not `job`")
        held = [gpu for server in self.servers for gpu in server.gpus]
        if len(set(held)) != len(held):
            raise ValueError("servers: a GPU belongs to one server only")
        for index, server in enumerate(self.servers):
            if not all(0 <= gpu < self.node.gpus for gpu in server.gpus):
                raise ValueError(f"servers[{index}].gpus: the node has GPUs 0 to {self.node.gpus - 1}")
            _check_memory(index, server, self.node)
        for index, load in enumerate(self.load):
            if load.server not in names:
                raise ValueError(f"load[{index}].server = {load.server!r}: there is no such server")
        self._check_faults(names)
        return self

    def _check_faults(self, names: list[str]) -> None:
        tenants = {tenant for load in self.load for tenant in load.tenants}
        for index, fault in enumerate(self.faults):
            where = f"faults[{index}]"
            if fault.server is not None and fault.server not in names:
                raise ValueError(f"{where}.server = {fault.server!r}: there is no such server")
            if fault.gpu is not None and fault.gpu >= self.node.gpus:
                raise ValueError(f"{where}.gpu = {fault.gpu}: the node has GPUs 0 to {self.node.gpus - 1}")
            if fault.tenant is not None and fault.tenant not in tenants:
                raise ValueError(f"{where}.tenant = {fault.tenant!r}: no load has such a tenant")
            if fault.at_s + fault.for_s > self.duration_s:
                raise ValueError(f"{where}: ends after the story, at {fault.at_s + fault.for_s:g} s")


def _check_memory(index: int, server: ServerSpec, node: NodeSpec) -> None:
    weights = server.parameters_b * 1e9 * server.bytes_per_parameter
    needed = weights + server.kv_capacity_tokens * server.kv_bytes_per_token
    there = MODELS[node.model].memory_mib * (1 << 20) * len(server.gpus)
    if needed > 0.95 * there:
        raise ValueError(
            f"servers[{index}]: weights and KV cache take {needed / 1e9:.0f} GB, its GPUs have {there / 1e9:.0f} GB"
        )


def parse_length(text: str) -> int:
    """A length in tokens, ``1500`` or ``8k`` (8,192). Raises ValueError."""
    match = _LENGTH.fullmatch(text)
    length = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not 1 <= length <= LONGEST_PROMPT:
        raise ValueError(f"{text[:40]!r} is no length in tokens: expected 1 to {LONGEST_PROMPT}, or 1k to 1024k")
    return length


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file. Raises ScenarioError."""
    try:
        return _scenario(read_yaml(path), str(path))
    except YamlError as err:
        raise ScenarioError(str(err)) from err


def parse_scenario(text: str, name: str = "scenario") -> Scenario:
    """The scenario in a text; ``name`` stands in the errors. Raises ScenarioError."""
    try:
        return _scenario(parse_yaml(text, name), name)
    except YamlError as err:
        raise ScenarioError(str(err)) from err


def _scenario(document: Value, name: str) -> Scenario:
    try:
        return Scenario.model_validate(document.plain())
    except ValidationError as err:
        problems = []
        for error in err.errors(include_url=False, include_context=False):
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
            message = error["msg"].removeprefix("Value error, ")
            problems.append(f"{name}:{_line(document, error['loc'])}: {path}{': ' if path else ''}{message}")
        raise ScenarioError("\n".join(problems)) from err


def _line(document: Value, path: tuple[int | str, ...]) -> int:
    """Line of a key, or of the nearest thing around it that is there."""
    value = document
    for part in path:
        if isinstance(value.data, dict) and part in value.data:
            value = value.data[str(part)]
        elif isinstance(value.data, list) and isinstance(part, int) and part < len(value.data):
            value = value.data[part]
        else:
            break
    return value.line
