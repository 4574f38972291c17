"""Section ``proxy`` of the configuration: the token-timing pass-through. Seconds and bytes, as the names say."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpumon.config_types import Expect, FilePath, HeaderName, Headers, Listen, Section


class ProxyConfig(Section):
    """`gpumon proxy`, the token-timing pass-through; docs/PROXY.md. `gpumon run` takes no notice of it."""

    upstream: Annotated[str | None, Expect("http(s)://HOST:PORT, perhaps with a path")] = Field(
        default=None, description="The inference server behind.", pattern=r"^https?://[^\s/]+(/\S*)?$"
    )
    listen: Listen = Field(
        default="127.0.0.1:9460",
        description="Where clients connect. Whoever reaches it reaches the server: only this machine unless said "
        "otherwise.",
    )
    admin: Annotated[Listen | None, Expect("HOST:PORT, or null")] = Field(
        default="0.0.0.0:9461", description="Where to serve the proxy's own `/metrics` and `/-/healthy`. null: nowhere."
    )
    otlp: Annotated[str | None, Expect("http(s)://host:port, or null")] = Field(
        default="http://127.0.0.1:4318",
        description="gpumon's OTLP/HTTP receiver, for the traces. null: none are sent.",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )
    otlp_headers: Headers = Field(default={}, description="Sent with every batch of traces, such as `authorization`.")
    otlp_ca: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https receiver; null: the system's."
    )
    service_name: Annotated[str, Expect("a text of 1 to 128 characters")] = Field(
        default="gpumon-proxy", description="`service.name` of the traces.", min_length=1, max_length=128
    )
    upstream_ca: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None, description="Certificate authorities for an https server; null: the system's."
    )
    web_config: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None,
        description="A Prometheus `web-config.yml`: TLS for both ports, users and tokens for the admin port. Clients' "
        "own credentials are the server's to check.",
    )
    inject: Annotated[tuple[str, ...], Field(strict=False, max_length=16), Expect("a list of at most 16 rules")] = (
        Field(default=(), description="Delays to put in on purpose, such as `token:20ms`; docs/PROXY.md.")
    )
    inject_seed: Annotated[int | None, Expect("a whole number or null")] = Field(
        default=None, description="The same seed, the same delays. null: another at each start, which the log names."
    )
    ask_for_usage: bool = Field(
        default=False,
        description="Add `stream_options.include_usage` to streaming requests that do not say anything of it. Their "
        "clients then get one more event.",
    )
    tenant_header: HeaderName = Field(default="x-tenant-id", description="Request header that names the tenant.")
    inference_header: HeaderName = Field(
        default="x-inference-id", description="Request header with an id to which evaluations refer."
    )
    prompt_salt_file: Annotated[FilePath | None, Expect("a path or null")] = Field(
        default=None,
        description="File with the salt of prompt hashes, 16 bytes at least: proxies that share it give equal prompts "
        "equal hashes. null: a salt of its own at each start.",
    )
    peek_bytes: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="Largest request body that is looked at for model and parameters. Larger ones pass all the same.",
    )
    connections: int = Field(default=4096, ge=1, le=32_768, description="Most connections of clients.")
    connect_timeout_s: float = Field(default=10.0, ge=0.1, le=600, description="For connecting to the server.")
    idle_timeout_s: float = Field(
        default=600.0,
        ge=1,
        le=86_400,
        description="A request under way in which nothing moves for so long is given up. A long prompt computes for "
        "minutes before its first token.",
    )
    upstream_keep_alive_s: float = Field(
        default=4.0,
        ge=0,
        le=600,
        description="How long an idle connection to the server is kept. Below the server's own limit: uvicorn's, so "
        "vLLM's and SGLang's, is 5 s.",
    )
    drain_s: float = Field(
        default=30.0, ge=0, le=3600, description="For requests under way when the proxy is asked to end."
    )
