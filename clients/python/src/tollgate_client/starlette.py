"""Middleware for FastAPI and Starlette. It is plain ASGI, so streams pass through it unbuffered."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import AsyncTollgate, Attributes


class TollgateMiddleware:
    """Asks about each HTTP request with what `attributes` knows of it; None lets it pass unasked.
    A refused one gets the decision's status and headers, the responses of others its headers."""

    def __init__(
        self, app: ASGIApp, *, client: AsyncTollgate,
        attributes: Callable[[Request], Attributes | None],
    ) -> None:
        self._app, self._client, self._attributes = app, client, attributes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attributes = self._attributes(Request(scope)) if scope["type"] == "http" else None
        if attributes is None:
            return await self._app(scope, receive, send)
        decision, status = await self._client.check(attributes), None
        if not decision.allowed:
            kind, body = "application/problem+json", decision.problem()
            refusal = JSONResponse(body, decision.status, dict(decision.headers), kind)
            return await refusal(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(decision.headers)
            await send(message)

        try:
            await anyio.sleep((decision.wait_ms or 0) / 1000)
            await self._app(scope, receive, send_with_headers)
        finally:
            await self._client.finish(decision, status=status, failed=status is None)
