"""The server's answers as typed objects, and what can go wrong. It does no input or output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")
_Answer = TypeVar("_Answer", "Limit", "Settled", "Decision", "Problem")

Attributes = Mapping[str, str | int]  # What is known about a request: text and numbers by name.
# The server never says `unavailable`: it made no decision, and the client's option decided.
Verdict = Literal["allow", "wait", "deny", "never", "unavailable"]
OnUnavailable = Literal["raise", "allow", "deny"]  # Where the server makes no decision.


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """One question of a batch."""
    attributes: Attributes
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Limit:
    """What one limit said. The numbers are None where nothing was counted."""
    name: str
    allowed: bool
    source: str
    mode: str
    limit: int | None = None
    remaining: int | None = None
    unlimited: bool = False
    retry_after_ms: int | None = None
    reset_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What a commit changed."""
    refunded: int
    charged: int
    unpaid: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem details (RFC 9457) of the server."""
    status: int
    type: str
    title: str
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.title}: {self.detail}" if self.detail else f"{self.title}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request may pass, and why. With the verdict `wait` it passes after `wait_ms`."""
    allowed: bool
    verdict: Verdict
    limits: tuple[Limit, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # for the response to the caller
    cause: str | None = None
    reason: str | None = None
    detail: str | None = None
    fault: str | None = None
    no_limit_applies: bool = False
    retry_after_ms: int | None = None
    wait_ms: int | None = None
    permit: str | None = None
    reservation: str | None = None
    expires_after_ms: int | None = None
    report: str | None = None

    @property
    def made_by_server(self) -> bool:
        """False where the server made no decision, and the client's option chose `allowed`."""
        return self.verdict != "unavailable"

    @property
    def status(self) -> int:
        """The HTTP status to answer the caller with."""
        if self.allowed or self.verdict == "never":
            return 200 if self.allowed else 400
        if not self.made_by_server or self.reason == "limiter-unavailable":
            return 503
        return 403 if self.reason == "denied-by-policy" else 429

    def problem(self) -> dict[str, Any]:
        """The body (RFC 9457) to answer a refused caller with. It names the limit, and the wait, if
        `headers` name it: they name those of the caller. The others are not shown to callers."""
        type_, title = _PROBLEMS[status := self.status]
        body = {"type": type_, "title": title, "status": status, "retryable": status in (429, 503)}
        named = self.headers.get("RateLimit", "").split('"')[1:2]  # the longest wait is the first
        if self.cause in (*named, self.headers.get("X-RateLimit-Resource", "")):
            body |= {"cause": self.cause, "reason": self.reason, "detail": self.detail}
            body |= {"retry-after-ms": self.retry_after_ms}
        return {name: value for name, value in body.items() if value is not None}


_IANA, _OWN = "https://iana.org/assignments/http-problem-types#", "urn:tollgate:problem:"
_BUSY = "Request cannot be satisfied due to temporary server capacity constraints"
_EXCEEDED = "Request cannot be satisfied as assigned quota has been exceeded"
_PROBLEMS = {
    400: (_OWN + "cost-exceeds-capacity", "Request costs more than can ever be admitted at once"),
    403: (_OWN + "denied-by-policy", "Request is denied by policy"),
    429: (_IANA + "quota-exceeded", _EXCEEDED),
    503: (_IANA + "temporary-reduced-capacity", _BUSY),
}


class TollgateError(Exception):
    """Every error of this package. That `check` denies a request is an answer, not an error."""


class ProblemError(TollgateError):
    """The server refused the question: a field, a token or an id is wrong. No option hides it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Unavailable(TollgateError):
    """The server cannot be reached, is too slow, or fails. `problem` is its answer, if any."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


class Denied(TollgateError):
    """`reserve` or `hold` was refused, so that its block did not run."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail or decision.fault or decision.reason or decision.verdict)
        self.decision = decision


def known(type_: type[_Answer], answer: Any) -> _Answer:
    """Reads an object. A field that a newer server adds is passed over; a missing one raises."""
    names = {one.name for one in fields(type_)}
    return type_(**{name: value for name, value in dict(answer).items() if name in names})


def read_decision(answer: Any) -> Decision:
    if not isinstance(answer["allowed"], bool):
        raise TypeError("allowed is neither true nor false")
    return known(Decision, answer | {"limits": tuple(known(Limit, it) for it in answer["limits"])})


def read_answer(status: int, content: bytes, read: Callable[[Any], _T]) -> _T:
    """Reads an answer. Raises `ProblemError` or `Unavailable` where it is none to the question."""
    if status in (200, 204):
        try:
            return read(json.loads(content) if content else None)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise Unavailable(f"the answer is not one of Tollgate: {error!r}") from error
    said: dict[str, Any] = {"type": "about:blank", "title": f"the server answered {status}"}
    with suppress(ValueError, TypeError, RecursionError):
        said |= json.loads(content)
    problem = known(Problem, said | {"status": status})
    # 408 and 429 are a proxy's, or a server's that gave up: it did not judge the question.
    if status >= 500 or status in (408, 429):
        raise Unavailable(str(problem), problem)
    raise ProblemError(problem)
