"""Faults: unexpected exceptions, contained where they affect the least.

A request, message, configuration or file can trigger an exception that the code does not foresee. Such an
exception must affect only one request, stream, consumer or connection. A boundary is a call of `contain`
around the work for one of them, or a `try` statement where the call would run per message. The handler passes
the exception to `note`, which logs one line with an id, and stops the affected part. The requester gets the
id (`describe`); the log line has the details.

Expected errors do not come here: JetStreamApiError, ProtocolError and StoreError have their own handlers.

Invariants: a fault is logged before its id is sent; its log entry is one line, whatever the exception's text,
which may contain client input.

Tests must not mistake a contained bug for a working server: they `watch`, and fail on faults they did not
cause.
Rejected: logging whole tracebacks. A client that triggers the same fault repeatedly would flood the log.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_tb
from typing import TypeVar

log = logging.getLogger("penstock.faults")

T = TypeVar("T")

TEXT_MAX = 500  # characters of the exception's text
FRAMES_MAX = 12  # innermost frames

# Makes ids of several runs in one log file differ.
_PROCESS = os.urandom(3).hex()
_numbers = itertools.count(1)
_noted = 0
_watchers: list[Callable[[str, BaseException], object]] = []


def contain(work: Callable[..., T], failed: Callable[..., object], *args: object) -> T | None:
    """Calls `work(*args)`. If it raises an Exception, calls `failed(error, *args)` and returns None.

    Other exceptions (KeyboardInterrupt, cancellation of a task) propagate.
    """
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 -- the purpose of this function
        failed(error, *args)
        return None


def note(where: str, error: BaseException) -> str:
    """Logs a contained exception. `where` names the affected part, such as "stream S of account A".

    Returns the fault's id; the same id if an inner boundary has logged the exception already.
    """
    global _noted
    fault: str | None = getattr(error, "penstock_fault", None)
    if fault is None:
        _noted += 1
        fault = f"{_PROCESS}-{next(_numbers)}"
        text = ascii(error)[:TEXT_MAX]
        log.error("fault %s: %s: %s at %s", fault, where, text, " < ".join(_places(error)))
        with suppress(AttributeError):  # some exception types have no attributes
            error.penstock_fault = fault  # type: ignore[attr-defined]
    for watcher in tuple(_watchers):
        watcher(where, error)
    return fault


def count() -> int:
    """How many faults this process has logged."""
    return _noted


def describe(fault: str) -> str:
    """The text about a fault for requesters and status pages."""
    return f"internal error, the server's log has it as fault {fault}"


@contextmanager
def watch(watcher: Callable[[str, BaseException], object]) -> Iterator[None]:
    """Calls `watcher(where, error)` for each fault. Exceptions of the watcher propagate, so that a simulation
    stops at the fault."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _places(error: BaseException) -> list[str]:
    """Source locations of the traceback, innermost frame first."""
    frames = list(walk_tb(error.__traceback__))[-FRAMES_MAX:]
    return [
        f"{frame.f_code.co_filename.rpartition('penstock/')[2]}:{line} {frame.f_code.co_name}"
        for frame, line in reversed(frames)
    ]
