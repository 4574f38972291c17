"""Wires the traces: receivers, intake, assembly, statistics, binding and forwarding. ``app`` owns one of these.

The way of a request: a receiver reads it, the intake decodes it in its worker thread and hands it to ``_take``,
which offers it to the forwarder and gives it to the assembler; half a second later at most, ``TraceSource`` collects
the requests that are complete, counts them and tells the forwarder's tail policy. Only then is it a statistic; it was
acknowledged when ``_take`` had returned and, where there is a spool, it was on disk (``_stored``).
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gpumon.config import Config, EndpointConfig
from gpumon.config_types import parse_listen
from gpumon.explain.explained import Explained
from gpumon.export.annotate import Annotator, Bindings
from gpumon.export.forward import Disk, Forwarder
from gpumon.export.forward import Limits as ForwardLimits
from gpumon.export.forward_send import Endpoint, Tls, make_sender
from gpumon.export.forward_tail import SlowRule, SlowTail, keep_ratio
from gpumon.host.clock import Clock
from gpumon.host.files import Files
from gpumon.host.garbage import short_pauses
from gpumon.ingest.adapters.seen import Reading
from gpumon.ingest.assembly import Assembler
from gpumon.ingest.auth import gate
from gpumon.ingest.decode import decode_traces
from gpumon.ingest.http_listener import HttpListener
from gpumon.ingest.http_server import OtlpHttp
from gpumon.ingest.inspector import InspectorSource
from gpumon.ingest.intake import Decoders, Intake
from gpumon.ingest.json_decode import decode_traces_json
from gpumon.ingest.limits import Limits
from gpumon.ingest.nccl import CollectiveRecord, Collectives
from gpumon.ingest.records import Decoded, DecodeError, Resource
from gpumon.ingest.request import Signal, Transport
from gpumon.ingest.signals import count_metrics, decode_logs
from gpumon.ingest.web_config import WebConfig, grpc_credentials, ssl_context
from gpumon.model import Binding, GpuUuid, Item, RequestRecord
from gpumon.node import Node
from gpumon.requests.binding import Binder, ServerGpus
from gpumon.requests.statistics import RequestStatistics
from gpumon.runner import Source
from gpumon.store import Store

TICK_S = 0.5
SETTLE_S = 4.0
BIND_S = 5.0
DRAIN_S = 2.0
STORE_S = 2.0
"""Longest that an answer waits for the spool's disk; the sender is told to come again then."""
TAIL_HOLD_S = 30.0
"""Longest wait of a trace for the verdict on its request, where only slow ones are forwarded."""


@dataclass(frozen=True, slots=True)
class Taps:
    """Who else wants to have what passes by. Called in the intake's or a source's thread: must not wait."""

    requests: Callable[[Sequence[RequestRecord]], None] | None = None
    """Requests that are complete."""
    collective: Callable[[CollectiveRecord], None] | None = None
    explained: Callable[[bytes, bytes], Explained | None] | None = None
    """Asked for what a request's span (trace id, span id) is to be told of the causes; it settles longer then."""
    body: Callable[[Signal, bytes, bool, str, float], None] | None = None
    """What was taken: signal, decompressed body, whether it is JSON, peer, arrival."""


