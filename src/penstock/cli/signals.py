"""Signal handling of a server, and sending signals: `--signal ldm=<pid>`."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cli.service_notifier import ServiceNotifier
    from penstock.server.logging.logs import ServedLog
    from penstock.server.server import Server

BY_NAME = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "ldm": signal.SIGUSR2,
    "reload": signal.SIGHUP,
}


def send(wanted: str, program: str = "nats-server") -> None:
    """Send `<signal>[=<pid>]` as the official server does.

    Args:
        wanted: the pid is a number, the path of a pid file, or a prefix and `*`, which selects all processes
            of the program whose id has the prefix. Without a pid the program must have exactly one process.
        program: command name of the server: "nats-server" or "penstock serve".

    Raises:
        ConfigError: unknown signal, invalid pid, no process, or several without a pid.
        OSError: the signal cannot be sent.
    """
    name, *targets = wanted.split("=")
    number = BY_NAME.get(name)
    if number is None:
        raise ConfigError(f'unknown signal "{name}"; known are {", ".join(BY_NAME)}')
    if len(targets) > 1:
        raise ConfigError(f"invalid signal parameters: {targets[1:]}")
    for pid in _pids(targets[0] if targets else "", program):
        os.kill(pid, number)


def _pids(target: str, program: str) -> list[int]:
    if target and not target.endswith("*"):
        if not target.isdigit() and os.path.exists(target):
            with open(target, encoding="utf-8", errors="replace") as file:
                target = file.read().strip()
        if not target.isdigit():
            raise ConfigError(f"invalid pid: {target}")
        return [int(target)]
    beginning = target.removesuffix("*")
    if beginning and not beginning.isdigit():
        raise ConfigError(f"invalid pid: {beginning}")
    found = running(program)
    if not found:
        raise ConfigError(f"no {program} processes running")
    if len(found) > 1 and not target:
        raise ConfigError(f"multiple {program} processes running: {' '.join(map(str, found))}; name one")
    return [pid for pid in found if str(pid).startswith(beginning)]


def running(program: str, proc: str = "/proc") -> list[int]:
    """Ids of other processes with this command name ("nats-server", "penstock serve").

    Raises ConfigError without /proc.
    """
    try:
        entries = [entry for entry in os.listdir(proc) if entry.isdigit()]
    except OSError as error:
        raise ConfigError("unable to resolve pid, try providing one") from error
    found = []
    for entry in entries:
        try:
            with open(f"{proc}/{entry}/cmdline", "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
        except OSError:
            continue  # it has ended, or belongs to another user
        if int(entry) != os.getpid() and _is_called(words, program.split()):
            found.append(int(entry))
    return sorted(found)


def _is_called(words: list[str], name: list[str]) -> bool:
    """Whether the command line runs the program, directly or by an interpreter (`python [-m] ...`)."""
    begins = [0] if "python" not in os.path.basename(words[0]) else [2] if words[1:2] == ["-m"] else [1]
    return any([os.path.basename(words[at]), *words[at + 1 :]][: len(name)] == name
               for at in begins if at < len(words))  # fmt: skip


def install(
    server: Server, ended: asyncio.Event, served: ServedLog, notifier: ServiceNotifier | None = None
) -> None:
    """Install signal handlers in the running loop.

    Args:
        server: SIGUSR2 puts it into lame duck mode, SIGHUP reloads its configuration.
        ended: set by SIGINT, and by SIGTERM unless in lame duck mode.
        served: SIGUSR1 reopens its log file.
        notifier: gets reloads and lame duck mode; None without a service manager.
    """
    loop = asyncio.get_running_loop()
    log = served.log
    leaving: list[asyncio.Task[None]] = []
    reloads: set[asyncio.Task[None]] = set()

    def interrupt() -> None:
        log.info('Trapped "interrupt" signal')
        ended.set()

    def terminate() -> None:
        log.info('Trapped "terminated" signal')
        if not leaving:
            ended.set()

    def reopen() -> None:
        log.info('Trapped "user defined signal 1" signal')
        if not served.path:
            log.info("File log re-open ignored, not a file logger")
            return
        try:
            served.reopen()
        except OSError as error:
            log.error(f"can not open {served.path} again, still writing to the old file: {error.strerror}")
        else:
            log.info("File log re-opened")

    def lame_duck() -> None:
        log.info('Trapped "user defined signal 2" signal')
        if notifier is not None:
            notifier.leaving("lame duck mode: clients are closed one after the other")
        leaving.append(loop.create_task(server.lame_duck()))

    async def reload_and_notify() -> None:
        if notifier is not None:
            notifier.reloading()
        refused = await server.reload()
        if notifier is not None:
            notifier.ready(f"reload refused: {refused.splitlines()[0]}" if refused else "reloaded")

    def reload_options() -> None:
        log.info('Trapped "hangup" signal')
        reload = loop.create_task(reload_and_notify())
        reloads.add(reload)
        reload.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(signal.SIGUSR1, reopen)
    loop.add_signal_handler(signal.SIGUSR2, lame_duck)
    loop.add_signal_handler(signal.SIGHUP, reload_options)
