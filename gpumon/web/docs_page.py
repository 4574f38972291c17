"""The page /docs: the OpenAPI description as HTML, made here. No scripts, nothing from elsewhere.

FastAPI's own page loads Swagger UI from a CDN, which the nodes of a cluster cannot reach and a strict policy forbids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.9em/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 0.5rem 0.8rem; background: rgb(127 127 127 / 12%); border-radius: 4px; }
h2 { margin-top: 2.5rem; border-top: 1px solid rgb(127 127 127 / 40%); padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.8rem 0.25rem 0; }
tr + tr td { border-top: 1px solid rgb(127 127 127 / 25%); }
"""

Schema = Mapping[str, Any]


def docs_page(openapi: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI 3.1 document as FastAPI makes it."""
    info = openapi["info"]
    title = escape(f"{info['title']} {info['version']}: the JSON API")
    gets = {path: item["get"] for path, item in openapi["paths"].items() if "get" in item}
    models = openapi.get("components", {}).get("schemas", {})
    index = "".join(f'<li><a href="#{_anchor(path)}"><code>{escape(path)}</code></a></li>\n' for path in gets)
    routes = "".join(_route(path, get) for path, get in gets.items())
    parts = "".join(_model(name, models[name]) for name in sorted(models))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{_STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>GET only. Moments are unix seconds, shares 0 to 1, <code>null</code> is what is not known. Errors are
<code>application/problem+json</code>. The same for machines: <a href="/openapi.json">/openapi.json</a>.</p>
<ul>
{index}</ul>
{routes}
<h2 id="models">Models</h2>
{parts}</body>
</html>
"""


def _anchor(path: str) -> str:
    return escape(path.strip("/").replace("/", "-").replace("{", "").replace("}", ""))


def _route(path: str, get: Mapping[str, Any]) -> str:
    required = [p for p in get.get("parameters", ()) if p.get("required") and p["in"] == "query"]
    query = "&".join(f"{p['name']}=…" for p in required)
    url = f"http://localhost:9450{path}" + (f"?{query}" if query else "")
    asked = f"curl -s '{url}'" if "{" in url or query else f"curl -s {url}"
    rows = "".join(_parameter(parameter) for parameter in get.get("parameters", ()))
    table = f"<table><tr><th>parameter</th><th>what</th><th></th></tr>\n{rows}</table>\n" if rows else ""
    answer = get["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    answers = f"<p>Answers {_type(answer)}.</p>\n" if answer else ""
    said = escape(get.get("description", ""))
    head = f'<h2 id="{_anchor(path)}"><code>{escape(path)}</code></h2>'
    return f"{head}\n<p>{said}</p>\n<pre>{escape(asked)}</pre>\n{table}{answers}"


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter.get("schema", {})
    return (
        f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{_type(schema)}{_limits(schema)}</td>"
        f"<td>{escape(parameter.get('description', ''))}</td></tr>\n"
    )


def _model(name: str, schema: Schema) -> str:
    rows = "".join(_field(field, of) for field, of in schema.get("properties", {}).items())
    table = f"<table>{rows}</table>\n" if rows else ""
    return f'<h3 id="model-{escape(name)}">{escape(name)}</h3>\n<p>{escape(schema.get("description", ""))}</p>\n{table}'


def _field(name: str, schema: Schema) -> str:
    said = escape(schema.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code></td><td>{_type(schema)}</td><td>{said}</td></tr>\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#model-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "anything")))


def _limits(schema: Schema) -> str:
    return "".join(escape(f"; {text}") for text in _words(schema))


def _words(schema: Schema) -> Iterator[str]:
    for of in (schema, *schema.get("anyOf", ())):
        for key, word in _LIMITS.items():
            if key in of:
                yield f"{word} {of[key]:g}"
    if schema.get("default") not in (None, ""):
        yield f"default {schema['default']}"


_LIMITS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "maxLength": "characters at most",
}
