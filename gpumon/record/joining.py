"""How the sampler process comes to record into the file of the main process: by options of its handover.

The mask's key is among them, and so on the process's command line: who can read that is on the node whose names it
hides. It is in no file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from gpumon.host.clock import Clock
from gpumon.record.format import FormatError
from gpumon.record.mask import Mask
from gpumon.record.recorder import Recorder

SAMPLER_STREAM = 1
_PATH, _LIMIT, _MASK = "record", "record_limit_bytes", "record_mask"


def to_options(path: str, limit_bytes: int | None, mask: Mask | None) -> dict[str, str]:
    """Options for ``Handover.options``. path: absolute, or as the sampler process will find it."""
    options = {_PATH: path}
    if limit_bytes is not None:
        options[_LIMIT] = str(limit_bytes)
    if mask is not None:
        options[_MASK] = json.dumps({"key": mask.key.hex(), "names": mask.names})
    return options


def join(options: Mapping[str, str], clock: Clock, on_stop: Callable[[str], None]) -> Recorder | None:
    """The recorder of the sampler process, started; None where nothing is to be recorded, or it cannot be.

    on_stop: is told why recording ended by itself, or could not begin.
    """
    path = options.get(_PATH)
    if path is None:
        return None
    mask = None
    if _MASK in options:
        told = json.loads(options[_MASK])
        mask = Mask(told["names"], key=bytes.fromhex(told["key"]))
    limit_bytes = int(options[_LIMIT]) if _LIMIT in options else None
    try:
        recorder = Recorder.join(path, SAMPLER_STREAM, clock, on_stop, mask=mask, limit_bytes=limit_bytes)
    except OSError as err:
        on_stop(err.strerror or str(err))
        return None
    except FormatError as err:
        on_stop(str(err))
        return None
    recorder.start()
    return recorder
