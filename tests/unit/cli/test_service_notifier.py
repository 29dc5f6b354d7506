"""Notifications to systemd, read from a socket as systemd has it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.service_notifier import ServiceNotifier


class Manager:
    """The service manager's socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.socket.setblocking(False)

    def received(self) -> list[dict[str, str]]:
        found = []
        while True:
            try:
                data = self.socket.recv(4096).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in data.split("\n")))


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    abstract = f"@penstock-{os.urandom(8).hex()}"
    made = Manager(str(tmp_path / "notify") if request.param == "path" else abstract)
    yield made
    made.socket.close()


def test_states_are_sent_in_the_words_of_sd_notify(manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": manager.path, "OTHER": "1"}
    notifier = ServiceNotifier.from_environment(environment, 1)
    assert notifier is not None
    assert environment == {"OTHER": "1"}  # for child processes
    notifier.ready("listening on nats://127.0.0.1:4222")
    notifier.reloading()
    notifier.ready("reloaded")
    notifier.leaving("stopping")
    notifier.close()
    ready, reloading, again, leaving = manager.received()
    assert ready == {"READY": "1", "STATUS": "listening on nats://127.0.0.1:4222"}
    assert reloading.pop("MONOTONIC_USEC").isdigit()
    assert (reloading, again) == ({"RELOADING": "1"}, {"READY": "1", "STATUS": "reloaded"})
    assert leaving == {"STOPPING": "1", "STATUS": "stopping"}


class Loop:
    """Timers that a test runs."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, object, tuple[object, ...]]] = []

    def call_later(self, delay: float, call: object, *arguments: object) -> object:
        self.timers.append((delay, call, arguments))
        return asyncio.TimerHandle(0, lambda: None, (), asyncio.new_event_loop())


@pytest.mark.parametrize(("pid", "pings"), [("7", 2), ("", 2), ("8", 0)])
def test_the_watchdog_of_this_process_gets_two_pings_in_its_period(
    manager: Manager, pid: str, pings: int
) -> None:
    environment = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": pid}
    notifier = ServiceNotifier.from_environment(environment, 7)
    assert notifier is not None
    loop = Loop()
    notifier.watch(loop)  # type: ignore[arg-type]
    for delay, call, arguments in loop.timers[:1]:
        assert delay == 30
        call(*arguments)  # type: ignore[operator]
    notifier.close()
    assert manager.received() == [{"WATCHDOG": "1"}] * pings


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_there_is_no_notifier(variables: dict[str, str]) -> None:
    assert ServiceNotifier.from_environment(dict(variables), 1) is None


def test_a_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    notifier = ServiceNotifier(str(tmp_path / "nothing"))
    notifier.ready("listening")
    notifier.close()
