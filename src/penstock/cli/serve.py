"""`penstock serve`: run a server in the foreground until a signal ends it.

Test suites start hundreds of servers and wait 100 ms for the port, once. Therefore the port is bound as soon
as the address is known; from flags alone that takes a fifth of the start-up time. This module, `flags`,
`errors` and `net.sockets` must import neither msgspec nor asyncio, typing or logging
(docs/decisions/0019-start-up.md; tests/integration/server/test_start_up.py holds the list).
"""

from __future__ import annotations

import gc
import os
import sys

from penstock.cli import flags
from penstock.errors import ConfigError, PenstockError, ServerError
from penstock.net import sockets

TYPE_CHECKING = False  # importing typing takes longer than everything else before the port listens
if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable
    from typing import Any

    from penstock.cli.service_notifier import ServiceNotifier
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.logging import logs
    from penstock.server.server import Server

EXIT_OK = 0
EXIT_FAILED = 1


def serve(arguments: list[str], program: str = "penstock serve") -> int:
    """Run a server until SIGINT or SIGTERM; return the exit status."""
    gc.disable()  # until ready: collections during imports would take a tenth of the start-up time
    _end_on_interrupt()
    try:
        found = flags.parse(arguments)
        output = _informational_output(found, program)
        if output:
            sys.stdout.write(output)
            return EXIT_OK
        if "signal" in found:
            from penstock.cli import signals

            signals.send(found["signal"], program)
            return EXIT_OK
        if found.get("test") and not found.get("config"):
            raise ConfigError("must specify [-c, --config] option to check configuration file syntax")
    except flags.FlagError as error:
        sys.stdout.write(flags.usage(program))
        return _refuse(error)
    except (ConfigError, OSError) as error:
        return _refuse(error)
    return _serve(found)


def _serve(found: dict[str, Any]) -> int:
    listening = _listen_by_flags(found)

    from functools import partial

    from penstock.extras import need

    need("penstock serve", "server")
    from penstock.cli.flag_options import digest, options_of

    try:
        options = options_of(found)
        if found.get("test"):
            from penstock.server.config.directives import warnings

            for text in warnings(options.config_file):
                raise ConfigError(text)
            valid = f"configuration file {options.config_file} is valid ({digest(options)})"
            sys.stderr.write(f"nats-server: {valid}\n")
            return EXIT_OK
    except (ConfigError, OSError) as error:
        return _refuse(error)
    return _run(options, partial(options_of, found), listening)


def _listen_by_flags(found: dict[str, Any]) -> list[socket.socket] | ServerError | None:
    """Listen on the address in the flags; None if a configuration file may define another address.

    A bind error is returned, not raised, because errors in options or of the log file are reported first. The
    process exits after such an error, which closes the sockets.
    """
    if found.get("test") or (found.get("config") and not {"host", "port"} <= found.keys()):
        return None
    port = found.get("port", sockets.DEFAULT_PORT)
    if not sockets.ANY_PORT <= port <= sockets.PORT_MAX:
        return None  # validation of the options rejects it
    try:
        return sockets.listen_for_clients(found.get("host", sockets.DEFAULT_HOST), port)
    except ServerError as error:
        return error


def _refuse(error: Exception) -> int:
    sys.stderr.write(f"nats-server: {_error_text(error)}\n")
    return EXIT_FAILED


def _end_on_interrupt() -> None:
    """Let SIGINT end the process at once while no server handles signals.

    Python's handler would raise KeyboardInterrupt and print a traceback.
    """
    import contextlib
    import signal

    with contextlib.suppress(ValueError):  # in a thread, which gets no signals
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _informational_output(found: dict[str, Any], program: str) -> str:
    """Output of --version, --help and --help_tls, which start no server; "" without such a flag."""
    if found.get("version"):
        from penstock.server.server_identity import VERSION

        return f"nats-server: v{VERSION}\n"
    if found.get("help"):
        return flags.usage(program, flags.coloured) if sys.stdout.isatty() else flags.usage(program)
    return flags.tls_help() if found.get("help_tls") else ""


