"""The Python client against the real server, whose address is the first argument, and against servers that fail."""

import asyncio
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Iterator

import anyio
from tollgate_client import (
    AsyncTollgate, CheckRequest, Decision, Denied, OnUnavailable, ProblemError, Settled, Tollgate, TollgateError,
    Unavailable,
)

URL = sys.argv[1]
logging.disable(logging.WARNING)


def raised(kind: type[TollgateError], call: Callable[[], Any]) -> Any:
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; the answer is {answer}")


def left(client: Tollgate, **attributes: str) -> int | None:
    return client.check(attributes, cost=0).limits[0].remaining


def decisions(client: Tollgate) -> None:
    first = client.check({"api_key": "py"}, 2)
    assert (first.allowed, first.verdict, first.status, first.made_by_server) == (True, "allow", 200, True), first
    assert first.limits[0].name == "per-key" and first.limits[0].remaining == 1, first
    assert first.headers["X-RateLimit-Remaining"] == "1", first
    denied = client.check({"api_key": "py"}, 2)
    assert (denied.verdict, denied.cause, denied.status) == ("deny", "per-key", 429), denied
    assert denied.retry_after_ms and "Retry-After" in denied.headers, denied
    problem = denied.problem()
    assert (problem["cause"], problem["reason"]) == ("per-key", "3 requests an hour, burst 3"), problem
    assert problem["retry-after-ms"] == denied.retry_after_ms and "detail" not in problem, problem
    # A limit without `by` is in no header, and in no body.
    hidden = {"Retry-After": "9"}
    platform = Decision(False, "deny", headers=hidden, cause="all", reason="busy", retry_after_ms=9000)
    assert set(platform.problem()) == {"type", "title", "status", "retryable"}, platform.problem()
    never = client.check({"api_key": "py"}, 4)
    assert (never.verdict, never.status) == ("never", 400), never
    suspended = client.check({"customer": "py", "plan": "suspended"})
    assert (suspended.reason, suspended.status) == ("denied-by-policy", 403), suspended
    assert client.check({"nobody": "x"}).no_limit_applies
    batch = client.check_batch([CheckRequest({"api_key": "b"}, 3), CheckRequest({"api_key": "b"})])
    assert [one.verdict for one in batch] == ["allow", "deny"], batch


def questions_that_are_wrong(client: Tollgate) -> None:
    wrong = raised(ProblemError, lambda: client.check({"api_key": "py"}, -1))
    assert wrong.problem.status == 400 and wrong.problem.type == "urn:tollgate:problem:invalid-request", wrong
    assert "cost: -1 is not accepted" in str(wrong), wrong
    # No option hides it.
    with Tollgate(URL, on_unavailable="allow") as lenient:
        raised(ProblemError, lambda: lenient.check({"api_key": "py"}, -1))
    with client.reserve({"tenant": "twice"}, 5) as reservation:
        assert reservation.commit(3) == Settled(refunded=2, charged=0, unpaid=0)
        twice = raised(ProblemError, lambda: reservation.commit(3))
        assert twice.problem.status == 409, twice


def reservations(client: Tollgate) -> None:
    with client.reserve({"tenant": "t"}, 400, ttl=30) as reservation:
        assert left(client, tenant="t") == 600
        assert reservation.decision.expires_after_ms == 30_000
        reservation.commit(150)
    assert left(client, tenant="t") == 850
    # A block that does not commit, and one that fails, give everything back.
    with client.reserve({"tenant": "t"}, 400):
        assert left(client, tenant="t") == 450
    try:
        with client.reserve({"tenant": "t"}, 400):
            raise ValueError("its own error")
    except ValueError as error:
        assert str(error) == "its own error"
    assert left(client, tenant="t") == 850
    # So does a block whose commit failed; until then the commit may be repeated.
    with client.reserve({"tenant": "t"}, 400) as reservation:
        raised(ProblemError, lambda: reservation.commit(-1))
    assert left(client, tenant="t") == 850
    with client.reserve({"tenant": "t"}, 400) as reservation:
        raised(ProblemError, lambda: reservation.commit(-1))
        assert reservation.commit(0) == Settled(refunded=400, charged=0, unpaid=0)
    ran = False
    try:
        with client.reserve({"tenant": "t"}, 900):
            ran = True
    except Denied as denied:
        assert denied.decision.cause == "tokens", denied
    assert not ran


def permits(client: Tollgate) -> None:
    with client.hold({"worker": "w"}) as decision:
        assert decision.permit and left(client, worker="w") == 0
        try:
            with client.hold({"worker": "w"}):
                raise AssertionError("there is one permit")
        except Denied as denied:
            assert denied.decision.cause == "in-flight"
    assert left(client, worker="w") == 1
    # Only failures count: a block that succeeds gives its unit back.
    with client.hold({"account": "a"}):
        pass
    assert left(client, account="a") == 2
    try:
        with client.hold({"account": "a"}):
            raise ValueError
    except ValueError:
        assert left(client, account="a") == 1
    client.finish(client.check({"account": "a"}), status=200)
    assert left(client, account="a") == 1


def waits(client: Tollgate) -> None:
    """A shaping limit gives a turn, and the block runs at its turn: two a second."""
    with client.hold({"queue": "q"}):
        started = time.monotonic()
    for _ in range(2):
        with client.hold({"queue": "q"}) as decision:
            assert decision.verdict == "wait" and decision.wait_ms, decision
    assert time.monotonic() - started >= 0.75


