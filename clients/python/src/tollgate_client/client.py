"""The asynchronous client. The build makes the synchronous one of it: see `hatch_build.py`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx
from anyio.lowlevel import RunVar

from .decision import Attributes, CheckRequest, Decision, Denied, OnUnavailable, Settled
from .decision import TollgateError, Unavailable, known, read_answer, read_decision

_LOG = logging.getLogger("tollgate_client")
_T = TypeVar("_T")


class AsyncTollgate:
    """The asynchronous client, for asyncio and trio. It keeps connections, and tasks may share it.

    `timeout` is in seconds, for each of connecting, sending and each read. `http` brings your own
    settings of TLS or a transport. By default no proxies of the environment are used."""

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, token: str | None = None,
        timeout: float = 1.0, on_unavailable: OnUnavailable = "raise",
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._url, self._timeout, self._on_unavailable = url.rstrip("/"), timeout, on_unavailable
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Connections belong to the event loop that opened them. Tests may run one a request.
        self._given, self._made = http, RunVar[httpx.AsyncClient | None](repr(self), None)

    @property
    def _http(self) -> httpx.AsyncClient:
        if (http := self._given or self._made.get()) is None:
            self._made.set(http := httpx.AsyncClient(trust_env=False))
        return http

    async def __aenter__(self) -> AsyncTollgate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()
        self._made.set(None)

    async def check(self, attributes: Attributes, cost: int = 1) -> Decision:
        """Asks whether a request may pass, and charges it if it may."""
        return await self._decide("/v1/check", _question(attributes, cost))

    async def check_batch(self, requests: Sequence[CheckRequest]) -> list[Decision]:
        """Asks about up to 1,000 requests at once. Each is decided alone, in their order."""

        def read(answer: Any) -> list[Decision]:
            return [read_decision(one) for one, _ in zip(answer, requests, strict=True)]

        body = [_question(one.attributes, one.cost) for one in requests]
        try:
            return await self._ask("POST", "/v1/check/batch", body, read)
        except Unavailable as error:
            return [self._undecided(error)] * len(body)

    @asynccontextmanager
    async def reserve(
        self, attributes: Attributes, cost: int, *, ttl: float = 60.0
    ) -> AsyncIterator[AsyncReservation]:
        """Reserves an estimate, and waits for its turn. Raises `Denied` if nothing was reserved.
        A block that ends without a commit cancels."""
        question = _question(attributes, cost) | {"ttl_ms": round(ttl * 1000)}
        reservation = AsyncReservation(self, await self._decide("/v1/reservations", question))
        try:
            await anyio.sleep(_wait(reservation.decision))
            yield reservation
        finally:
            await self._give_back("DELETE", "reservations", reservation._open)

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int = 1) -> AsyncIterator[Decision]:
        """Checks, waits for its turn, runs the block, and finishes. Raises `Denied` if refused."""
        decision, failed = await self.check(attributes, cost), True
        try:
            await anyio.sleep(_wait(decision))
            yield decision
            failed = False
        finally:
            await self.finish(decision, failed=failed)

    async def finish(
        self, decision: Decision, *, status: int | None = None, failed: bool = False
    ) -> None:
        """Ends an admitted request: releases its permit, and reports its status, or whether it
        failed, to limits that count only failures. It never raises."""
        outcome = {"failed": failed} if status is None else {"status": status}
        await self._give_back("DELETE", "permits", decision.permit)
        await self._give_back("POST", "reports", decision.report, outcome)

    async def _give_back(self, method: str, kind: str, id_: str | None, body: Any = None) -> None:
        if id_ is None:
            return
        try:
            with anyio.CancelScope(shield=True):  # a cancelled task gives back, too
                await self._ask(method, f"/v1/{kind}/{id_}", body, lambda _: None)
        except TollgateError as error:
            _LOG.warning("not given back; it returns when its time is over: %s", error)

    async def _decide(self, path: str, question: Any) -> Decision:
        try:
            return await self._ask("POST", path, question, read_decision)
        except Unavailable as error:
            return self._undecided(error)

    async def _ask(self, method: str, path: str, body: Any, read: Callable[[Any], _T]) -> _T:
        url, headers, timeout = self._url + path, self._headers, self._timeout
        request = self._http.build_request(method, url, json=body, headers=headers, timeout=timeout)
        try:
            response = await self._http.send(request)
        except httpx.RequestError as error:
            raise Unavailable(f"{url} cannot be asked: {error!r}") from error
        return read_answer(response.status_code, response.content, read)

    def _undecided(self, error: Unavailable) -> Decision:
        self._raise_or_warn(error)
        return Decision(self._on_unavailable == "allow", "unavailable", reason=str(error))

    def _raise_or_warn(self, error: Unavailable) -> None:
        if self._on_unavailable == "raise":
            raise error
        _LOG.warning("on_unavailable=%r decides: %s", self._on_unavailable, error)


class AsyncReservation:
    """Reserved units. `decision` says what was reserved."""

    def __init__(self, client: AsyncTollgate, decision: Decision) -> None:
        self._client, self.decision, self._open = client, decision, decision.reservation

    async def commit(self, cost: int) -> Settled | None:
        """Settles at the real cost. None where nothing is settled: the server is unavailable, or
        was. After an error it is open: commit again, or the end of the block cancels it."""
        if self.decision.reservation is None:
            return None
        path, settled = f"/v1/reservations/{self.decision.reservation}/commit", None
        try:
            settled = await self._client._ask("POST", path, {"cost": cost}, partial(known, Settled))
        except Unavailable as error:
            self._client._raise_or_warn(error)
        self._open = None
        return settled


def _question(attributes: Attributes, cost: int) -> dict[str, Any]:
    return {"attributes": dict(attributes), "cost": cost}


def _wait(decision: Decision) -> float:
    """How long an admitted request waits for its turn, in seconds. A denied one holds nothing."""
    if not decision.allowed:
        raise Denied(decision)
    return (decision.wait_ms or 0) / 1000