def _run(
    options: ServerOptions,
    load: Callable[[], ServerOptions],
    listening: list[socket.socket] | ServerError | None,
) -> int:
    from penstock.server.logging import logs

    try:
        served = logs.ServedLog(options)
    except (ConfigError, OSError) as error:
        return _refuse(error)
    logs.take_over_logging(served)
    try:
        if isinstance(listening, ServerError):
            raise listening
        # Listen before the slow imports; clients wait in the socket's accept queue.
        listening = listening or sockets.listen_for_clients(options.host, options.port)
        return _run_loop(options, listening, served, load)
    except ServerError as error:
        served.log.fatal(str(error))
        return EXIT_FAILED
    finally:
        _end_on_interrupt()
        served.close()


def _run_loop(
    options: ServerOptions,
    listening: list[socket.socket],
    served: logs.ServedLog,
    load: Callable[[], ServerOptions],
) -> int:
    import asyncio
    from functools import partial

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(partial(_on_loop_error, served.log))
        return runner.run(_serve_until_signal(options, listening, served, load))


def _loop_factory() -> Any:
    """uvloop's loop factory, or None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return None
    return uvloop.new_event_loop


async def _serve_until_signal(
    options: ServerOptions,
    listening: list[socket.socket],
    served: logs.ServedLog,
    load: Callable[[], ServerOptions],
) -> int:
    import asyncio
    import contextlib
    from functools import partial

    from penstock.cli import signals
    from penstock.server.server import Server

    log = served.log
    server = Server(options=options, log=log, listening=listening)
    server.reload_from = partial(_reload, server, load, served)
    ended = asyncio.Event()
    notifier = _notifier()
    signals.install(server, ended, served, notifier)
    _greet(server, options, log)
    try:
        await server.start()
    except PenstockError as error:
        log.fatal(str(error))
        return EXIT_FAILED
    # Objects made during start-up are permanent, so exclude them from collection. No collection before:
    # 450 of 36,000 objects are garbage, and finding them takes 7 ms.
    gc.freeze()
    # A connection is about a hundred objects that stay. With the interpreter's 700, collections took a tenth
    # of the time to accept connections. With 3,000, one that frees 176 closed connections takes 1.5 ms, and
    # the p99 of others rose by a fifth while clients came and went.
    gc.set_threshold(1_500, 10, 10)
    gc.enable()
    if notifier is None:
        return await _wait(server, ended, log)
    with contextlib.closing(notifier):
        notifier.ready(f"listening on {server.url}")
        notifier.watch(asyncio.get_running_loop())
        return await _wait(server, ended, log, notifier)


def _notifier() -> ServiceNotifier | None:
    """The connection to systemd, if it started the server and wants notifications."""
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from penstock.cli.service_notifier import ServiceNotifier

    return ServiceNotifier.from_environment(os.environ, os.getpid())


async def _reload(server: Server, load: Callable[[], ServerOptions], served: logs.ServedLog) -> None:
    from penstock.server import reload

    await reload.apply_reload(server, load, served)


async def _wait(
    server: Server, ended: asyncio.Event, log: logs.Log, notifier: ServiceNotifier | None = None
) -> int:
    """Wait for a signal, or until the server stops after a failure; return the exit status."""
    import asyncio

    waits = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(server.wait_stopped())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if notifier is not None:
        notifier.leaving("stopping")
    await server.stop()
    log.info("Server Exiting..")
    return EXIT_FAILED if server.failed else EXIT_OK


def _on_loop_error(log: logs.Log, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled error in a callback: a bug or a disk failure."""
    log.failure(context.get("message", "unhandled error"), context.get("exception"))


def _greet(server: Server, options: ServerOptions, log: logs.Log) -> None:
    from penstock import __version__
    from penstock.cli.flag_options import digest
    from penstock.server.server_identity import VERSION

    log.info(f"Starting penstock {__version__}, which speaks NATS {VERSION}")
    log.info(f"  Version:  {VERSION}")
    log.info(f"  Name:     {server.server_name}")
    log.info(f"  ID:       {server.server_id}")
    if options.password or options.users:
        log.warning("Plaintext passwords detected")
    if options.config_file:
        log.info(f"Using configuration file: {options.config_file} ({digest(options)})")


def _error_text(error: Exception) -> str:
    """Text of an error; for an OSError with a file name, in the official server's form."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"open {error.filename}: {str(error.strerror).lower()}"
    return str(error)
