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

from .decision import Attributes, CheckRequest, Decision, OnUnavailable, Settled, read_decision, read_settled
from .decision import Denied, Problem, ProblemError, TollgateError, Unavailable

_LOG = logging.getLogger("tollgate_client")
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Call(Generic[_T]):
    """One request to the server: how its answer is read, and what stands for it if there is none."""

    method: str
    path: str
    body: Any
    read: Callable[[Any], _T]
    otherwise: Callable[[Unavailable], _T]

    def result(self, response: httpx.Response | httpx.RequestError) -> _T:
        try:
            return self._read(response)
        except Unavailable as error:
            return self.otherwise(error)

    def _read(self, response: httpx.Response | httpx.RequestError) -> _T:
        if isinstance(response, httpx.RequestError):
            raise Unavailable(f"{response.request.url} cannot be asked: {response!r}") from response
        status = response.status_code
        try:
            body = response.json() if response.content else None
            if status in (200, 204):
                return self.read(body)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            if status in (200, 204):
                raise Unavailable(f"{response.url} answered, but not as Tollgate does: {error!r}") from error
            body = None
        problem = Problem.of(status, body)
        # 408 and 429 are a proxy's, or a server's that gave up: it did not judge the question.
        if status >= 500 or status in (408, 429):
            raise Unavailable(str(problem), problem)
        raise ProblemError(problem)


class _Base:
    """What the clients share: settings, and the calls. `timeout` is in seconds, for each of connecting, sending and
    each read. `http` brings your own settings of TLS or a transport. By default proxies of the environment are not
    used, since Tollgate stands beside its callers."""

    def __init__(self, url: str, token: str | None, timeout: float, on_unavailable: OnUnavailable) -> None:
        self._url, self._timeout, self._on_unavailable = url.rstrip("/"), timeout, on_unavailable
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def _arguments(self, call: _Call[Any]) -> dict[str, Any]:
        body = {} if call.body is None else {"json": call.body}
        url = self._url + call.path
        return {"method": call.method, "url": url, "headers": self._headers, "timeout": self._timeout} | body

    def _instead(self, error: Unavailable) -> Decision:
        """Stands for a decision that was not made: without headers and limits, since none was asked."""
        if self._on_unavailable == "raise":
            raise error
        _LOG.warning("no decision was made; on_unavailable=%r decides: %s", self._on_unavailable, error)
        return Decision(allowed=self._on_unavailable == "allow", verdict="unavailable", reason=str(error))

    def _unsettled(self, error: Unavailable) -> None:
        if self._on_unavailable == "raise":
            raise error
        _LOG.warning("not settled; it ends at its estimate when its time is over: %s", error)

    def _check(self, attributes: Attributes, cost: int) -> _Call[Decision]:
        body = {"attributes": dict(attributes), "cost": cost}
        return _Call("POST", "/v1/check", body, read_decision, self._instead)

    def _check_batch(self, requests: Sequence[CheckRequest]) -> _Call[list[Decision]]:
        def read(answer: Any) -> list[Decision]:
            if len(answer) != len(body):
                raise TypeError(f"{len(answer)} answers to {len(body)} questions")
            return [read_decision(one) for one in answer]

        body = [{"attributes": dict(one.attributes), "cost": one.cost} for one in requests]
        return _Call("POST", "/v1/check/batch", body, read, lambda error: [self._instead(error)] * len(body))

    def _reserve(self, attributes: Attributes, cost: int, ttl: float) -> _Call[Decision]:
        body = {"attributes": dict(attributes), "cost": cost, "ttl_ms": round(ttl * 1000)}
        return _Call("POST", "/v1/reservations", body, read_decision, self._instead)

    def _commit(self, reservation: str, cost: int) -> _Call[Settled | None]:
        path = f"/v1/reservations/{reservation}/commit"
        return _Call("POST", path, {"cost": cost}, read_settled, self._unsettled)

    def _cancel(self, reservation: str | None) -> list[_Call[Any]]:
        return [] if reservation is None else [self._delete(f"/v1/reservations/{reservation}")]

    def _finish(self, decision: Decision, status: int | None, failed: bool) -> list[_Call[Any]]:
        calls: list[_Call[Any]] = []
        if decision.permit is not None:
            calls.append(self._delete(f"/v1/permits/{decision.permit}"))
        if decision.report is not None:
            body = {"failed": failed} if status is None else {"status": status}
            calls.append(_Call("POST", f"/v1/reports/{decision.report}", body, read_settled, self._unsettled))
        return calls

    def _delete(self, path: str) -> _Call[None]:
        return _Call("DELETE", path, None, lambda _: None, self._unsettled)