def threads(client: Tollgate) -> None:
    """Threads share a client, and are counted exactly."""
    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda _: client.check({"tenant": "threads"}, 100).allowed, range(40)))
    assert allowed.count(True) == 10, allowed


@contextmanager
def server_that(answers: bytes | None) -> Iterator[str]:
    """A server that answers every request with these bytes, or never."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(65536)
            if answers is not None:
                connection.sendall(answers)
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()


def answer(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


FAILING = {
    "hangs": None,
    "breaks off": b"",
    "fails": answer("503 Service Unavailable", '{"title": "The store did not answer", "status": 503}'),
    "is another": answer("200 OK", "<html>welcome</html>"),
    "is a stub": answer("200 OK", "{}"),
    "is a proxy's": answer("429 Too Many Requests", ""),
}


def unavailable() -> None:
    """What fails is never reported as a decision of the server."""
    for name, bytes_ in FAILING.items():
        with server_that(bytes_) as url:
            unavailable_at(url, name)
    with server_that(b"") as url:
        pass
    unavailable_at(url, "is gone")


def unavailable_at(url: str, name: str) -> None:
    options: list[OnUnavailable] = ["raise", "allow", "deny"]
    for option in options:
        # One that answers may be slow, because the machine is.
        timeout = 0.2 if name == "hangs" else 10
        with Tollgate(url, timeout=timeout, on_unavailable=option) as client:
            if option == "raise":
                error = raised(Unavailable, lambda: client.check({"api_key": "k"}))
                assert (error.problem is not None) == (name in ("fails", "is a proxy's")), (name, error)
                raised(Unavailable, lambda: client.check_batch([CheckRequest({"api_key": "k"})]))
                continue
            decision = client.check({"api_key": "k"})
            assert decision.allowed == (option == "allow") and not decision.made_by_server, (name, decision)
            assert decision.verdict == "unavailable" and decision.reason, (name, decision)
            assert not decision.headers and not decision.limits, (name, decision)
            assert decision.status == (200 if option == "allow" else 503), (name, decision)
            batch = client.check_batch([CheckRequest({"api_key": "k"})] * 2)
            assert [one.verdict for one in batch] == ["unavailable"] * 2, (name, batch)
            try:
                with client.reserve({"tenant": "t"}, 5) as reservation:
                    assert option == "allow" and reservation.commit(3) is None, name
            except Denied as denied:
                assert option == "deny" and denied.decision.status == 503, (name, denied)


def lost_at_commit() -> None:
    """A server that goes away between reserving and committing: nothing is reported as settled."""
    made = '{"allowed": true, "verdict": "allow", "limits": [], "headers": {}, "reservation": "00", "expires_after_ms": 1}'
    with server_that(answer("200 OK", made)) as url, Tollgate(url, on_unavailable="allow") as client:
        with client.reserve({"tenant": "t"}, 5) as reservation:
            assert reservation.commit(3) is None
    with server_that(answer("200 OK", made)) as url, Tollgate(url) as client:
        with client.reserve({"tenant": "t"}, 5) as reservation:
            raised(Unavailable, lambda: reservation.commit(3))


async def asynchronous() -> None:
    async with AsyncTollgate(URL) as client:
        assert (await client.check({"api_key": "async"})).limits[0].remaining == 2
        verdicts = [one.verdict for one in await client.check_batch([CheckRequest({"api_key": "async"}, 2)] * 2)]
        assert verdicts == ["allow", "deny"], verdicts
        async with client.reserve({"tenant": "async"}, 400) as reservation:
            assert await reservation.commit(100) == Settled(refunded=300, charged=0, unpaid=0)
        try:
            async with client.reserve({"tenant": "async"}, 500):
                raise ValueError
        except ValueError:
            pass
        # A block whose commit failed gives everything back.
        async with client.reserve({"tenant": "async"}, 500) as reservation:
            try:
                await reservation.commit(-1)
                raise AssertionError("no error")
            except ProblemError as error:
                assert error.problem.status == 400
        assert (await client.check({"tenant": "async"}, 0)).limits[0].remaining == 900
        # A task that is cancelled while it holds a permit gives it back.
        with anyio.CancelScope() as scope:
            async with client.hold({"worker": "async"}):
                scope.cancel()
                await anyio.sleep(30)
        assert (await client.check({"worker": "async"}, 0)).limits[0].remaining == 1
        try:
            await client.check({"api_key": "async"}, -1)
            raise AssertionError("no error")
        except ProblemError as error:
            assert error.problem.status == 400
    with server_that(None) as url:
        async with AsyncTollgate(url, timeout=0.2, on_unavailable="allow") as client:
            decision = await client.check({"api_key": "k"})
            assert decision.allowed and not decision.made_by_server
        async with AsyncTollgate(url, timeout=0.2) as client:
            try:
                await client.check({"api_key": "k"})
                raise AssertionError("no error")
            except Unavailable as error:
                assert "cannot be asked" in str(error)


with Tollgate(URL) as tollgate:
    decisions(tollgate)
    questions_that_are_wrong(tollgate)
    reservations(tollgate)
    permits(tollgate)
    waits(tollgate)
    threads(tollgate)
unavailable()
lost_at_commit()
asyncio.run(asynchronous())
print("fine")
