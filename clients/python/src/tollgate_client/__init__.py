"""A client of Tollgate's decision service: ask whether a request may pass.

`tollgate_client.starlette` has the middleware for FastAPI and Starlette.
"""

from .blocking import Reservation, Tollgate
from .client import AsyncReservation, AsyncTollgate
from .decision import Attributes, CheckRequest, Decision, Denied, Limit, OnUnavailable, Problem
from .decision import ProblemError, Settled, TollgateError, Unavailable, Verdict

__all__ = [
    "AsyncReservation", "AsyncTollgate", "Attributes", "CheckRequest", "Decision", "Denied",
    "Limit", "OnUnavailable", "Problem", "ProblemError", "Reservation", "Settled", "Tollgate",
    "TollgateError", "Unavailable", "Verdict",
]
