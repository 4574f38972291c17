"""The keys of the configuration, read off its models: for the documentation, the flags, the environment and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpumon.config import Config
from gpumon.config_types import Expect, Secret

FLAGS = {
    "--listen": "http.listen",
    "--otlp-grpc": "otlp.grpc",
    "--otlp-http": "otlp.http",
    "--nvml-lib": "nvml.library",
    "--procfs": "host.procfs",
    "--sysfs": "host.sysfs",
    "--cgroupfs": "host.cgroupfs",
    "--log-format": "log.format",
    "--log-level": "log.level",
}
"""Command line flags and the keys they set."""
PROXY_FLAGS = {
    "--upstream": "proxy.upstream",
    "--listen": "proxy.listen",
    "--admin": "proxy.admin",
    "--otlp": "proxy.otlp",
    "--service-name": "proxy.service_name",
    "--inject": "proxy.inject",
    "--inject-seed": "proxy.inject_seed",
    "--ask-for-usage": "proxy.ask_for_usage",
    "--log-format": "log.format",
    "--log-level": "log.level",
}
"""Likewise those of `gpumon proxy`."""
ENVIRONMENT_PREFIX = "GPUMON_"


class Key(NamedTuple):
    """One key of the configuration, for docs, flags and errors."""

    section: str
    name: str
    field: FieldInfo

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"{ENVIRONMENT_PREFIX}{self.section}__{self.name}".upper()

    @property
    def flag(self) -> str | None:
        return next((flag for flag, path in FLAGS.items() if path == self.path), None)

    @property
    def secret(self) -> bool:
        """Whether errors must not show the value."""
        return any(isinstance(item, Secret) for item in self.field.metadata)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        return _expected(self.field)


def keys() -> Iterator[Key]:
    """All keys, in the order of the models."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (Key(section, name, field) for name, field in model.model_fields.items())


def _expected(field: FieldInfo) -> str:
    words = next((item.words for item in field.metadata if isinstance(item, Expect)), None)
    if words is not None:
        return words
    if get_origin(field.annotation) is Literal:
        return "one of " + ", ".join(get_args(field.annotation))
    if field.annotation is bool:
        return "true or false"
    least = next((item.ge for item in field.metadata if isinstance(item, Ge)), None)
    most = next((item.le for item in field.metadata if isinstance(item, Le)), None)
    return f"{'a whole number' if field.annotation is int else 'a number'} from {least} to {most}"
