"""XID errors as NVML events: the body of the loop that one thread runs.

nvmlEventSetWait_v2 on the XID events of every GPU. Only what happens after registration is seen; the
kernel log has the rest. A lost GPU makes the wait fail at once and for ever, so a failure throws the set away and
holds the next try back, 1 s at first and 30 s at most; the new set leaves out what is lost or refuses. One GPU that
refuses does not take the events of the others. Holds no clock: ``resume_at_s`` says when to call again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumon.host.nvml import (
    DEVICE_GONE,
    DRIVER_GONE,
    EVENT_XID,
    NEVER,
    Code,
    Device,
    Event,
    EventSet,
    Nvml,
    NvmlError,
    code_name,
)
from gpumon.model import Miss, Reason, Rejection

BACK_OFF_S = 1.0
BACK_OFF_MAX_S = 30.0
BURST_MAX = 64
"""Most events taken in one poll: a storm is taken in several."""
XID_MAX = 1023
"""Above every XID there is, and above 999, which stands for unknown."""
PROBLEMS_MAX = 256


class XidWatcher:
    """Events of one generation's GPUs. One thread polls and closes it."""

    def __init__(self, nvml: Nvml, devices: Sequence[Device], is_lost: Callable[[Device], bool]) -> None:
        """``is_lost``: whether others found the device lost; it is not registered while it is."""
        self._nvml = nvml
        self._is_lost = is_lost
        self._set: EventSet | None = None
        self._registered: list[Device] = []
        # Devices still to be registered with the set at hand, and from when.
        self._waiting = [(0.0, device) for device in devices]
        self._back_off_s = BACK_OFF_S
        self._problems: list[Miss | Rejection] = []
        self.resume_at_s = 0.0
        """Steady second before which ``poll`` has nothing to do and returns at once."""

    def poll(self, at_s: float, timeout_ms: int) -> list[Event]:
        """XID events, after at most ``timeout_ms`` of waiting for the first.

        Raises NvmlError when the driver is gone; the set is freed by then.
        """
        if at_s < self.resume_at_s:
            return []
        events: list[Event] = []
        try:
            event_set = self._prepare(at_s)
            for taken in range(BURST_MAX):
                event = event_set.wait(0 if taken else timeout_ms)
                if event is None:
                    break
                self._keep(event, events)
        except NvmlError as error:
            if error.code != Code.TIMEOUT:
                self._fail(at_s, error, events)
                return events
        self._back_off_s = BACK_OFF_S
        return events

    def take(self) -> list[Miss | Rejection]:
        """What went wrong since the last taking."""
        problems, self._problems = self._problems, []
        return problems

    def close(self) -> None:
        """Free the set; before ``Nvml.close``, by the thread that polls."""
        event_set, self._set = self._set, None
        self._waiting += [(0.0, device) for device in self._registered]
        self._registered = []
        if event_set is not None:
            _free(event_set)

    def _prepare(self, at_s: float) -> EventSet:
        """The set, with every device that is due registered or put off."""
        while True:
            if self._set is None:
                self._set = self._nvml.events()
            if self._register(at_s, self._set):
                return self._set
            self.close()  # and round again without the device that spoilt it: once per device at most

    def _register(self, at_s: float, event_set: EventSet) -> bool:
        """Register what is due; False when the set must be freed."""
        due = [device for from_s, device in self._waiting if at_s >= from_s and not self._is_lost(device)]
        for device in due:
            self._waiting = [entry for entry in self._waiting if entry[1] is not device]
            try:
                if event_set.register(device):
                    self._registered.append(device)
            except NvmlError as error:
                if error.code in DRIVER_GONE:
                    raise
                if error.code in NEVER:
                    continue  # it has no events: normal
                self._waiting.append((at_s + BACK_OFF_MAX_S, device))
                self._problem(_miss(f"gpu {device.index} xid events", error))
                if error.code == Code.UNKNOWN:
                    return False
        return True

    def _fail(self, at_s: float, error: NvmlError, events: list[Event]) -> None:
        suspects = self._registered if error.code in DEVICE_GONE else []
        self.close()
        if error.code in DRIVER_GONE:
            if events:
                return  # they may say why the driver went; the next poll raises
            raise error
        self._problem(_miss("xid events", error))
        self.resume_at_s = at_s + self._back_off_s
        self._back_off_s = min(2 * self._back_off_s, BACK_OFF_MAX_S)
        # The error does not say which device it was, and one that is lost may still let itself be registered.
        lost = [device for device in suspects if self._breaks(device, events)]
        self._waiting = [(at_s + BACK_OFF_MAX_S if device in lost else s, device) for s, device in self._waiting]

    def _breaks(self, device: Device, events: list[Event]) -> bool:
        """Whether waiting for this device alone fails; an event that comes meanwhile is kept."""
        event_set: EventSet | None = None
        try:
            event_set = self._nvml.events()
            event_set.register(device)
            event = event_set.wait(0)
        except NvmlError as error:
            if error.code in DRIVER_GONE:
                raise
            return error.code != Code.TIMEOUT
        finally:
            if event_set is not None:
                _free(event_set)
        if event is not None:
            self._keep(event, events)
        return False

    def _keep(self, event: Event, events: list[Event]) -> None:
        if event.kind == EVENT_XID and 0 < event.data <= XID_MAX:
            events.append(event)
        else:
            self._problem(Rejection("xid", Reason.MALFORMED))

    def _problem(self, problem: Miss | Rejection) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)


def _free(event_set: EventSet) -> None:
    try:
        event_set.close()
    except NvmlError:
        # A set that NVML will not take back: nothing is left to try, and it ends with the generation.
        return


def _miss(what: str, error: NvmlError) -> Miss:
    denied = error.code == Code.NO_PERMISSION
    return Miss(what, Reason.DENIED if denied else Reason.UNAVAILABLE, code_name(error.code))
