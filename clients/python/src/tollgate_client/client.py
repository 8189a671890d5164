"""The clients. Both say the same to the server; one blocks, and one awaits."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import httpx

from .decision import Attributes, CheckRequest, Decision, Denied, OnUnavailable, Problem, ProblemError, Settled
from .decision import TollgateError, Unavailable, read_decision, read_settled

_LOG = logging.getLogger("tollgate_client")
_T = TypeVar("_T")
_Http = TypeVar("_Http", httpx.Client, httpx.AsyncClient)


@dataclass(frozen=True)
class _Call(Generic[_T]):
    """One request to the server: how its answer is read, and what an error becomes."""

    request: httpx.Request
    read: Callable[[Any], _T]
    otherwise: Callable[[TollgateError], _T]

    def result(self, response: httpx.Response | httpx.RequestError) -> _T:
        try:
            return self._read(response)
        except TollgateError as error:
            return self.otherwise(error)

    def _read(self, response: httpx.Response | httpx.RequestError) -> _T:
        if isinstance(response, httpx.RequestError):
            raise Unavailable(f"{self.request.url} cannot be asked: {response!r}") from response
        status, body = response.status_code, None
        try:
            body = response.json() if response.content else None
            if status in (200, 204):
                return self.read(body)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            if status in (200, 204):
                raise Unavailable(f"{response.url} answered, but not as Tollgate does: {error!r}") from error
        problem = Problem.of(status, body)
        # 408 and 429 are a proxy's, or a server's that gave up: it did not judge the question.
        if status >= 500 or status in (408, 429):
            raise Unavailable(str(problem), problem)
        raise ProblemError(problem)


class _Base(Generic[_Http]):
    """What the clients share: settings, and the calls. `timeout` is in seconds, for each of connecting, sending and
    each read. `http` brings your own settings of TLS or a transport. By default proxies of the environment are not
    used, since Tollgate stands beside its callers."""

    _http_type: type[_Http]

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, token: str | None = None, timeout: float = 1.0,
        on_unavailable: OnUnavailable = "raise", http: _Http | None = None,
    ) -> None:
        self._url, self._timeout, self._on_unavailable = url.rstrip("/"), timeout, on_unavailable
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: _Http = http or self._http_type(trust_env=False)

    def _call(
        self, method: str, path: str, body: Any, read: Callable[[Any], _T], otherwise: Callable[[TollgateError], _T]
    ) -> _Call[_T]:
        url, headers = self._url + path, self._headers
        request = self._http.build_request(method, url, json=body, headers=headers, timeout=self._timeout)
        return _Call(request, read, otherwise)

    def _check(self, attributes: Attributes, cost: int) -> _Call[Decision]:
        return self._call("POST", "/v1/check", _question(attributes, cost), read_decision, self._instead)

    def _check_batch(self, requests: Sequence[CheckRequest]) -> _Call[list[Decision]]:
        def read(answer: Any) -> list[Decision]:
            if len(answer) != len(body):
                raise TypeError(f"{len(answer)} answers to {len(body)} questions")
            return [read_decision(one) for one in answer]

        body: list[Any] = [_question(one.attributes, one.cost) for one in requests]
        return self._call("POST", "/v1/check/batch", body, read, lambda error: [self._instead(error)] * len(body))

    def _reserve(self, attributes: Attributes, cost: int, ttl: float) -> _Call[Decision]:
        body = _question(attributes, cost) | {"ttl_ms": round(ttl * 1000)}
        return self._call("POST", "/v1/reservations", body, read_decision, self._instead)

    def _commit(self, reservation: str, cost: int) -> _Call[Settled | None]:
        path = f"/v1/reservations/{reservation}/commit"
        return self._call("POST", path, {"cost": cost}, read_settled, self._unsettled)

    def _cancel(self, reservation: str | None) -> list[_Call[None]]:
        return self._give_back("DELETE", "reservations", reservation)

    def _finish(self, decision: Decision, status: int | None, failed: bool) -> list[_Call[None]]:
        outcome = {"failed": failed} if status is None else {"status": status}
        release = self._give_back("DELETE", "permits", decision.permit)
        return release + self._give_back("POST", "reports", decision.report, outcome)

    def _give_back(self, method: str, kind: str, id_: str | None, body: Any = None) -> list[_Call[None]]:
        path = f"/v1/{kind}/{id_}"
        return [] if id_ is None else [self._call(method, path, body, lambda _: None, _not_given_back)]

    def _instead(self, error: TollgateError) -> Decision:
        """Stands for a decision that was not made: without headers and limits, since none was asked."""
        self._raise_or_warn(error, f"no decision was made; on_unavailable={self._on_unavailable!r} decides")
        return Decision(allowed=self._on_unavailable == "allow", verdict="unavailable", reason=str(error))

    def _unsettled(self, error: TollgateError) -> None:
        self._raise_or_warn(error, "not settled; it ends at its estimate when its time is over")

    def _raise_or_warn(self, error: TollgateError, what: str) -> None:
        if self._on_unavailable == "raise" or not isinstance(error, Unavailable):
            raise error
        _LOG.warning("%s: %s", what, error)


def _question(attributes: Attributes, cost: int) -> dict[str, Any]:
    return {"attributes": dict(attributes), "cost": cost}


def _not_given_back(error: TollgateError) -> None:
    _LOG.warning("not given back; it returns when its time is over: %s", error)


def _wait(decision: Decision) -> float:
    """How long an admitted request waits for its turn, in seconds. A denied one holds nothing to give back."""
    if not decision.allowed:
        raise Denied(decision)
    return (decision.wait_ms or 0) / 1000


class Tollgate(_Base[httpx.Client]):
    """The synchronous client. It keeps connections, and threads may share it."""

    _http_type = httpx.Client

    def __enter__(self) -> Tollgate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def check(self, attributes: Attributes, cost: int = 1) -> Decision:
        """Asks whether a request may pass, and charges it if it may."""
        return self._ask(self._check(attributes, cost))

    def check_batch(self, requests: Sequence[CheckRequest]) -> list[Decision]:
        """Asks about up to 1,000 requests at once. Each is decided alone, in their order."""
        return self._ask(self._check_batch(requests))

    @contextmanager
    def reserve(self, attributes: Attributes, cost: int, *, ttl: float = 60.0) -> Iterator[Reservation]:
        """Reserves an estimate, and waits for its turn. Raises `Denied` if nothing was reserved. A block that ends
        without a commit cancels."""
        reservation = Reservation(self, self._ask(self._reserve(attributes, cost, ttl)))
        try:
            time.sleep(_wait(reservation.decision))
            yield reservation
        finally:
            self._ask_all(self._cancel(reservation._open))

    @contextmanager
    def hold(self, attributes: Attributes, cost: int = 1) -> Iterator[Decision]:
        """Checks, waits for the turn, runs the block, and finishes. Raises `Denied` if the request may not pass."""
        decision, failed = self.check(attributes, cost), True
        try:
            time.sleep(_wait(decision))
            yield decision
            failed = False
        finally:
            self.finish(decision, failed=failed)

    def finish(self, decision: Decision, *, status: int | None = None, failed: bool = False) -> None:
        """Ends an admitted request: releases its permit, and reports its status, or whether it failed, to limits that
        count only failures. It never raises: what is not given back returns when its time is over."""
        self._ask_all(self._finish(decision, status, failed))

    def _ask(self, call: _Call[_T]) -> _T:
        try:
            return call.result(self._http.send(call.request))
        except httpx.RequestError as error:
            return call.result(error)

    def _ask_all(self, calls: list[_Call[None]]) -> None:
        for call in calls:
            self._ask(call)


class Reservation:
    """Reserved units. `decision` says what was reserved."""

    def __init__(self, client: Tollgate, decision: Decision) -> None:
        self._client, self.decision, self._open = client, decision, decision.reservation

    def commit(self, cost: int) -> Settled | None:
        """Settles at the real cost. None where nothing is settled, because the server is unavailable, or was. After an
        error the reservation is open: commit again, or the end of the block cancels it."""
        if self.decision.reservation is None:
            return None
        settled = self._client._ask(self._client._commit(self.decision.reservation, cost))
        self._open = None
        return settled


class AsyncTollgate(_Base[httpx.AsyncClient]):
    """The asynchronous client, for asyncio and trio. Its methods do what those of `Tollgate` do."""

    _http_type = httpx.AsyncClient

    async def __aenter__(self) -> AsyncTollgate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def check(self, attributes: Attributes, cost: int = 1) -> Decision:
        return await self._ask(self._check(attributes, cost))

    async def check_batch(self, requests: Sequence[CheckRequest]) -> list[Decision]:
        return await self._ask(self._check_batch(requests))

    @asynccontextmanager
    async def reserve(self, attributes: Attributes, cost: int, *, ttl: float = 60.0) -> AsyncIterator[AsyncReservation]:
        reservation = AsyncReservation(self, await self._ask(self._reserve(attributes, cost, ttl)))
        try:
            await anyio.sleep(_wait(reservation.decision))
            yield reservation
        finally:
            await self._ask_all(self._cancel(reservation._open))

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int = 1) -> AsyncIterator[Decision]:
        decision, failed = await self.check(attributes, cost), True
        try:
            await anyio.sleep(_wait(decision))
            yield decision
            failed = False
        finally:
            await self.finish(decision, failed=failed)

    async def finish(self, decision: Decision, *, status: int | None = None, failed: bool = False) -> None:
        await self._ask_all(self._finish(decision, status, failed))

    async def _ask(self, call: _Call[_T]) -> _T:
        try:
            return call.result(await self._http.send(call.request))
        except httpx.RequestError as error:
            return call.result(error)

    async def _ask_all(self, calls: list[_Call[None]]) -> None:
        with anyio.CancelScope(shield=True):  # a cancelled task gives back, too
            for call in calls:
                await self._ask(call)


class AsyncReservation:
    """Reserved units. `decision` says what was reserved."""

    def __init__(self, client: AsyncTollgate, decision: Decision) -> None:
        self._client, self.decision, self._open = client, decision, decision.reservation

    async def commit(self, cost: int) -> Settled | None:
        if self.decision.reservation is None:
            return None
        settled = await self._client._ask(self._client._commit(self.decision.reservation, cost))
        self._open = None
        return settled
