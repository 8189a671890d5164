"""A client of Tollgate's decision service: ask whether a request may pass.

`Tollgate` is the synchronous client, `AsyncTollgate` the asynchronous one. `tollgate_client.starlette` has the
middleware for FastAPI and Starlette.
"""

from .client import AsyncReservation, AsyncTollgate, Reservation, Tollgate
from .decision import Attributes, CheckRequest, Decision, Limit, OnUnavailable, Settled, Verdict
from .decision import Denied, Problem, ProblemError, TollgateError, Unavailable

__all__ = [
    "AsyncReservation", "AsyncTollgate", "Attributes", "CheckRequest", "Decision", "Denied", "Limit", "OnUnavailable",
    "Problem", "ProblemError", "Reservation", "Settled", "Tollgate", "TollgateError", "Unavailable", "Verdict",
]
