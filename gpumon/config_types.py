"""What values of the configuration are made of: addresses, paths, names, ports, patterns, and how each is checked.

Every check raises ValueError with the reason, and quotes what it was given by ``shown`` alone. ``Expect`` says in words
what a value must be; ``Secret`` marks one that errors do not show.
"""

from __future__ import annotations

import ipaddress
import json
import re
import warnings
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

COMM_BYTES = 15
"""What the kernel keeps of a command name."""
_LABEL_KEY = re.compile(r"(?:[a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_CREDENTIALS = re.compile(
    r"(?:.*-)?(?:authorization|authentication|cookie2?|credentials?|jwt|assertion|oidc-data|passwd|password"
    r"|auth|secret|[a-z]*token|(?:api|access|auth|functions|license|private|secret|subscription)-?key)",
    re.ASCII | re.IGNORECASE,
)
_FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}", re.ASCII)
_FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252})")


class Expect(NamedTuple):
    """What a value must look like, in words, for errors and docs."""

    words: str


class Secret(NamedTuple):
    """Marks a value that errors do not show."""


class Section(BaseModel):
    """Of the configuration: keys that are not known, and values of another type, are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=4096)


def shown(value: object) -> str:
    """A foreign value in an error: on one line, in ASCII, not long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


class Address(NamedTuple):
    """Where to listen. Port 0: any free one."""

    host: str
    port: int


def parse_listen(text: str) -> Address:
    """``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for every IPv4 address of the machine. Raises ValueError."""
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError("there is no port")
    if not (re.fullmatch(r"[0-9]{1,5}", port_text) and int(port_text) <= 65535):
        raise ValueError(f"port {shown(port_text)} is not a number from 0 to 65535")
    port = int(port_text)
    if not host:
        return Address("0.0.0.0", port)  # noqa: S104 - said so in the docstring and the docs
    if host.startswith("[") and host.endswith("]"):
        return Address(str(ipaddress.IPv6Address(host[1:-1])), port)
    if ":" in host:
        raise ValueError("an IPv6 address stands in brackets: [::1]:9450")
    if re.fullmatch(r"[0-9.]+", host):
        return Address(str(ipaddress.IPv4Address(host)), port)
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{shown(host)} is not a host name")
    return Address(host, port)


def parse_ports(text: str) -> range:
    """One port, or a range of them such as ``30000-30010``. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,5}(?:-[0-9]{1,5})?", text):
        raise ValueError(f"{shown(text)} is neither a port nor a range of ports")
    first, _, last = text.partition("-")
    ports = range(int(first), int(last or first) + 1)
    if not 1 <= ports.start < ports.stop <= 65_536:
        raise ValueError(f"{shown(text)} is not from 1 to 65535, the lower first")
    return ports


def parse_server(text: str) -> re.Pattern[str]:
    """A command name, or between slashes a pattern of whole command names; as a pattern. Raises ValueError."""
    if not text.startswith("/"):
        if not 0 < len(text) <= 200:
            raise ValueError("a command name has 1 to 200 characters")
        return re.compile(re.escape(text.encode()[:COMM_BYTES].decode(errors="ignore")))
    if not 3 <= len(text) <= 200 or not text.endswith("/"):
        raise ValueError(f"{shown(text)} is not a pattern of 1 to 198 characters between slashes")
    return _compiled(text[1:-1], text)


def holds_credentials(name: str) -> bool:
    """Whether a header of this name is there to let somebody in: its value is shown nowhere."""
    return _CREDENTIALS.fullmatch(name) is not None


def in_order(section: BaseModel, low: str, high: str) -> None:
    """Raises ValueError where the one key of a section is above the other."""
    low_value, high_value = getattr(section, low), getattr(section, high)
    if low_value > high_value:
        raise ValueError(f"{low} = {low_value:g} is above {high} = {high_value:g}: expected it at or below")


def _check_listen(text: str) -> str:
    parse_listen(text)
    return text


def _check_not_empty(text: object) -> object:
    if text == "":
        raise ValueError("it is empty")  # pathlib would take it for the working directory
    return text


def _check_path(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path has no NUL character")
    return path


def _port_as_text(value: object) -> object:
    return str(value) if type(value) is int else value  # YAML reads a single port as a number


def _check_ports(text: str) -> str:
    parse_ports(text)
    return text


def _check_server(text: str) -> str:
    parse_server(text)
    return text


def _check_pattern(text: str) -> str:
    _compiled(text, text)
    return text


def _compiled(pattern: str, text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd patterns are the user's right
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as err:
        raise ValueError(f"{shown(text)} is not a regular expression: {err}") from err


def _check_label_key(text: str) -> str:
    if not _LABEL_KEY.fullmatch(text):
        raise ValueError(f"{shown(text)} is not the key of a label")
    return text


def _check_no_credentials(name: str) -> str:
    if holds_credentials(name):
        raise ValueError("it holds credentials, and what it says would be sent with every trace")
    return name


def _check_fields(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"{shown(name)} is not the name of a header")
        if not _FIELD_VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} is not one line of printable Latin-1")
    return headers


Listen = Annotated[str, AfterValidator(_check_listen), Expect("HOST:PORT, [IPV6]:PORT or :PORT")]
FilePath = Annotated[
    Path, Field(strict=False), BeforeValidator(_check_not_empty), AfterValidator(_check_path), Expect("a path")
]
Ports = Annotated[
    tuple[Annotated[str, BeforeValidator(_port_as_text), AfterValidator(_check_ports)], ...],
    Field(strict=False, max_length=64),
    Expect("a list of at most 64 ports or ranges such as 30000-30010"),
]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A regular expression, as text."""
ServerNames = Annotated[
    tuple[Annotated[str, AfterValidator(_check_server)], ...],
    Field(strict=False, max_length=64),
    Expect("a list of at most 64 command names or /regular expressions/"),
]
Headers = Annotated[dict[str, str], AfterValidator(_check_fields), Secret(), Expect("a map of texts")]
HeaderName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9-]{1,64}$"),
    AfterValidator(_check_no_credentials),
    Expect("the name of a header"),
]
LabelKeys = Annotated[
    tuple[Annotated[str, AfterValidator(_check_label_key)], ...],
    Field(strict=False, max_length=32),
    Expect("a list of at most 32 keys of labels"),
]
