"""What a test that hangs was waiting for.

pytest-timeout prints the stacks of threads. A coroutine that waits is on none of them: they end in the event
loop's select().
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Generator

import pytest


def stacks_of_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Where each unfinished task of this loop waits."""
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name):
        task.print_stack(file=out)
    return out.getvalue()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds them to the report of a test that exceeded its time limit, before its loop is closed."""
    report = yield
    if report.when != "call" or "from pytest-timeout" not in report.longreprtext:
        return report
    try:
        loop = asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        return report  # the test was not asynchronous
    if not loop.is_closed():
        report.sections.append(("asyncio tasks", stacks_of_tasks(loop)))
    return report