class Tracing:
    """Everything about traces. ``start`` and ``stop`` on the event loop; ``sources`` go to the runner."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        store: Store,
        node: Node,
        files: Files,
        node_names: Sequence[str],
        web: WebConfig | None,
        taps: Taps | None = None,
    ) -> None:
        self._taps = taps if taps is not None else Taps()
        self._config = config
        self._clock = clock
        self._web = web
        self._lock = threading.Lock()
        """Over the assembler: the intake's worker adds, a source's thread collects."""
        requests = config.requests
        configured = [
            ServerGpus(re.compile(servers), tuple(map(GpuUuid, gpus))) for servers, gpus in requests.gpus.items()
        ]
        self.binder = Binder(
            files,
            node.holders,
            gpus=lambda: [gpu.uuid for gpu in node.known_gpus()],
            node_names=node_names,
            configured=configured,
        )
        self.statistics = RequestStatistics(
            max_models=requests.max_models, max_tenants=requests.max_tenants, to_unix=clock.to_unix
        )
        self.collectives = Collectives(self._taps.collective)
        folder = requests.nccl_inspector
        self._inspector = InspectorSource(str(folder), self.collectives) if folder is not None else None
        self.assembler = Assembler(
            reading=Reading(tenant_attributes=requests.tenant_attributes, models=requests.models),
            bind=self._bind,
            collectives=self.collectives,
        )
        self._bindings = Bindings()
        self._annotate = Annotator(
            lambda: store.view(clock.now_s()),
            lambda trace_id, _: self._bindings.get(trace_id),
            self._to_steady,
            self._taps.explained,
        )
        self.forwarder = self._build_forwarder(config)
        otlp = config.otlp
        self._limits = Limits(body_bytes=otlp.body_bytes, queue_bytes=otlp.queue_bytes, connections=otlp.connections)
        decoders = Decoders(
            decode_traces,
            decode_traces_json,
            lambda body, is_json: decode_logs(body, json=is_json),
            lambda body, is_json: count_metrics(body, json=is_json),
        )
        self.intake = Intake(decoders, self._take, clock, self._limits, self._stored)
        self._http: HttpListener | None = None
        self._busy_gpus: frozenset[GpuUuid] = frozenset()
        self._running = AsyncExitStack()

    # --- life ---------------------------------------------------------------------------------------------------

    def sources(self, publish_s: float) -> list[tuple[Source, float]]:
        """What the runner is to read, and how often; the same objects each time, for they remember."""
        sources: list[tuple[Source, float]] = [
            (TraceSource(self), TICK_S),
            (self.statistics, publish_s),
            (self.binder, BIND_S),
        ]
        if self._inspector is not None:
            sources.append((self._inspector, publish_s))
        return sources

    async def start(self) -> dict[str, tuple[str, int]]:
        """Serve; where, by protocol. Raises OSError when a port cannot be had."""
        if self.forwarder is not None:
            self.forwarder.start()
        self.intake.start()
        self._running.push_async_callback(self.intake.stop, DRAIN_S)
        where = {}
        otlp = self._config.otlp
        if otlp.http is not None:
            where["http"] = await self._serve_http(otlp.http)
        if otlp.grpc is not None:
            where["grpc"] = await self._serve_grpc(otlp.grpc)
        short_pauses()
        return where

    async def stop(self) -> None:
        """Receivers first, then what they took is finished."""
        await self._running.aclose()

    def close(self) -> None:
        """Forward what can be forwarded in a moment. Waits, so not on the event loop."""
        if self.forwarder is not None:
            self.forwarder.stop(DRAIN_S)

    async def _serve_http(self, listen: str) -> tuple[str, int]:
        address = parse_listen(listen)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            listener = socket.create_server(address, family=family, backlog=512)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
            another = "--otlp-http (otlp.http) takes another address"
            raise OSError(f"cannot listen on {listen} for OTLP/HTTP: {reason}; {another}") from error
        web = self._web
        app = OtlpHttp(self.intake, self._limits, gate(web) if web is not None else None)
        tls = ssl_context(web.tls) if web is not None and web.tls is not None else None
        self._http = HttpListener(app, self._limits, tls)
        self._http.start(listener)
        self._running.push_async_callback(self._http.stop)
        host, port = listener.getsockname()[:2]
        return host, port

    async def _serve_grpc(self, listen: str) -> tuple[str, int]:
        from gpumon.ingest.grpc_server import GrpcReceiver  # 10 MB that only this port needs

        address = parse_listen(listen)
        host = f"[{address.host}]" if ":" in address.host else address.host
        web = self._web
        receiver = GrpcReceiver(
            self.intake,
            self._limits,
            gate(web) if web is not None else None,
            grpc_credentials(web.tls) if web is not None and web.tls is not None else None,
        )
        try:
            port = await receiver.start(f"{host}:{address.port}")
        except OSError as error:
            another = "--otlp-grpc (otlp.grpc) takes another address"
            raise OSError(f"cannot listen on {listen} for OTLP/gRPC: is it in use? {another}") from error
        self._running.push_async_callback(receiver.stop, DRAIN_S)
        return address.host, port

    # --- the way of a request ---------------------------------------------------------------------------------------

    def _take(self, signal: Signal, decoded: Decoded, raw_body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        if self.forwarder is not None:
            self.forwarder.offer(signal, raw_body, is_json=is_json, at_s=at_s)
        if self._taps.body is not None:
            self._taps.body(signal, raw_body, is_json, peer, at_s)
        if signal is not Signal.METRICS:
            with self._lock:
                self.assembler.add(decoded, peer, at_s, self._to_steady)

    def take_body(self, signal: Signal, body: bytes, is_json: bool, peer: str, at_s: float) -> None:
        """What the intake does with a request, here and now: for a stepped clock. Raises DecodeError."""
        if signal is Signal.TRACES:
            decoded = decode_traces_json(body) if is_json else decode_traces([body])[0]
        elif signal is Signal.LOGS:
            decoded = decode_logs(body, json=is_json)
        else:
            return
        if isinstance(decoded, DecodeError):
            raise decoded
        self._take(signal, decoded, body, is_json, peer, at_s)

    def _stored(self) -> bool:
        """Whether what was taken would be forwarded even if gpumon were killed now; True where there is no spool.

        Told to come again, a sender repeats what was taken: the assembler knows the spans, and OTLP allows the
        downstream to see them twice.
        """
        return self.forwarder is None or self.forwarder.wait_stored(STORE_S)

    def collect(self, at_s: float) -> Iterator[Item]:
        """Count the requests that are complete; then everything the parts count themselves."""
        with self._lock:
            records = self.assembler.tick(at_s)
            open_requests = self.assembler.open_by_model()
            self._busy_gpus = frozenset(GpuUuid(uuid) for uuid, count in self.assembler.open_by_gpu().items() if count)
            samples: list[Item] = list(self.assembler.samples())
        for record in records:
            self.statistics.add(record, at_s)
            if self.forwarder is not None:
                self._bindings.put(record)
                self.forwarder.judge(record)
        if records and self._taps.requests is not None:
            self._taps.requests(records)
        # Only what is known to be open: a server that tells of requests when they end would seem to have none.
        self.statistics.set_open({pair: count for pair, count in open_requests.items() if count}, at_s)
        yield from samples
        if self._inspector is None:  # else its source tells of all collectives
            yield from self.collectives.samples()
        yield from self.intake.samples()
        if self._http is not None:
            yield from self._http.samples()
        if self.forwarder is not None:
            yield from self.forwarder.samples()

    def requests_open(self, uuid: GpuUuid) -> bool:
        """Whether a request was known to be open on the GPU when the traces were last looked at."""
        return uuid in self._busy_gpus

    def _bind(self, resource: Resource, peer: str) -> Binding:
        return self.binder.bind(resource.attributes, resource.key, peer)

    def _to_steady(self, unix_ns: int) -> float:
        return unix_ns / 1e9 - self._clock.to_unix(0.0)

    # --- forwarding -------------------------------------------------------------------------------------------------

    def _build_forwarder(self, config: Config) -> Forwarder | None:
        forward = config.forward
        endpoint = endpoint_of(forward)
        if endpoint is None:
            return None
        now_s = self._clock.now_s
        rule = SlowRule(forward.slow_first_token_s, forward.slow_inter_token_s, forward.slow_duration_s)
        return Forwarder(
            make_sender(endpoint, now_s, lambda: self._clock.to_unix(now_s())),
            self._clock,
            limits=ForwardLimits(
                max_bytes=forward.queue_bytes,
                # A request is complete after two seconds and a half, and explained some time after that.
                settle_s=SETTLE_S + (config.explain.delay_s if self._taps.explained is not None else 0.0),
            ),
            annotate=self._annotate if forward.annotate else None,
            keep=keep_ratio(forward.ratio) if forward.keep == "ratio" else None,
            tail=(
                SlowTail(rule, hold_s=TAIL_HOLD_S, max_bytes=forward.queue_bytes // 2)
                if forward.keep == "slow"
                else None
            ),
            disk=Disk(forward.spool, forward.spool_bytes) if forward.spool is not None else None,
        )


def endpoint_of(section: EndpointConfig) -> Endpoint | None:
    """Where a section of the configuration sends to; None for nowhere."""
    if section.endpoint is None:
        return None
    tls = Tls(section.ca, section.certificate, section.key)
    return Endpoint(section.endpoint, Transport(section.protocol), section.headers, tls, gzip=section.gzip)


class TraceSource:
    """Source ``traces``: collects what has become of the spans."""

    name = "traces"

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def read(self, at_s: float) -> Iterator[Item]:
        yield from self._tracing.collect(at_s)