def _wait(decision: Decision) -> float:
    """How long an admitted request waits for its turn, in seconds."""
    if not decision.allowed:
        raise Denied(decision)
    return (decision.wait_ms or 0) / 1000


def _not_given_back(error: TollgateError) -> None:
    _LOG.warning("not given back; it returns when its time is over: %s", error)


class Tollgate(_Base):
    """The synchronous client. It keeps connections, and threads may share it."""

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, token: str | None = None, timeout: float = 1.0,
        on_unavailable: OnUnavailable = "raise", http: httpx.Client | None = None,
    ) -> None:
        super().__init__(url, token, timeout, on_unavailable)
        self._http = http or httpx.Client(trust_env=False)

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
        decision = self._ask(self._reserve(attributes, cost, ttl))
        wait, reservation = _wait(decision), Reservation(self, decision)
        try:
            time.sleep(wait)
            yield reservation
        finally:
            self._give_back(self._cancel(reservation._open))

    @contextmanager
    def hold(self, attributes: Attributes, cost: int = 1) -> Iterator[Decision]:
        """Checks, waits for the turn, runs the block, and finishes. Raises `Denied` if the request may not pass."""
        decision, failed = self.check(attributes, cost), True
        wait = _wait(decision)
        try:
            time.sleep(wait)
            yield decision
            failed = False
        finally:
            self.finish(decision, failed=failed)

    def finish(self, decision: Decision, *, status: int | None = None, failed: bool = False) -> None:
        """Ends an admitted request: releases its permit, and reports its status, or whether it failed, to limits that
        count only failures. It never raises: what is not given back returns when its time is over."""
        self._give_back(self._finish(decision, status, failed))

    def _ask(self, call: _Call[_T]) -> _T:
        try:
            return call.result(self._http.request(**self._arguments(call)))
        except httpx.RequestError as error:
            return call.result(error)

    def _give_back(self, calls: list[_Call[Any]]) -> None:
        for call in calls:
            try:
                self._ask(call)
            except TollgateError as error:
                _not_given_back(error)


class Reservation:
    """Reserved units. `decision` says what was reserved."""

    def __init__(self, client: Tollgate, decision: Decision) -> None:
        self._client, self.decision, self._open = client, decision, decision.reservation

    def commit(self, cost: int) -> Settled | None:
        """Settles at the real cost. None where nothing is settled, because the server is unavailable, or was."""
        self._open = None
        if self.decision.reservation is None:
            return None
        return self._client._ask(self._client._commit(self.decision.reservation, cost))


class AsyncTollgate(_Base):
    """The asynchronous client, for asyncio and trio. Its methods do what those of `Tollgate` do."""

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, token: str | None = None, timeout: float = 1.0,
        on_unavailable: OnUnavailable = "raise", http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(url, token, timeout, on_unavailable)
        self._http = http or httpx.AsyncClient(trust_env=False)

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
        decision = await self._ask(self._reserve(attributes, cost, ttl))
        wait, reservation = _wait(decision), AsyncReservation(self, decision)
        try:
            await anyio.sleep(wait)
            yield reservation
        finally:
            await self._give_back(self._cancel(reservation._open))

    @asynccontextmanager
    async def hold(self, attributes: Attributes, cost: int = 1) -> AsyncIterator[Decision]:
        decision, failed = await self.check(attributes, cost), True
        wait = _wait(decision)
        try:
            await anyio.sleep(wait)
            yield decision
            failed = False
        finally:
            await self.finish(decision, failed=failed)

    async def finish(self, decision: Decision, *, status: int | None = None, failed: bool = False) -> None:
        await self._give_back(self._finish(decision, status, failed))

    async def _ask(self, call: _Call[_T]) -> _T:
        try:
            return call.result(await self._http.request(**self._arguments(call)))
        except httpx.RequestError as error:
            return call.result(error)

    async def _give_back(self, calls: list[_Call[Any]]) -> None:
        with anyio.CancelScope(shield=True):  # a cancelled task gives back, too
            for call in calls:
                try:
                    await self._ask(call)
                except TollgateError as error:
                    _not_given_back(error)


class AsyncReservation:
    """Reserved units. `decision` says what was reserved."""

    def __init__(self, client: AsyncTollgate, decision: Decision) -> None:
        self._client, self.decision, self._open = client, decision, decision.reservation

    async def commit(self, cost: int) -> Settled | None:
        self._open = None
        if self.decision.reservation is None:
            return None
        return await self._client._ask(self._client._commit(self.decision.reservation, cost))
