"""Wires everything together, and its life: start, reload, stop. The only place that knows all the parts."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import resource
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpumon import __version__, catalogue, logs
from gpumon.config import Config, StateConfig
from gpumon.config_load import ConfigError
from gpumon.config_types import parse_listen
from gpumon.export.compat import DcgmExposition
from gpumon.export.dcgm_names import DCGM, DCGM_NEXT
from gpumon.export.prometheus import Exposition
from gpumon.export.scrape import ScrapeCache
from gpumon.health import Health
from gpumon.host.clock import Clock, SystemClock
from gpumon.host.files import ReadError
from gpumon.host.host_files import HostFiles
from gpumon.ingest.auth import authenticated
from gpumon.ingest.web_config import WebConfig, WebConfigError, load_web_config, ssl_context
from gpumon.machine import Machine, real_machine, simulated_machine
from gpumon.model import Sample, SourceError
from gpumon.node import Node
from gpumon.runner import Runner, Source
from gpumon.sampler.link import SamplerLink
from gpumon.sources.procfs import TICKS_PER_SECOND, parse_stat, parse_statm
from gpumon.store import Store
from gpumon.web.asgi import Asgi, Dispatcher, RefusedError
from gpumon.wiring import host_sources, sampler_plan, why_off, why_unexplained

if TYPE_CHECKING:
    from gpumon.detecting import Detecting
    from gpumon.export.otlp import OtlpExport
    from gpumon.recording import DaemonRecording, Wish
    from gpumon.sim.sender import Sender
    from gpumon.sim.world import World
    from gpumon.tracing import Tracing
    from gpumon.web.activity import Activity
    from gpumon.web.stream import Stream

log = logging.getLogger(__name__)

SELF_S = 5.0
SETTLE_S = 5.0
"""What this gpumon sees is told when all that comes with the start has come, or so long after it."""
_LOOK_S = 0.1
_SOONEST_S = 1.0
_TELLING_S = 2.0
OPEN_FILES = 16_384
_DEMO_TENANTS = 8
OPEN_PATHS = ("/-/healthy", "/-/ready")
"""Answered without credentials: probes have none."""
GPU_SOURCES = ("gpu_fast", "gpu_slow", "gpu_inventory")
"""Passes in the sampler that must have been made once before gpumon is ready, if NVML is there at all."""
RESTART_SECTIONS = (
    *(
        "http",
        "nvml",
        "host",
        "kubernetes",
        "store",
        "otlp",
        "requests",
        "forward",
        "export",
        "detect",
        "explain",
        "state",
        "recorder",
    ),
)
"""Sections of the configuration that only a restart changes."""


class App:
    """One running gpumon. ``start``, serve ``asgi``, ``stop``."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        clock: Clock,
        reload: Callable[[], Config] | None,
        record: Wish | None = None,
    ) -> None:
        """record: write what the machine answers to a file. Raises OSError where that cannot be made."""
        self._config = config
        self._clock = clock
        self._reload = reload
        self._reload_lock = threading.Lock()
        self._reload_ok = True
        self._started_s = clock.now_s()
        self._reloaded_unix = clock.to_unix(self._started_s)
        self.store = Store(max_series=config.store.max_series, history_points=config.store.history_points)
        self.health = Health(clock.to_unix)
        self.node = Node(self.store, self.health, clock)
        # In a pod, the host's name by the downward API.
        self._node_names = [name for name in (os.environ.get("NODE_NAME"), socket.gethostname()) if name]
        web = load_web_config(config.http.web_config) if config.http.web_config is not None else None
        self.tls = web.tls if web is not None else None
        self.detecting = self._build_detecting(config) if config.detect.enabled else None
        # After what may be wrong: else the file would be in the way of the next try.
        self._recording = self._build_recording(record, machine) if record is not None else None
        self._files = machine.ports.files
        """The machine's own, of which nothing is recorded."""
        self._machine = machine = self._recording.machine if self._recording is not None else machine
        self.tracing = self._build_tracing(config, web) if config.otlp.enabled else None
        self._link: SamplerLink | None = None
        if machine.sampler is not None:
            self.health.expect("nvml")
            self._expect_gpu_sources(config)
            self._link = SamplerLink(
                machine.sampler,
                machine.sampler_options,
                sampler_plan(config),
                clock,
                self.node,
                publish_s=config.cadence.publish_s,
                restart_after_s=config.nvml.restart_after_s,
                requests_open=self.tracing.requests_open if self.tracing is not None else None,
                rows=self.detecting.rows if self.detecting is not None else None,
            )
        self._export = self._build_export(config)
        self._activity = self._build_activity() if config.http.ui else None
        self._stream: Stream | None = None
        self._runner = self._build_runner(config)
        self._own_files = HostFiles()
        self._self_samples: list[Sample] = []
        self._self_at_s = 0.0
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._teller: threading.Thread | None = None
        exposition = Exposition()
        # A page is rendered ahead for those who scrape about as often as there is news; for one that comes every 15 s
        # it would be made 15 times, and once takes 10 ms. What a scraper gets is never long behind the store.
        interval_s, watched_s = config.cadence.publish_s / 4, 3 * config.cadence.publish_s
        self._pages = {
            "": ScrapeCache(self.store.view, exposition.render, min_interval_s=interval_s, watched_s=watched_s)
        }
        for names, fields in (("dcgm", DCGM), ("dcgm-next", DCGM_NEXT)):
            render = DcgmExposition(fields, self._node_names[0]).render
            self._pages[names] = ScrapeCache(
                self.store.view, render, min_interval_s=interval_s, watched_s=watched_s, text_only=True
            )
        dispatcher = Dispatcher(
            self._pages,
            clock.now_s,
            self.waiting_for,
            self if config.http.admin else None,
            self._make_api if config.http.ui else None,
        )
        self.asgi: Asgi = authenticated(dispatcher, web, OPEN_PATHS) if web is not None else dispatcher

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        if self._config.explain.enabled and (why := why_unexplained(self._config)):
            log.info("explain=off detail=%r", why)
        if self._recording is not None:
            self._recording.start()
        if self._link is not None:
            self._link.start()
        self._runner.start()
        self._keeper.start()
        if self._export is not None:
            self._export.start()

    def stop(self) -> None:
        """End the sampler, which lets go of NVML, and the sources meanwhile: one that hangs holds up nothing."""
        self._stop.set()
        ending = threading.Thread(target=self._link.stop) if self._link is not None else None
        if ending is not None:
            ending.start()
        self._runner.stop()
        if self.detecting is not None:
            self.detecting.close()
        if self.tracing is not None:
            self.tracing.close()
        if self._export is not None:
            self._export.stop()
        if ending is not None:
            ending.join()
        if self._recording is not None:
            self._recording.close()
        if self._teller is not None:
            self._teller.join(_TELLING_S)

    @contextlib.asynccontextmanager
    async def beside(self, url: str) -> AsyncIterator[None]:
        """What runs on the event loop beside the HTTP server: the receivers of traces. ``url``: of its root."""
        if self.tracing is None:
            self._begin_telling(url, {})
            yield
            return
        sender: Sender | None = None
        try:
            where = await self.tracing.start()
            self._begin_telling(url, {protocol: _shown(host, port) for protocol, (host, port) in where.items()})
            for protocol, (host, port) in where.items():
                log.info("otlp=listening protocol=%s address=%s", protocol, _shown(host, port))
            if self._machine.world is not None and "http" in where:
                sender = self._simulated_servers(self._machine.world, *where["http"])
            yield
        finally:
            if sender is not None:
                sender.stop()
            await self.tracing.stop()

    def _simulated_servers(self, world: World, host: str, port: int) -> Sender | None:
        from gpumon.sim.sender import Sender
        from gpumon.sim.spans import SpanMaker

        if self.tls is not None:
            log.warning("demo=silent detail='the simulated servers send no traces to a receiver with TLS'")
            return None
        to = f"http://{_shown(_reachable(host), port)}/v1/traces"
        sender = Sender(SpanMaker(world, self._clock.to_unix), self._clock, to)
        sender.start()
        return sender

    def _begin_telling(self, url: str, receivers: Mapping[str, str]) -> None:
        self._teller = threading.Thread(
            target=self._tell_what_is_seen, args=(url, receivers), name="sight", daemon=True
        )
        self._teller.start()

    def _tell_what_is_seen(self, url: str, receivers: Mapping[str, str]) -> None:
        until_s = self._clock.now_s() + SETTLE_S
        if self._stop.wait(_SOONEST_S):
            return
        while not self._has_settled(self._clock.now_s()) and self._clock.now_s() < until_s:
            if self._stop.wait(_LOOK_S):
                return
        from gpumon.sight.telling import tell  # the doctor's checks: neither start nor scrape waits for them
        from gpumon.sight.told import Place

        is_demo = self._machine.world is not None
        place = Place(self._node_names[0], os.geteuid(), url, has_page=self._config.http.ui, is_demo=is_demo)
        view = self.store.view(self._clock.now_s())
        tell(self._config, view, self._files, os.environ, receivers, place)

    def _has_settled(self, at_s: float) -> bool:
        """NVML has said whether it is there, every GPU what it is, and every source has looked once."""
        if self.waiting_for():
            return False
        if self._link is None:
            return True
        view = self.store.view(at_s)
        if self._link.state == "running":
            return len(view.family(catalogue.GPU_INFO)) == view.value(catalogue.GPU_COUNT, ("present",))
        return self._link.state != "starting" and bool(view.family(catalogue.NVML_STATE))

    def waiting_for(self) -> list[str]:
        """Sources whose first pass is still to come. Without NVML its sources are not waited for."""
        waiting = set(self.health.waiting_for())
        gpu = waiting.intersection(GPU_SOURCES)
        if self._link is None or self._link.state != "running":
            waiting -= gpu
        return sorted(waiting)

    # --- what an operator may ask for -------------------------------------------------------------------------------

    def reload(self) -> str:
        """Read the configuration again; what cannot be taken leaves everything as it is."""
        if self._reload is None:
            raise RefusedError("there is no configuration to read again")
        with self._reload_lock:
            try:
                fresh = self._reload()
            except ConfigError as error:
                self._reload_ok = False
                log.warning("reload=refused detail=%r", str(error))
                raise RefusedError(f"kept the configuration in effect: {error}") from error
            changed = [name for name in RESTART_SECTIONS if getattr(fresh, name) != getattr(self._config, name)]
            if changed:
                self._reload_ok = False
                log.warning("reload=refused detail='only a restart changes %s'", ", ".join(changed))
                raise RefusedError(f"kept the configuration in effect: only a restart changes {', '.join(changed)}")
            self._apply(fresh)
            self._reload_ok = True
            self._reloaded_unix = self._clock.to_unix(self._clock.now_s())
            log.info("reload=taken")
            return "reloaded"

    def release_nvml(self) -> str:
        """Let go of the driver."""
        if self._link is None:
            raise RefusedError("nvml.enabled is off")
        self._link.release()
        return "released"

    def acquire_nvml(self) -> str:
        """Take the driver again."""
        if self._link is None:
            raise RefusedError("nvml.enabled is off")
        self._link.acquire()
        return "acquiring"

    def _apply(self, fresh: Config) -> None:
        logs.setup(fresh.log.format, fresh.log.level)
        self._runner.stop()
        self._config = fresh
        if self._link is not None:
            self._expect_gpu_sources(fresh)
            self._link.reconfigure(sampler_plan(fresh), fresh.cadence.publish_s, fresh.nvml.restart_after_s)
        before, self._runner = self._runner, self._build_runner(fresh)
        for name in set(before.names) - set(self._runner.names):
            self.health.forget(name)
            self.store.drop(name)
        self._runner.start()

    # --- building -----------------------------------------------------------------------------------------------

    def _expect_gpu_sources(self, config: Config) -> None:
        cadence = config.cadence
        publish_s = max(cadence.publish_s, cadence.fast_s)
        for source, every_s in zip(GPU_SOURCES, (publish_s, cadence.slow_s, cadence.inventory_s), strict=True):
            self.health.expect(source, stale_after_s=3 * every_s + 2.0)

    def _build_runner(self, config: Config) -> Runner:
        runner = Runner(self._clock, self.store, self.health)

        def recorded(source: Source) -> Source:
            return self._recording.source(source) if self._recording is not None else source

        for scheduled in host_sources(config, self._machine.ports, self.node):
            runner.add(recorded(scheduled.source), scheduled.every_s, deadline_s=scheduled.deadline_s)
        if self.tracing is not None:
            for source, every_s in self.tracing.sources(config.cadence.publish_s):
                # The others ask no port.
                runner.add(recorded(source) if source is self.tracing.binder else source, every_s)
        for scheduled in self.detecting.sources() if self.detecting is not None else ():
            runner.add(scheduled.source, scheduled.every_s, deadline_s=scheduled.deadline_s)
        return runner

    def _build_export(self, config: Config) -> OtlpExport | None:
        if config.export.endpoint is None:
            return None
        from gpumon.export.otlp import OtlpExport, make_exporter  # the SDK, which only this needs
        from gpumon.tracing import endpoint_of

        endpoint = endpoint_of(config.export)
        assert endpoint is not None
        return OtlpExport(
            self.store.view,
            make_exporter(endpoint),
            self._clock,
            interval_s=config.export.interval_s,
            resource={"host.name": self._node_names[0]},
        )

    def _build_activity(self) -> Activity:
        from gpumon.web.activity import Activity

        return Activity()

    def _build_tracing(self, config: Config, web: WebConfig | None) -> Tracing:
        from gpumon.tracing import Taps, Tracing  # protobuf and what else only traces need

        detection = self.detecting.detection if self.detecting is not None else None
        explanation = self.detecting.explanation if self.detecting is not None else None
        taps = Taps(
            detection.offer_requests if detection is not None else None,
            detection.offer_collective if detection is not None else None,
            explanation.of_span if explanation is not None else None,
            self._recording.body if self._recording is not None else None,
        )
        files = self._machine.ports.files
        return Tracing(config, self._clock, self.store, self.node, files, self._node_names, web, taps)

    def _build_recording(self, wish: Wish, machine: Machine) -> DaemonRecording:
        from gpumon.recording import DaemonRecording

        return DaemonRecording(wish, self._config, machine, self._clock, self._node_names)

    def _build_detecting(self, config: Config) -> Detecting:
        from gpumon.detecting import Detecting

        send = self._send_own_spans if config.otlp.enabled and config.forward.endpoint is not None else None
        return Detecting(config, self._clock, self.store, self._node_names[0], send)

    def _send_own_spans(self, body: bytes, at_s: float) -> None:
        from gpumon.ingest.request import Signal

        assert self.tracing is not None
        assert self.tracing.forwarder is not None
        self.tracing.forwarder.offer(Signal.TRACES, body, is_json=False, at_s=at_s, own=True)

    def _make_api(self) -> Asgi:
        from gpumon.web.knowledge import Knowledge
        from gpumon.web.node_state import Facts
        from gpumon.web.whole import make_whole

        assert self._activity is not None
        detecting = self.detecting
        knowledge = Knowledge(
            self.store.view,
            self._clock.now_s,
            self._clock.to_unix,
            Facts(
                name=self._node_names[0],
                is_demo=self._machine.world is not None,
                started_s=self._started_s,
                publish_s=self._config.cadence.publish_s,
                off=why_off(self._config),
            ),
            incidents=detecting.detection.incidents if detecting is not None else list,
            activity=self._activity,
            statistics=self.tracing.statistics if self.tracing is not None else None,
            explanation=detecting.explanation if detecting is not None else None,
        )
        whole = make_whole(knowledge, why_unexplained(self._config))
        self._stream = whole.stream
        return whole.asgi

    def end_streams(self) -> None:
        """Answers that go on end now. On the event loop."""
        if self._stream is not None:
            self._stream.end()

    # --- housekeeping ---------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        complaint = ""
        ended = False
        while not ended:
            try:
                self._keep_house_once(self._clock.now_s())
            except Exception as error:  # this thread's loop: without it nobody would see a source that hangs
                if repr(error) != complaint:
                    complaint = repr(error)
                    log.exception("housekeeping=bug detail='said once'")
            ended = self._stop.wait(self._config.cadence.publish_s)

    def _keep_house_once(self, at_s: float) -> None:
        self._runner.watch(at_s)
        self.store.put("gpumon", at_s, self._own_samples(at_s), 10 * self._config.cadence.publish_s + 5.0)
        if self._activity is not None:
            self._activity.take(self.store.view(at_s))
        for page in self._pages.values():
            page.refresh(at_s)

    def _own_samples(self, at_s: float) -> Iterator[Sample]:
        yield Sample(catalogue.BUILD_INFO, (__version__, platform.python_version()), 1.0)
        yield Sample(catalogue.CONFIG_RELOAD_OK, (), float(self._reload_ok))
        yield Sample(catalogue.CONFIG_RELOAD_TIME, (), self._reloaded_unix)
        yield from self.health.samples(at_s)
        yield from self.store.self_samples(at_s)
        yield from self.node.own_samples()
        if self._export is not None:
            yield from self._export.samples()
        if at_s - self._self_at_s >= SELF_S:
            self._self_at_s = at_s
            self._self_samples = list(self._usage())
        yield from self._self_samples

    def _usage(self) -> Iterator[Sample]:
        sampler = self._link.pid if self._link is not None else None
        for component, pid in (("main", os.getpid()), ("sampler", sampler)):
            if pid is None:
                continue
            try:
                stat = parse_stat(self._own_files.read(f"proc/{pid}/stat"))
                resident = parse_statm(self._own_files.read(f"proc/{pid}/statm"))
            except (ReadError, SourceError):
                continue  # it ended just now
            yield Sample(catalogue.SELF_CPU, (component,), stat.cpu_ticks / TICKS_PER_SECOND)
            yield Sample(catalogue.SELF_RESIDENT, (component,), float(resident * os.sysconf("SC_PAGESIZE")))


