"""`penstock serve`: a server in the foreground, from flags and a configuration file, until a signal ends it.

Ready within 300 ms of exec: nothing is imported here before the listener is up but what the listener
needs. Test suites start servers by the hundred.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli import flags
from penstock.errors import ConfigError, PenstockError, ServerError
from penstock.net import sockets
from penstock.server import logs
from penstock.server.identity import VERSION
from penstock.server.options import JetStreamOptions, Options, TlsOptions

if TYPE_CHECKING:
    import asyncio
    import socket

    from penstock.server.server import Server

EXIT_OK = 0
EXIT_FAILED = 1


def serve(arguments: list[str], program: str = "penstock serve") -> int:
    """Runs a server until SIGINT or SIGTERM; returns the exit status."""
    gc.disable()  # until it is ready: a tenth of the start-up time would go into looking at fresh imports
    _end_on_interrupt()
    try:
        found = flags.parse(arguments)
        told = _told_only(found, program)
        if told:
            sys.stdout.write(told)
            return EXIT_OK
        if "signal" in found:
            from penstock.cli import signals

            signals.send(found["signal"], program)
            return EXIT_OK
        if found.get("test") and not found.get("config"):
            raise ConfigError("must specify [-c, --config] option to check configuration file syntax")
        options = options_of(found)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"nats-server: {_told(error)}\n")
        return EXIT_FAILED
    if found.get("test"):
        sys.stderr.write(
            f"nats-server: configuration file {options.config_file} is valid ({digest(options)})\n"
        )
        return EXIT_OK
    return _run(options, partial(options_of, found))


def _end_on_interrupt() -> None:
    """Lets SIGINT end the process at once, as long as no server answers signals.

    Python's own handler would raise KeyboardInterrupt wherever the process happens to be, and print where.
    """
    import signal
    import threading

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _told_only(found: dict[str, Any], program: str) -> str:
    """What a flag asks to be told instead of a server being started; "" when none does."""
    if found.get("version"):
        return f"nats-server: v{VERSION}\n"
    if found.get("help"):
        return flags.usage(program, flags.coloured) if sys.stdout.isatty() else flags.usage(program)
    return flags.tls_help() if found.get("help_tls") else ""


def options_of(found: dict[str, Any]) -> Options:
    """Options from flags, over those of the configuration file they name. Raises ConfigError, OSError."""
    from msgspec import structs

    options = Options()
    path = found.get("config", "")
    if path:
        from penstock.server.directives import load

        options = load(path)
    changes = {key: value for key, value in found.items() if key in Options.__struct_fields__}
    changes.pop("jetstream", None)
    for name, options_set in _SEVERAL.items():
        if name in found:
            changes |= dict.fromkeys(options_set, found[name])
    _refuse_what_needs_others(found)
    jetstream = options.jetstream
    if "jetstream" in found:
        jetstream = (jetstream or JetStreamOptions()) if found["jetstream"] else None
    if jetstream is not None:
        # Served, streams outlive the process; only an embedded server keeps them for its own life.
        store_dir = found.get("store_dir") or jetstream.store_dir or _default_store_dir()
        jetstream = structs.replace(jetstream, store_dir=store_dir)
    if "tls_on" in found or "tls_verify" in found:
        changes["tls"] = _tls_options(options.tls, found)
    return structs.replace(options, jetstream=jetstream, **changes)


_SEVERAL = {
    "debug_and_trace": ("debug", "trace"),
    "verbose_trace": ("trace", "trace_verbose"),
    "debug_and_verbose_trace": ("debug", "trace", "trace_verbose"),
}


def _refuse_what_needs_others(found: dict[str, Any]) -> None:
    """Raises ConfigError for flags that would connect the server to others, or open a profiling port."""
    for flag in ("cluster_listen", "routes"):
        if found.get(flag):
            raise ConfigError(f"--{flag} needs clusters, and this server stands alone; start it without")
    if found.get("profile"):
        from penstock.server.directives import NO_PROFILE

        raise ConfigError(f"--profile: {NO_PROFILE}")
    if found.get("remote_syslog"):
        from penstock.server.syslog import address_of

        address_of(found["remote_syslog"])


def _tls_options(given: TlsOptions | None, found: dict[str, Any]) -> TlsOptions | None:
    """TLS as the flags want it: without `--tls` or `--tlsverify` the files they name mean nothing."""
    from msgspec import structs

    if not found.get("tls_on", True) and not found.get("tls_verify"):
        return None
    changes: dict[str, Any] = {
        key: found[key] for key in ("cert_file", "key_file", "ca_file") if key in found
    }
    if found.get("tls_verify"):
        changes["verify"] = True
    if given is not None:
        return structs.replace(given, **changes)
    return TlsOptions(**changes)


def digest(options: Options) -> str:
    """What identifies a configuration file's content."""
    import hashlib

    if not options.config_file:
        return "no file"
    with open(options.config_file, "rb") as file:
        return f"sha256:{hashlib.sha256(file.read()).hexdigest()}"


