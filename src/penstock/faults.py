"""Faults: exceptions that no code foresaw, noted where they are contained.

A request, a message, a configuration or a file can make our own code raise in ways that we did not think of.
Such an exception must cost the one request, stream, consumer or connection concerned, and nothing else. A
boundary is a call of `contain` around the work for one of them, or a `try` statement where that is called for
each message. What handles the exception gives it to `note`, which logs one line with an id, and stops what is
concerned. Who asked gets the id (`told`), and the line says what happened where.

What is foreseen does not come here: JetStreamApiError, ProtocolError and StoreError have their own handlers.

Invariants: a fault is logged before anybody is told its id; a line is one line, whatever the exception says
(its text may hold what a client sent).

Tests must not mistake a contained bug for a working server: they `watch` and fail on what they did not cause.
Rejected: the whole traceback (thirty lines for each request of whoever found a way to raise one).
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

TEXT_MAX = 500  # characters of what the exception says
FRAMES_MAX = 12  # innermost ones

# Ids of another process's life in the same log file differ.
_PROCESS = os.urandom(3).hex()
_numbers = itertools.count(1)
_watchers: list[Callable[[str, BaseException], object]] = []


def contain(work: Callable[..., T], failed: Callable[..., object], *args: object) -> T | None:
    """Calls `work(*args)`. When it raises, calls `failed(error, *args)` instead of letting the exception out,
    and returns None.

    What is no Exception (KeyboardInterrupt, a task's cancellation) comes out.
    """
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 -- this is what it is for
        failed(error, *args)
        return None


def note(where: str, error: BaseException) -> str:
    """Logs an exception that was contained. where: what it is stopped for, "stream S of account A".

    Returns the fault's id: the same one when a boundary within noted the exception before and let it out.
    """
    fault: str | None = getattr(error, "penstock_fault", None)
    if fault is None:
        fault = f"{_PROCESS}-{next(_numbers)}"
        text = ascii(error)[:TEXT_MAX]
        log.error("fault %s: %s: %s at %s", fault, where, text, " < ".join(_places(error)))
        with suppress(AttributeError):  # some exceptions of other packages take no attributes
            error.penstock_fault = fault  # type: ignore[attr-defined]
    for watcher in tuple(_watchers):
        watcher(where, error)
    return fault


def told(fault: str) -> str:
    """What a requester, or whoever looks at the state of a stream, is told about a fault."""
    return f"internal error, the server's log has it as fault {fault}"


@contextmanager
def watch(watcher: Callable[[str, BaseException], object]) -> Iterator[None]:
    """Calls `watcher(where, error)` for each fault. What it raises comes out of the boundary: a simulation
    stops at the fault."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _places(error: BaseException) -> list[str]:
    """Where it was raised, innermost frame first."""
    frames = list(walk_tb(error.__traceback__))[-FRAMES_MAX:]
    return [
        f"{frame.f_code.co_filename.rpartition('penstock/')[2]}:{line} {frame.f_code.co_name}"
        for frame, line in reversed(frames)
    ]
