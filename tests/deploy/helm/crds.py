"""The fields of the Prometheus Operator's objects that there are, as far as the chart may use them.

Its objects have no schema in kubernetes-validate, and a misspelt field in them is dropped by the API server without a
word. By hand, from the Operator's API reference, monitoring.coreos.com/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_RELABEL = {"action", "sourceLabels", "separator", "targetLabel", "regex", "modulus", "replacement"}
_SECRET_KEY = {"name", "key", "optional"}
_ENDPOINT: dict[str, Any] = {
    "port": None,
    "path": None,
    "scheme": None,
    "params": None,
    "interval": None,
    "scrapeTimeout": None,
    "honorLabels": None,
    "honorTimestamps": None,
    "tlsConfig": {"ca", "cert", "keySecret", "serverName", "insecureSkipVerify", "minVersion", "maxVersion"},
    "basicAuth": {"username": _SECRET_KEY, "password": _SECRET_KEY},
    "authorization": {"type": None, "credentials": _SECRET_KEY},
    "relabelings": _RELABEL,
    "metricRelabelings": _RELABEL,
}
_MONITOR: dict[str, Any] = {
    "jobLabel": None,
    "podTargetLabels": None,
    "selector": {"matchLabels": None},
    "namespaceSelector": {"any", "matchNames"},
    "sampleLimit": None,
    "targetLimit": None,
    "labelLimit": None,
    "labelNameLengthLimit": None,
    "labelValueLengthLimit": None,
}
_RULE = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
_FIELDS: Mapping[str, Any] = {
    "PodMonitor": _MONITOR | {"podMetricsEndpoints": _ENDPOINT},
    "ServiceMonitor": _MONITOR | {"endpoints": _ENDPOINT, "targetLabels": None},
    "PrometheusRule": {
        "groups": {
            "name": None,
            "interval": None,
            "query_offset": None,
            "limit": None,
            "labels": None,
            "rules": dict.fromkeys(_RULE),
        }
    },
}
KINDS = tuple(_FIELDS)


def unknown_fields(each: Mapping[str, Any]) -> list[str]:
    """Paths in an object that the Operator does not know."""
    assert each["apiVersion"] == "monitoring.coreos.com/v1"
    return [
        *(key for key in each if key not in ("apiVersion", "kind", "metadata", "spec")),
        *_unknown(each["spec"], _FIELDS[each["kind"]], "spec"),
    ]


def _unknown(value: object, fields: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, fields, f"{path}[{index}]")
    elif fields is not None:
        assert isinstance(value, dict), path
        for key, item in value.items():
            if key not in fields:
                yield f"{path}.{key}"
            elif isinstance(fields, dict):
                yield from _unknown(item, fields[key], f"{path}.{key}")