def _default_store_dir() -> str:
    """Not `nats`, where the official server keeps its streams in a format of its own."""
    return os.path.join(os.environ.get("TMPDIR", "/tmp"), "penstock")


def _run(options: Options, load: Callable[[], Options]) -> int:
    try:
        served = logs.ServedLog(options)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"nats-server: {_told(error)}\n")
        return EXIT_FAILED
    logs.take_over_logging(served)
    try:
        # Before the imports that take most of the start: clients wait in the sockets' queues.
        listening = sockets.listen_for_clients(options.host, options.port)
        return _run_loop(options, listening, served, load)
    except ServerError as error:
        served.log.fatal(str(error))
        return EXIT_FAILED
    finally:
        _end_on_interrupt()
        served.close()


def _run_loop(
    options: Options, listening: list[socket.socket], served: logs.ServedLog, load: Callable[[], Options]
) -> int:
    import asyncio

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(partial(_on_loop_error, served.log))
        return runner.run(_serve_until_signal(options, listening, served, load))


def _loop_factory() -> Any:
    """uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:  # there is none for this platform
        return None
    return uvloop.new_event_loop


async def _serve_until_signal(
    options: Options, listening: list[socket.socket], served: logs.ServedLog, load: Callable[[], Options]
) -> int:
    import asyncio

    from penstock.cli import signals
    from penstock.server.server import Server

    log = served.log
    server = Server(options=options, log=log, listening=listening)
    server.reload_from = partial(_reload, server, load, served)
    ended = asyncio.Event()
    signals.install(server, ended, served)
    _greet(server, options, log)
    try:
        await server.start()
    except PenstockError as error:
        log.fatal(str(error))
        return EXIT_FAILED
    # What start-up made stays for good: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.enable()
    return await _wait(server, ended, log)


async def _reload(server: Server, load: Callable[[], Options], served: logs.ServedLog) -> None:
    from penstock.server import reload

    await reload.take_over(server, load, served)


async def _wait(server: Server, ended: asyncio.Event, log: logs.Log) -> int:
    """Until a signal, or until the server stops by itself because something failed."""
    import asyncio

    waits = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(server.wait_stopped())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await server.stop()
    log.info("Server Exiting..")
    return EXIT_FAILED if server.failed else EXIT_OK


def _on_loop_error(log: logs.Log, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What escaped a callback: a bug, or a disk that failed. The connection or server concerned is closed."""
    log.failure(context.get("message", "unhandled error"), context.get("exception"))


def _greet(server: Server, options: Options, log: logs.Log) -> None:
    log.info("Starting penstock")
    log.info(f"  Version:  {VERSION}")
    log.info(f"  Name:     {server.server_name}")
    log.info(f"  ID:       {server.server_id}")
    if options.password or options.users:
        log.warning("Plaintext passwords detected")
    if options.config_file:
        log.info(f"Using configuration file: {options.config_file} ({digest(options)})")


def _told(error: Exception) -> str:
    """An error's text; of an OSError, what was opened and why that failed."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"open {error.filename}: {str(error.strerror).lower()}"
    return str(error)
