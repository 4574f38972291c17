"""Which models a server says that it has: ``GET /v1/models``, and which of them is asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Final

from gpumon.probe.asking import request_bytes
from gpumon.probe.endpoint import Endpoint
from gpumon.probe.exchange import Exchange, ExchangeError, NowNs
from gpumon.probe.masking import shown
from gpumon.terminal import NAME_MAX

TIMEOUT_S: Final = 15.0
_BODY_BYTES: Final = 4 << 20
_SHOWN: Final = 8
_NAME_MAX: Final = 1024
"""Characters of a name that goes into every request."""


class ModelError(Exception):
    """There is no telling whom to ask. One line."""


async def only_model(endpoint: Endpoint, tls: ssl.SSLContext | None, now_ns: NowNs) -> str:
    """The one that the server has. Raises ModelError, where there are several, too."""
    exchange = Exchange(endpoint, tls, now_ns)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await exchange.open()
            exchange.send(request_bytes(endpoint, "GET", "models"))
            head = await exchange.head()
            body = b""
            async for piece in exchange.pieces(head):
                body += piece.data
                if len(body) > _BODY_BYTES:
                    raise ExchangeError("malformed", "an answer without an end")
    except TimeoutError as error:
        raise ModelError(f"{endpoint}/models: no answer within {TIMEOUT_S:g} s") from error
    except ExchangeError as error:
        raise ModelError(f"{endpoint}/models: {error.reason}: {shown(str(error), endpoint.key, NAME_MAX)}") from error
    finally:
        exchange.close()
    if head.status != 200:
        raise ModelError(f"{endpoint}/models answers HTTP {head.status}; --model says which one to ask")
    names = parse_models(body)
    if len(names) != 1:
        known = ", ".join(shown(name, endpoint.key, NAME_MAX) for name in names[:_SHOWN]) or "none"
        raise ModelError(f"{endpoint} has {len(names)} models ({known}); --model says which one to ask")
    return names[0]


def parse_models(body: bytes) -> list[str]:
    """Their ids, each once, but those that are no names; none of what is no such list."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return []
    data = said.get("data") if isinstance(said, dict) else None
    ids = [each.get("id") for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    return list(dict.fromkeys(name for name in ids if isinstance(name, str) and 0 < len(name) <= _NAME_MAX))
