"""JetStream in a server: its store, which accounts have it, and an engine for each that uses it.

An account with nothing stored sleeps: it has no engine before its first request, or before somebody asks for
the engines. The modules of an engine take as long to import as the rest of a server, and most servers that
suites start, and most accounts of a server, use no JetStream at once (docs/decisions/0019-start-up.md).

Invariant: an engine is closed before the store it writes to.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock import faults
from penstock.errors import ServerError, StoreError
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.subjects import matches
from penstock.server.accounts.reservations import excess, growth
from penstock.server.config.server_options import AccountJetStream, JetStreamOptions
from penstock.server.disk_executor import LoopExecutor
from penstock.server.server_identity import API_LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.jetstream.engine import JetStreamEngine
    from penstock.routing.account import Account
    from penstock.server.engines import Engines
    from penstock.server.server import Server
    from penstock.server.tick import Tick
    from penstock.store.interface import Store

API_PREFIX = "$JS.API."
LOAD_AFTER_S = 1.0  # from the start, for accounts that sleep


class JetStreamService:
    """Starts with everything that is stored, and answers requests from then on.

    Args:
        server: whose JetStream this is.
        options: the `jetstream` block.
        tick: drives the engines.

    Raises:
        ServerError: the store directory can't be used, or accounts reserve more than there is.
    """

    def __init__(self, server: Server, options: JetStreamOptions, tick: Tick) -> None:
        self._server = server
        self._options = options
        self._tick = tick
        self.running: dict[str, JetStreamEngine] = {}  # the engines of the accounts that do not sleep
        self.failed: dict[str, str] = {}  # accounts whose JetStream could not be started, and why
        self._limits: dict[str, AccountJetStream] = {}  # of the accounts that have JetStream
        self._asleep: dict[str, list[SinkSubscription]] = {}  # what wakes them
        self._maker: Engines | None = None
        self.max_memory_bytes = _limit(options.max_memory_bytes, _memory_bytes())
        self.max_file_bytes = _limit(options.max_file_bytes, _disk_bytes(options.store_dir))
        self._background: LoopExecutor | None = None
        self._tell()
        problem = excess(server.jetstream_accounts().values(), self.max_memory_bytes, self.max_file_bytes)
        if problem:
            raise ServerError(
                f"can not start JetStream: Error enabling jetstream on configured accounts: {problem}; lower"
                " limits of accounts, or raise max_memory_store or max_file_store of the server"
            )
        try:
            self._store = self._open_store()
            started_ns = server.clock()
            for name, limits in server.jetstream_accounts().items():
                faults.contain(self._begin, self._opening_failed, name, limits)
        except StoreError as error:
            raise ServerError(f"can not start JetStream: {error}") from error
        self._refusals: dict[str, SinkSubscription] = {}
        self._refuse_others()
        self._loading = asyncio.get_running_loop().call_later(LOAD_AFTER_S, self._load)
        took_ms = (server.clock() - started_ns) / 1e6
        server.log.info(f"Took {took_ms:.1f}ms to start JetStream")

    @property
    def store_dir(self) -> str:
        """The directory of everything stored; "" when all is in memory."""
        return "" if self._options.store_dir is None else os.path.join(self._options.store_dir, "jetstream")

    @property
    def options(self) -> JetStreamOptions:
        return self._options

    def end_pulls(self) -> None:
        """Tells those whose pull requests wait that the server stops."""
        for engine in self.running.values():
            engine.end_pulls()

    @property
    def engines(self) -> Mapping[str, JetStreamEngine]:
        """The engine of every account that has JetStream; those that sleep are woken."""
        for name in tuple(self._asleep):
            self._wake(name)
        return self.running

    def is_enabled(self, account: str) -> bool:
        """Has the account JetStream?"""
        return account in self._limits

    def _open_store(self) -> Store:
        options = self._options
        if options.store_dir is None:
            from penstock.store.memory import MemoryStore

            return MemoryStore()
        from penstock.store.file import FileStore
        from penstock.store.keys import StoreKey

        key = StoreKey(options.cipher, options.key, options.prev_key)
        self._background = LoopExecutor(asyncio.get_running_loop())
        return FileStore(options.store_dir, key=key, background=self._background)

    def close(self) -> None:
        """Writes what is left and closes the store. A disk that fails here is told; all else still closes."""
        self._loading.cancel()
        for close in (*(engine.close for engine in self.running.values()), self._store.close):
            faults.contain(close, self._closing_failed)
        if self._background is not None:
            self._background.close()

    def _closing_failed(self, error: Exception) -> None:
        if not isinstance(error, (StoreError, OSError)):
            faults.note("closing the store", error)
        self._server.log.error(f"not everything could be written while stopping: {error}")

    def stored_accounts(self) -> list[str]:
        """Names of the accounts that have something stored."""
        return [name for name in self._store.account_names() if self._store.account(name).stream_names()]

    def renew(self) -> None:
        """Limits, and which accounts have JetStream, as the server says now.

        An account that has it no more keeps what it has stored. What can't be opened is told, and that
        account has none.
        """
        options = self._server.options
        if options.jetstream is not None:
            self._options = options.jetstream
            self.max_memory_bytes = _limit(self._options.max_memory_bytes, _memory_bytes())
            self.max_file_bytes = _limit(self._options.max_file_bytes, _disk_bytes(self._options.store_dir))
        wanted = self._server.jetstream_accounts()
        names = self._limits.keys() | wanted.keys()
        # Those that give something back come first.
        for name in sorted(names, key=lambda name: (growth(self._limits.get(name), wanted.get(name)), name)):
            self.configure(name, wanted.get(name))
        self._refuse_others()

    def configure(self, name: str, limits: AccountJetStream | None) -> None:
        """JetStream of one account from now on; None = it has none. See `renew`.

        Limits that would reserve more than there is are told, and change nothing.
        """
        present = self._limits.get(name)
        if limits is not None and growth(present, limits) > 0:
            problem = excess(
                (self._limits | {name: limits}).values(), self.max_memory_bytes, self.max_file_bytes
            )
            if problem:
                self._server.log.error(f'Error enabling jetstream on account "{name}": {problem}')
                self._refuse_others()
                return
        if limits is None:
            self._end(name)
        elif present is None:
            refusal = self._refusals.pop(name, None)
            if refusal is not None:
                self._server.account(name).unsubscribe(refusal)
            faults.contain(self._begin, self._opening_failed, name, limits)
        else:
            self._limits[name] = limits
            if name in self.running:
                self.running[name].config = self._engines_maker().config(name, limits)
        self._refuse_others()

    def _end(self, name: str) -> None:
        self._limits.pop(name, None)
        self._rouse(name)
        engine = self.running.pop(name, None)
        if engine is not None:
            engine.end_pulls()
            faults.contain(engine.close, self._closing_failed)
            self._tick.remove(engine.tick)

    def _refuse_others(self) -> None:
        for account in self._server.accounts.values():
            name = account.name
            if name in self._refusals and self._imports_api(name):
                account.unsubscribe(self._refusals.pop(name))
            elif name not in self._limits and name not in self._refusals and not self._imports_api(name):
                self._refusals[name] = refuse_requests(account)
        for name in self._refusals.keys() - self._server.accounts.keys():
            del self._refusals[name]

    def _imports_api(self, name: str) -> bool:
        """Does another account answer the API in this one?"""
        own = self._server.account_options(name)
        if own is None or not own.imports:
            return False
        from penstock.routing.imports_exports import ServiceImport, plan

        services = [entry for entry in own.imports if isinstance(entry, ServiceImport)]
        return any(matches(plan(entry).local, "$JS.API.INFO") for entry in services)

    def _begin(self, account: str, limits: AccountJetStream) -> None:
        """Starts the engine of an account with what is stored for it; without anything stored, the account
        sleeps. Raises StoreError, OSError."""
        if self._store.account(account).stream_names():
            self._open(account, limits)
        else:
            self._asleep[account] = [
                self._server.account(account).subscribe_service(
                    f"{prefix}>".encode(), partial(self._first_request, account)
                )
                for prefix in self._prefixes()
            ]
        self._limits[account] = limits
        self.failed.pop(account, None)

    def _prefixes(self) -> list[str]:
        domain = self._options.domain
        return [API_PREFIX, *([f"$JS.{domain}.API."] if domain else ())]

    def _open(self, account: str, limits: AccountJetStream) -> None:
        engine = self._engines_maker().open(account, limits, self._store.account(account))
        self.running[account] = engine
        self._tick.add(engine.tick)

    def _engines_maker(self) -> Engines:
        if self._maker is None:
            from penstock.server.engines import Engines

            self._maker = Engines(self._server, self, self._tick.schedule)
        return self._maker

    def _load(self) -> None:
        """Imports what engines need while no client waits for it, so that a later first request does not."""
        if self._asleep:
            self._engines_maker()

    def _first_request(
        self, account: str, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._wake(account)
        if account in self.running:
            self.running[account].serve(subject, reply, header, payload, origin)
        else:
            _refuse(self._server.account(account), subject, reply)

    def _wake(self, account: str) -> None:
        """Starts the engine of an account that sleeps."""
        self._rouse(account)
        limits = self._limits[account]
        faults.contain(self._open, self._opening_failed, account, limits)
        if account not in self.running:
            del self._limits[account]
            self._refuse_others()

    def _rouse(self, account: str) -> None:
        """The account does not listen for its first request any more."""
        for subscription in self._asleep.pop(account, ()):
            self._server.account(account).unsubscribe(subscription)

    def _opening_failed(self, error: Exception, account: str, limits: AccountJetStream) -> None:
        """One account's store can't be read at all: that account has no JetStream, the others do."""
        why = str(error)
        if not isinstance(error, (StoreError, OSError)):
            why = faults.describe(faults.note(f"JetStream of account {account}", error))
        self._server.log.error(f'JetStream of account "{account}" can not be started: {why}')
        self.failed[account] = why

    def _tell(self) -> None:
        log = self._server.log
        log.info("Starting JetStream")
        log.info("---------------- JETSTREAM ----------------")
        log.info(f"  Max Memory:      {_shown(self.max_memory_bytes)}")
        log.info(f"  Max Storage:     {_shown(self.max_file_bytes)}")
        where = f'"{self.store_dir}"' if self.store_dir else "none, everything is in memory"
        log.info(f"  Store Directory: {where}")
        if self._options.key and self.store_dir:
            name = {"aes": "AES-GCM", "chacha": "ChaCha20-Poly1305"}[self._options.cipher]
            log.info(f"  Encryption:      {name}")
        if self._options.domain:
            log.info(f"  Domain:          {self._options.domain}")
        log.info(f"  API Level:       {API_LEVEL}")
        log.info("-------------------------------------------")


def refuse_requests(account: Account) -> SinkSubscription:
    """Tells an account without JetStream, on a server that has it, that it is not enabled."""

    def refuse(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        _refuse(account, subject, reply)

    return account.subscribe_service(f"{API_PREFIX}>".encode(), refuse)


def _refuse(account: Account, subject: bytes, reply: bytes) -> None:
    """Answers one request. Those that are answered by messages find no responders."""
    if not reply:
        return
    from penstock.jetstream.api.service import TABLE
    from penstock.protocol.api.base import TYPE_PREFIX
    from penstock.protocol.error_codes import NOT_ENABLED_FOR_ACCOUNT
    from penstock.protocol.status import no_responders_block

    text = subject.decode("utf-8", "surrogateescape")
    found = TABLE.find(text.removeprefix(API_PREFIX).split("."))
    if found is None:
        return  # silence, as for unknown subjects of an account with JetStream
    endpoint = found[0]
    if not endpoint.json_errors:
        account.publish(reply, b"", header=no_responders_block(text))
        return
    refused = {"type": TYPE_PREFIX + endpoint.response, "error": NOT_ENABLED_FOR_ACCOUNT}
    account.publish(reply, msgspec.json.encode(refused))


def _limit(option: int, available: int) -> int:
    return option if option >= 0 else available // 4 * 3


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _disk_bytes(directory: str | None) -> int:
    """Bytes free where the directory is, or will be made. Without one, file streams live in memory."""
    if directory is None:
        return _memory_bytes()
    path = os.path.abspath(directory)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def _shown(size: int) -> str:
    """Bytes for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TB"
