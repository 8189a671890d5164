"""The server's answers as typed objects, and what can go wrong. Nothing here does input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

Attributes = Mapping[str, str | int]
"""What is known about a request: text and whole numbers by name."""

Verdict = Literal["allow", "wait", "deny", "never", "unavailable"]
"""The server never says `unavailable`: it made no decision, and the client's option decided."""

OnUnavailable = Literal["raise", "allow", "deny"]
"""What happens where the server makes no decision."""

_Answer = TypeVar("_Answer", "Limit", "Settled", "Decision")


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
    """What a commit or a report changed."""

    refunded: int
    charged: int
    unpaid: int


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
        if self.allowed:
            return 200
        if self.verdict == "never":
            return 400
        if self.verdict == "unavailable" or self.reason == "limiter-unavailable":
            return 503
        return 403 if self.reason == "denied-by-policy" else 429

    def problem(self) -> dict[str, Any]:
        """The body (RFC 9457) to answer a refused caller with. It names no limit: `headers` name those of the caller,
        and the others are not shown to callers."""
        type_, title = _PROBLEMS[self.status]
        return {"type": type_, "title": title, "status": self.status, "retryable": self.status in (429, 503)}


_IANA = "https://iana.org/assignments/http-problem-types#"
_PROBLEMS = {
    400: ("urn:tollgate:problem:cost-exceeds-capacity", "Request costs more than can ever be admitted at once"),
    403: ("urn:tollgate:problem:denied-by-policy", "Request is denied by policy"),
    429: (_IANA + "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"),
    503: (
        _IANA + "temporary-reduced-capacity",
        "Request cannot be satisfied due to temporary server capacity constraints",
    ),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem details (RFC 9457) of the server."""

    status: int
    type: str
    title: str
    detail: str | None

    @classmethod
    def of(cls, status: int, body: Any) -> Problem:
        """Reads a body that may be anything."""
        members = body if isinstance(body, dict) else {}
        title = str(members.get("title", f"the server answered {status}"))
        detail = members.get("detail")
        return cls(status, str(members.get("type", "about:blank")), title, None if detail is None else str(detail))

    def __str__(self) -> str:
        return self.title if self.detail is None else f"{self.title}: {self.detail}"


class TollgateError(Exception):
    """Every error of this package. That `check` denies a request is an answer, not an error."""


class ProblemError(TollgateError):
    """The server refused the question itself: a field, a token or an id is wrong. No option hides it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Unavailable(TollgateError):
    """The server cannot be reached, is too slow, or fails. `problem` is what it said, if anything."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


class Denied(TollgateError):
    """`reserve` or `hold` was refused, so that its block did not run."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail or decision.fault or decision.reason or decision.verdict)
        self.decision = decision


def _known(type_: type[_Answer], answer: Any) -> _Answer:
    """Reads an answer. A field that a newer server adds is passed over; a missing one is a TypeError."""
    names = {one.name for one in fields(type_)}
    return type_(**{name: value for name, value in dict(answer).items() if name in names})


def read_decision(answer: Any) -> Decision:
    if not isinstance(answer["allowed"], bool):
        raise TypeError("allowed is neither true nor false")
    limits = tuple(_known(Limit, limit) for limit in answer["limits"])
    return _known(Decision, answer | {"limits": limits})


def read_settled(answer: Any) -> Settled:
    return _known(Settled, answer)
