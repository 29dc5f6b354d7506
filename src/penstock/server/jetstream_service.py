"""JetStream of a server: the store, the accounts that have JetStream, and their engines.

An account without stored data is dormant: its engine opens with the first request, or when all engines are
requested. Importing an engine's modules takes as long as the rest of the server's start, and most test
servers, and most accounts, do not use JetStream at once (docs/decisions/0019-start-up.md).

Invariant: engines are closed before their store.
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
from penstock.server.accounts.reservations import excess, growth
from penstock.server.config.server_options import AccountJetStream, JetStreamOptions
from penstock.server.disk_executor import LoopExecutor
from penstock.server.server_identity import API_LEVEL
from penstock.store.measured_disk import MeasuredDisk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.jetstream.engine import JetStreamEngine
    from penstock.routing.account import Account
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.engines import EngineFactory
    from penstock.server.replicated.cluster_jetstream import ClusterJetStream
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick
    from penstock.store.interface import Store

API_PREFIX = "$JS.API."
LOAD_AFTER_S = 1.0  # after the start, for dormant accounts


class JetStreamService:
    """Opens all stored accounts, then answers requests.

    Args:
        context: options, clock and log of the server.
        accounts: the accounts, with their limits.
        options: the `jetstream` block.
        tick: runs the engines.
        cluster: replicated streams; None on a server without a cluster.

    Raises:
        ServerError: the store directory is unusable, or accounts reserve more than the server has.
    """

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        options: JetStreamOptions,
        tick: Tick,
        cluster: ClusterJetStream | None = None,
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._options = options
        self._tick = tick
        self.cluster = cluster
        self.running: dict[str, JetStreamEngine] = {}  # engines of the accounts that are not dormant
        self.disk = MeasuredDisk()
        self.failed: dict[str, str] = {}  # account -> error of a failed start
        self._limits: dict[str, AccountJetStream] = {}  # of all accounts with JetStream
        self._dormant: dict[str, list[SinkSubscription]] = {}  # subscriptions that open a dormant engine
        self._factory: EngineFactory | None = None
        self.max_memory_bytes = _limit(options.max_memory_bytes, _memory_bytes())
        self.max_file_bytes = _limit(options.max_file_bytes, _disk_bytes(options.store_dir))
        self._background: LoopExecutor | None = None
        self._log_start()
        problem = excess(accounts.jetstream_limits().values(), self.max_memory_bytes, self.max_file_bytes)
        if problem:
            raise ServerError(
                f"can not start JetStream: Error enabling jetstream on configured accounts: {problem}; lower"
                " limits of accounts, or raise max_memory_store or max_file_store of the server"
            )
        try:
            self._store = self._open_store()
            started_ns = context.clock()
            for name, limits in accounts.jetstream_limits().items():
                faults.contain(self._begin, self._opening_failed, name, limits)
        except StoreError as error:
            raise ServerError(f"can not start JetStream: {error}") from error
        self._refusals: dict[str, SinkSubscription] = {}
        self._refuse_others()
        self._loading = asyncio.get_running_loop().call_later(LOAD_AFTER_S, self._load)
        accounts.when_limits_change(self.configure)
        took_ms = (context.clock() - started_ns) / 1e6
        context.log.info(f"Took {took_ms:.1f}ms to start JetStream")

    @property
    def store_dir(self) -> str:
        """The store's directory; "" when everything is in memory."""
        return "" if self._options.store_dir is None else os.path.join(self._options.store_dir, "jetstream")

    @property
    def store(self) -> Store:
        """The store of all accounts."""
        return self._store

    @property
    def options(self) -> JetStreamOptions:
        return self._options

    def end_pulls(self) -> None:
        """Ends all waiting pull requests with a shutdown status."""
        for engine in self.running.values():
            engine.end_pulls()

    @property
    def engines(self) -> Mapping[str, JetStreamEngine]:
        """The engine of every account with JetStream. Opens dormant ones."""
        for name in tuple(self._dormant):
            self._open_dormant(name)
        return self.running

    def engine(self, account: str) -> JetStreamEngine | None:
        """The engine of an account, which opens when it is dormant; None for one without JetStream."""
        if account in self._dormant:
            self._open_dormant(account)
        return self.running.get(account)

    def is_enabled(self, account: str) -> bool:
        """Whether the account has JetStream."""
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
        return FileStore(options.store_dir, key=key, executor=self._background, disk=self.disk)

    def close(self) -> None:
        """Writes pending data and closes the store. Logs a disk error, and still closes everything else."""
        self._loading.cancel()
        for close in (*(engine.close for engine in self.running.values()), self._store.close):
            faults.contain(close, self._closing_failed)
        if self._background is not None:
            self._background.close()

    def _closing_failed(self, error: Exception) -> None:
        if not isinstance(error, (StoreError, OSError)):
            faults.note("closing the store", error)
        self._context.log.error(f"not everything could be written while stopping: {error}")

    def stored_accounts(self) -> list[str]:
        """Names of the accounts with stored data."""
        return [name for name in self._store.account_names() if self._store.account(name).stream_names()]

    def renew(self) -> None:
        """Applies the current limits and set of accounts.

        An account that loses JetStream keeps its stored data. If an account cannot be opened, it has no
        JetStream, and the error is logged.
        """
        options = self._context.options
        if options.jetstream is not None:
            self._options = options.jetstream
            self.max_memory_bytes = _limit(self._options.max_memory_bytes, _memory_bytes())
            self.max_file_bytes = _limit(self._options.max_file_bytes, _disk_bytes(self._options.store_dir))
        wanted = self._accounts.jetstream_limits()
        names = self._limits.keys() | wanted.keys()
        # Accounts that release reservations come first.
        for name in sorted(names, key=lambda name: (growth(self._limits.get(name), wanted.get(name)), name)):
            self.configure(name, wanted.get(name))
        self._refuse_others()

    def configure(self, name: str, limits: AccountJetStream | None) -> None:
        """Sets the JetStream limits of one account; None = no JetStream. See `renew`.

        Logs limits that would reserve more than available, and keeps the previous ones.
        """
        present = self._limits.get(name)
        if limits is not None and growth(present, limits) > 0:
            problem = excess(
                (self._limits | {name: limits}).values(), self.max_memory_bytes, self.max_file_bytes
            )
            if problem:
                self._context.log.error(f'Error enabling jetstream on account "{name}": {problem}')
                self._refuse_others()
                return
        if limits is None:
            self._end(name)
        elif present is None:
            refusal = self._refusals.pop(name, None)
            if refusal is not None:
                self._accounts.open(name).unsubscribe(refusal)
            faults.contain(self._begin, self._opening_failed, name, limits)
        else:
            self._limits[name] = limits
            if name in self.running:
                self.running[name].configure(self._engine_factory().config(name, limits))
        self._refuse_others()

    def resume_sourcing(self, account: str) -> None:
        """Another server that may have origins of this account's mirrors and sources is connected."""
        if account in self.running:
            self.running[account].sourcing.try_again()

    def _end(self, name: str) -> None:
        self._limits.pop(name, None)
        self._remove_triggers(name)
        engine = self.running.pop(name, None)
        if self.cluster is not None:
            self.cluster.end_account(name)
        if engine is not None:
            engine.end_pulls()
            faults.contain(engine.close, self._closing_failed)
            self._tick.remove(engine.tick)

    def _refuse_others(self) -> None:
        for account in self._accounts.values():
            name = account.name
            if name in self._refusals and self._imports_api(name):
                account.unsubscribe(self._refusals.pop(name))
            elif name not in self._limits and name not in self._refusals and not self._imports_api(name):
                self._refusals[name] = refuse_requests(account)
        for name in self._refusals.keys() - self._accounts.keys():
            del self._refusals[name]

    def _imports_api(self, name: str) -> bool:
        own = self._accounts.options_of(name)
        if own is None or not own.imports:
            return False
        from penstock.server.accounts.jetstream_subjects import imports_api

        return imports_api(own)

    def _begin(self, account: str, limits: AccountJetStream) -> None:
        """Opens the engine of an account with stored data; an account without is dormant. Raises StoreError,
        OSError."""
        if self._store.account(account).stream_names():
            self._open(account, limits)
        else:
            self._dormant[account] = [
                self._accounts.open(account).subscribe_service(
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
        engine = self._engine_factory().open(account, limits, self._store.account(account))
        self.running[account] = engine
        self._tick.add(engine.tick)

    def _engine_factory(self) -> EngineFactory:
        if self._factory is None:
            from penstock.server.engines import EngineFactory

            self._factory = EngineFactory(self._context, self._accounts, self, self._tick.schedule)
        return self._factory

    def _load(self) -> None:
        """Imports the engines' modules ahead of time, so that the first request need not wait for it."""
        if self._dormant:
            self._engine_factory()

    def _first_request(
        self, account: str, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._open_dormant(account)
        if account in self.running:
            self.running[account].serve(subject, reply, header, payload, origin)
        else:
            _refuse(self._accounts.open(account), subject, reply)

    def _open_dormant(self, account: str) -> None:
        """Opens the engine of a dormant account."""
        self._remove_triggers(account)
        limits = self._limits[account]
        faults.contain(self._open, self._opening_failed, account, limits)
        if account not in self.running:
            del self._limits[account]
            self._refuse_others()

    def _remove_triggers(self, account: str) -> None:
        """Removes the subscriptions that wait for the account's first request."""
        for subscription in self._dormant.pop(account, ()):
            self._accounts.open(account).unsubscribe(subscription)

    def _opening_failed(self, error: Exception, account: str, limits: AccountJetStream) -> None:
        """Logs an unreadable store of one account, which then has no JetStream; other accounts are
        unaffected."""
        why = str(error)
        if not isinstance(error, (StoreError, OSError)):
            why = faults.describe(faults.note(f"JetStream of account {account}", error))
        self._context.log.error(f'JetStream of account "{account}" can not be started: {why}')
        self.failed[account] = why

    def _log_start(self) -> None:
        log = self._context.log
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
    """Answers JetStream requests of an account without JetStream, on a server that has it, with an error."""

    def refuse(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        _refuse(account, subject, reply)

    return account.subscribe_service(f"{API_PREFIX}>".encode(), refuse)


def _refuse(account: Account, subject: bytes, reply: bytes) -> None:
    """Refuses one request. Requests that are answered by messages get no responders."""
    if not reply:
        return
    from penstock.jetstream.api.service import TABLE
    from penstock.protocol.api.base import TYPE_PREFIX
    from penstock.protocol.error_codes import NOT_ENABLED_FOR_ACCOUNT
    from penstock.protocol.status import no_responders_block

    text = subject.decode("utf-8", "surrogateescape")
    found = TABLE.find(text.removeprefix(API_PREFIX).split("."))
    if found is None:
        return  # no reply, as for unknown API subjects of an account with JetStream
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
    """Free bytes of the disk of a directory, which may not exist yet. None = the machine's memory."""
    if directory is None:
        return _memory_bytes()
    path = os.path.abspath(directory)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def _shown(size: int) -> str:
    """A size for log lines."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TB"
