"""Grafana's ids of units, and which of them show a unit of an expression as what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grafana.lint_model import Panel, Target, labels_in
from grafana.promql_units import COUNT, MOMENT, MOMENT_MS, PER_SECOND, SECONDS, SHARE, Unit

_OWN = re.compile(r"(suffix|prefix|si|time|count):.+")
"""Units with a text of their own."""
_PLAIN = ("short", "none", "sishort", "locale")
_RATES = ("cps", "ops", "reqps", "rps", "wps", "iops", "pps")
_OF_COUNTS = ("percentunit", "bool", "bool_yes_no", "bool_on_off", "string")
_DATES = (
    *("dateTimeAsIso", "dateTimeAsIsoNoDateIfToday", "dateTimeAsUS", "dateTimeAsUSNoDateIfToday", "dateTimeAsLocal"),
    *("dateTimeAsLocalNoDateIfToday", "dateTimeAsSystem", "dateTimeFromNow"),
)
SHOWS: dict[Unit, tuple[str, ...]] = {
    COUNT: (*_PLAIN, *_OF_COUNTS),
    PER_SECOND: (*_PLAIN, *_RATES),
    SHARE: ("percentunit",),
    SECONDS: ("s", "dtdurations", "dthms", "clocks"),
    Unit(bytes=1): ("bytes", "decbytes"),
    Unit(bytes=1, seconds=-1): ("Bps", "binBps"),
    Unit(joules=1, seconds=-1): ("watt",),
    Unit(joules=1): ("joule",),
    Unit(hertz=1): ("hertz",),
    Unit(celsius=1): ("celsius",),
    MOMENT: (),
    MOMENT_MS: _DATES,
}
"""Units that are not here (a byte for each token, say) have no id in Grafana, and any is taken."""
VALID = frozenset(
    {
        *(unit for units in SHOWS.values() for unit in units),
        "percent",
        "ms",
        "µs",
        "ns",
        "cpm",
        "opm",
        "rpm",
        "dtdurationms",
    }
)


def is_valid(unit: str) -> bool:
    """Whether Grafana knows the id, and gpumon has something that it could be of."""
    return unit in VALID or bool(_OWN.fullmatch(unit))


def shows(unit: str, of: Unit) -> bool:
    """Whether values of a unit are shown right under an id."""
    counts = of in (COUNT, PER_SECOND)
    return of not in SHOWS or unit in SHOWS[of] or (counts and bool(_OWN.fullmatch(unit)))


def units_set(panel: Panel) -> list[str]:
    """All units that a panel names: its own, of overrides, of a heatmap's axis and cells."""
    found = [panel.defaults.get("unit")]
    found += [unit for override in panel.overrides if (unit := _unit_in(override)) is not None]
    if panel.type == "heatmap":
        found += [(panel.options.get(part) or {}).get("unit") for part in ("yAxis", "cellValues")]
    return [str(unit) for unit in found if unit]


def unit_for(panel: Panel, target: Target) -> str:
    """The id under which a panel shows what a query gives; empty if it has none."""
    if panel.type == "heatmap":
        part = "yAxis" if target.heatmap else "cellValues"
        return str((panel.options.get(part) or {}).get("unit") or "")
    return _unit_of(panel, set(_field_names(panel, target)), target.ref)


def unit_of_column(panel: Panel, heading: str) -> str:
    """The id under which a table shows a column; empty if it has none."""
    return _unit_of(panel, {heading}, "")


def _unit_of(panel: Panel, names: set[str], ref: str) -> str:
    unit = panel.defaults.get("unit")
    for override in panel.overrides:
        if _unit_in(override) is not None and _matches(override.get("matcher") or {}, names, ref):
            unit = _unit_in(override)
    return str(unit or "")


def _unit_in(override: dict[str, object]) -> object:
    properties = override.get("properties")
    assert isinstance(properties, list)
    return next((each.get("value") for each in properties if each.get("id") == "unit"), None)


def _field_names(panel: Panel, target: Target) -> Iterator[str]:
    """What the field of a query's values may be called: by its legend, or in a table, renamed or not."""
    legend = target.legend
    for label in labels_in(legend):
        legend = re.sub(r"\{\{\s*" + re.escape(label) + r"\s*\}\}", label, legend)
    yield legend
    own = {"Value", f"Value #{target.ref}"}
    yield from own
    for transformation in panel.raw.get("transformations") or []:
        renamed = (transformation.get("options") or {}).get("renameByName") or {}
        yield from (str(new) for old, new in renamed.items() if old in own)


def _matches(matcher: dict[str, object], names: set[str], ref: str) -> bool:
    wanted = matcher.get("options")
    if matcher.get("id") == "byFrameRefID":
        return wanted == ref
    if matcher.get("id") == "byRegexp":
        pattern = str(wanted)
        pattern = pattern[1 : pattern.rindex("/")] if pattern.startswith("/") else pattern
        return any(re.search(pattern, name) for name in names)
    return matcher.get("id") == "byName" and wanted in names
