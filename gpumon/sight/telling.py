"""Tells once, soon after the start, what this gpumon sees: to a terminal as one screen, else to the log.

A standard error that is a terminal gets the screen, unless the log is JSON; whatever is below INFO's level is not told
at all. Looks at the host anew, as ``gpumon doctor`` does, which takes about a tenth of a second, and asks neither the
driver nor the kubelet: those who hold them have told the store.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress

from gpumon.config import Config
from gpumon.doctor.surroundings import Surroundings, gather_within
from gpumon.host.files import Files
from gpumon.sight.look import Seen, look
from gpumon.sight.told import Place, block, fields, summary
from gpumon.store import View

log = logging.getLogger(__name__)


def tell(
    config: Config,
    view: View,
    files: Files,
    environ: Mapping[str, str],
    receivers: Mapping[str, str],
    place: Place,
) -> None:
    """Look and tell. ``receivers``: see ``look``."""
    if not log.isEnabledFor(logging.INFO):
        return
    around = Surroundings() if place.is_demo else gather_within(config, files, environ)
    tell_seen(look(config, view, files, around, receivers, is_demo=place.is_demo), place, config.log.format)


def tell_seen(seen: list[Seen], place: Place, log_format: str) -> None:
    """In the form for whoever reads standard error."""
    if log_format == "json":
        log.info("sees=told %s", summary(seen), extra={"more": {"sees": fields(seen)}})
    elif sys.stderr.isatty():
        with suppress(OSError, ValueError):  # a terminal that is gone or closed is no reason to stop
            sys.stderr.write(f"\n{block(seen, place)}")
            sys.stderr.flush()
    else:
        for each in seen:
            fix = f" fix={each.fix!r}" if each.fix else ""
            log.info("sees=%s state=%s detail=%r%s", each.part.replace(" ", "_"), each.state, each.detail, fix)
