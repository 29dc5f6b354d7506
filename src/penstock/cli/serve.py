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
from penstock.errors import ConfigError, PenstockError
from penstock.server import logs
from penstock.server.identity import VERSION
from penstock.server.options import JetStreamOptions, Options, TlsOptions

if TYPE_CHECKING:
    import asyncio

    from penstock.server.server import Server

EXIT_OK = 0
EXIT_FAILED = 1


def serve(arguments: list[str], program: str = "penstock serve") -> int:
    """Runs a server until SIGINT or SIGTERM; returns the exit status."""
    gc.disable()  # until it is ready: a tenth of the start-up time would go into looking at fresh imports
    try:
        found = flags.parse(arguments)
        if found.get("help"):
            sys.stdout.write(flags.usage(program))
            return EXIT_OK
        if found.get("version"):
            sys.stdout.write(f"nats-server: v{VERSION}\n")
            return EXIT_OK
        options = options_of(found)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"nats-server: {_told(error)}\n")
        return EXIT_FAILED
    if "signal" in found:
        return _send_signal(found["signal"])
    if found.get("test"):
        sys.stderr.write(
            f"nats-server: configuration file {options.config_file} is valid ({digest(options)})\n"
        )
        return EXIT_OK
    return _run(options, partial(options_of, found))


def options_of(found: dict[str, Any]) -> Options:
    """Options from flags, over those of the configuration file they name. Raises ConfigError, OSError."""
    from dataclasses import replace

    options = Options()
    path = found.get("config", "")
    if path:
        from penstock.server.directives import load

        options = load(path)
    changes = {key: value for key, value in found.items() if key in Options.__dataclass_fields__}
    changes.pop("jetstream", None)
    if found.get("debug_and_trace"):
        changes |= {"debug": True, "trace": True}
    jetstream = options.jetstream
    if "jetstream" in found:
        jetstream = (jetstream or JetStreamOptions()) if found["jetstream"] else None
    if jetstream is not None:
        # Served, streams outlive the process; only an embedded server keeps them for its own life.
        store_dir = found.get("store_dir") or jetstream.store_dir or _default_store_dir()
        jetstream = replace(jetstream, store_dir=store_dir)
    if "tls_on" in found or "tls_verify" in found:
        changes["tls"] = _tls_options(options.tls, found)
    return replace(options, jetstream=jetstream, **changes)


def _tls_options(given: TlsOptions | None, found: dict[str, Any]) -> TlsOptions | None:
    """TLS as the flags want it: without `--tls` or `--tlsverify` the files they name mean nothing."""
    from dataclasses import replace

    if not found.get("tls_on", True) and not found.get("tls_verify"):
        return None
    changes: dict[str, Any] = {
        key: found[key] for key in ("cert_file", "key_file", "ca_file") if key in found
    }
    if found.get("tls_verify"):
        changes["verify"] = True
    if given is not None:
        return replace(given, **changes)
    return TlsOptions(**changes)


def _send_signal(wanted: str) -> int:
    from penstock.cli import signals

    try:
        signals.send(wanted)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"nats-server: {_told(error)}\n")
        return EXIT_FAILED
    return EXIT_OK


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
        log, writer = logs.log_lines(
            options.log_file,
            logtime=options.logtime,
            utc=options.logtime_utc,
            debug=options.debug,
            trace=options.trace,
        )
    except OSError as error:
        sys.stderr.write(f"nats-server: {_told(error)}\n")
        return EXIT_FAILED
    logs.take_over_logging(log)
    try:
        return _run_loop(options, log, writer, load)
    finally:
        writer.close()


def _run_loop(options: Options, log: logs.Log, writer: logs.LineWriter, load: Callable[[], Options]) -> int:
    import asyncio

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_exception_handler(partial(_on_loop_error, log))
        return runner.run(_serve_until_signal(options, log, writer, load))


def _loop_factory() -> Any:
    """uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:  # there is none for this platform
        return None
    return uvloop.new_event_loop


async def _serve_until_signal(
    options: Options, log: logs.Log, writer: logs.LineWriter, load: Callable[[], Options]
) -> int:
    import asyncio

    from penstock.cli import signals
    from penstock.server.server import Server

    server = Server(options=options, log=log)
    ended = asyncio.Event()
    signals.install(server, ended, log, writer, load)
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
    import traceback

    error = context.get("exception")
    told = "".join(traceback.format_exception(error)) if error is not None else ""
    log.error(f"{context.get('message', 'unhandled error')}\n{told}".rstrip())


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
