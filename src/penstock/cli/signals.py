"""Signals of a served server, and sending them: `--signal ldm=<pid>`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.server.logs import LineWriter, Log
    from penstock.server.options import Options
    from penstock.server.server import Server

BY_NAME = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "ldm": signal.SIGUSR2,
    "reload": signal.SIGHUP,
}


def send(wanted: str) -> None:
    """Sends `<signal>=<pid>`, where the pid may be given as the path of a file that holds it.

    Raises ConfigError for what is no signal or no process id, OSError when it can't be sent.
    """
    name, _, target = wanted.partition("=")
    number = BY_NAME.get(name)
    if number is None:
        raise ConfigError(f"unknown signal {name!r}; known are {', '.join(BY_NAME)}")
    if not target:
        raise ConfigError(f"--signal {name} needs a process: --signal {name}=<pid or pid file>")
    if not target.isdigit():
        with open(target, encoding="ascii") as file:
            target = file.read().strip()
    if not target.isdigit():
        raise ConfigError(f"invalid pid: {target!r}")
    os.kill(int(target), number)


def install(
    server: Server, ended: asyncio.Event, log: Log, writer: LineWriter, load: Callable[[], Options]
) -> None:
    """Makes the running loop answer signals.

    Args:
        server: what SIGUSR2 puts into lame duck mode.
        ended: set by SIGINT and SIGTERM.
        log, writer: SIGUSR1 opens the log file anew.
        load: gives the options that SIGHUP applies.
    """
    loop = asyncio.get_running_loop()
    leaving: list[asyncio.Task[None]] = []

    def end(name: str) -> None:
        log.info(f'Trapped "{name}" signal')
        ended.set()

    def reopen() -> None:
        log.info('Trapped "user defined signal 1" signal')
        try:
            writer.reopen()
        except OSError as error:
            log.error(f"can not open {writer.path} again, still writing to the old file: {error.strerror}")
        else:
            log.info("File log re-opened")

    def lame_duck() -> None:
        log.info('Trapped "user defined signal 2" signal')
        leaving.append(loop.create_task(server.lame_duck()))

    def reload_options() -> None:
        log.info('Trapped "hangup" signal')
        from penstock.server.reload import reload

        reload(server, load, writer)

    loop.add_signal_handler(signal.SIGINT, end, "interrupt")
    loop.add_signal_handler(signal.SIGTERM, end, "terminated")
    loop.add_signal_handler(signal.SIGUSR1, reopen)
    loop.add_signal_handler(signal.SIGUSR2, lame_duck)
    loop.add_signal_handler(signal.SIGHUP, reload_options)