def run(
    config: Config,
    *,
    scenario: str | None = None,
    reload: Callable[[], Config] | None = None,
    record: Wish | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; the exit status. A second signal ends at once. SIGHUP reloads.

    scenario: watch the simulated node of it instead of this machine; None: this machine. record: write what the machine
    answers to a file meanwhile, and end when it has been long enough. Raises ScenarioError and DetectConfigError.
    """
    # Until the event loop takes it over, which is half a second: a reload asked for too early must not end us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    clock = SystemClock()
    machine = simulated_machine(clock, scenario) if scenario is not None else real_machine(config)
    folder = None  # of a demo: nothing where the real one keeps it, nothing of an earlier demo, and gone at the end
    if scenario is not None:
        if "folder" not in config.state.model_fields_set:
            folder = Path(tempfile.mkdtemp(prefix="gpumon-demo-"))
        config = _for_demo(folder, config)
        reload = partial(_reload_for_demo, folder, reload) if reload is not None else None
    _raise_open_files()
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until the event loop takes them over
        signal.signal(number, lambda *_: asked_to_end.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    try:
        app = App(config, machine, clock, reload, record)
        tls = ssl_context(app.tls) if app.tls is not None else None
    except WebConfigError as error:
        raise OSError(str(error)) from error  # said in one line, like any file that cannot be used
    scheme = "https" if tls is not None else "http"
    app.start()
    if record is not None and record.duration_s is not None:
        ending = threading.Timer(record.duration_s, os.kill, (os.getpid(), signal.SIGTERM))
        ending.daemon = True
        ending.start()
    demo = str(scenario is not None).lower()
    root = f"{scheme}://{_shown(host, port)}/"
    reached = f"{scheme}://{_shown(_reachable(host), port)}/"
    page = f" page={reached}" if config.http.ui else ""
    log.info("http=listening url=%smetrics%s demo=%s", root, page, demo)
    if config.detect.enabled and config.state.folder is not None:
        gone = " detail='removed when this demo ends'" if folder is not None else ""
        log.info("state=folder path=%s%s", config.state.folder, gone)
    try:
        from gpumon.web.server import serve  # while the sampler process starts

        beside = partial(app.beside, reached)
        serve(app.asgi, listener, asked_to_end.is_set, partial(_quietly_reload, app), beside, tls, app.end_streams)
    finally:
        app.stop()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        log.info("gpumon=stopped")
    return 0


def _for_demo(folder: Path | None, config: Config) -> Config:
    """What a demo does without being asked: it shows its tenants, and keeps to this machine and to its own folder."""
    changes: dict[str, object] = {}
    if folder is not None:
        changes["state"] = StateConfig(folder=folder)
    if "max_tenants" not in config.requests.model_fields_set:
        changes["requests"] = config.requests.model_copy(update={"max_tenants": _DEMO_TENANTS})
    if "listen" not in config.http.model_fields_set:
        changes["http"] = config.http.model_copy(update={"listen": _on_loopback(config.http.listen)})
    otlp = {"grpc": config.otlp.grpc, "http": config.otlp.http}
    kept = {name: _on_loopback(at) for name, at in otlp.items() if at and name not in config.otlp.model_fields_set}
    changes["otlp"] = config.otlp.model_copy(update=kept)
    return config.model_copy(update=changes)


def _on_loopback(listen: str) -> str:
    return f"127.0.0.1:{parse_listen(listen).port}"


def _reload_for_demo(folder: Path | None, reload: Callable[[], Config]) -> Config:
    return _for_demo(folder, reload())


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    """From this machine, at what listens on this address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def _raise_open_files() -> None:
    """Kept descriptors of processes and two receivers' connections want more files than the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(config: Config) -> socket.socket:
    address = config.http.address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        another = "--listen (http.listen) takes another address"
        if config.otlp.enabled:
            another += ", and a second gpumon needs others for --otlp-grpc and --otlp-http, too"
        raise OSError(f"cannot listen on {config.http.listen}: {reason}; {another}") from error


def _quietly_reload(app: App) -> None:
    with contextlib.suppress(RefusedError):  # logged and exported by reload()
        app.reload()
