"""GET /v1/engine/live: the engine as server-sent events, for the page and ``spola top``.

Each event is one ``LiveView.snapshot`` (docs/metrics.md has its shape) with the steps since the event before,
so that none is told twice. Nothing of any request's text is in it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from spola.runtime.service import Service
from spola.server.errors import ApiError
from spola.server.sse import EventStream, event

__all__ = ["live"]

DEFAULT_INTERVAL_S = 0.25
LEAST_INTERVAL_S = 0.05
MOST_INTERVAL_S = 60.0


async def live(service: Service, request: Request) -> Response:
    """Snapshots every ``interval`` seconds (0.05 to 60, default 0.25) until the client leaves."""
    text = request.query_params.get("interval", str(DEFAULT_INTERVAL_S))
    try:
        interval = float(text)
    except ValueError:
        interval = math.nan
    if not LEAST_INTERVAL_S <= interval <= MOST_INTERVAL_S:
        raise ApiError(
            400,
            f"interval must be from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S:g} seconds, not {text[:20]!r}",
            param="interval",
        )
    return EventStream(_frames(service, interval))


async def _frames(service: Service, interval: float) -> AsyncGenerator[bytes, None]:
    after = 0
    with service.live.watching() as view:
        while service.loop.alive:
            snapshot = view.snapshot(service.loop.clock(), after)
            after = snapshot["next"]
            yield event(snapshot)
            await asyncio.sleep(interval)
