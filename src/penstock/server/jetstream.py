"""JetStream in a server: its store, one engine an account, and what the engines are told of the server.

Invariant: an engine is closed before the store it writes to.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import faults
from penstock.errors import ServerError, StoreError
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.api.service import TABLE as API_TABLE
from penstock.jetstream.api.waiting import Queue, WaitingRequests
from penstock.jetstream.engine import JetStream
from penstock.jetstream.inflight import Inflight
from penstock.jetstream.limits import CONSUMERS_PER_STREAM, OWN_TIER, EngineConfig
from penstock.jetstream.transfers import RestoreMemory
from penstock.kernels.sinks import Sink, Subscription
from penstock.protocol.api import AccountLimits
from penstock.protocol.api.base import TYPE_PREFIX
from penstock.protocol.durations import format_time
from penstock.protocol.error_codes import NOT_ENABLED_FOR_ACCOUNT
from penstock.protocol.ids import NuidGenerator
from penstock.protocol.status import no_responders_block
from penstock.protocol.subjects import matches
from penstock.server.auth import GLOBAL_ACCOUNT
from penstock.server.background import LoopBackground
from penstock.server.identity import VERSION
from penstock.server.options import AccountJetStream, JetStreamOptions
from penstock.server.reservations import excess, growth
from penstock.store.file import FileStore
from penstock.store.keys import StoreKey
from penstock.store.memory import MemoryStore

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.server import Server
    from penstock.server.tick import Tick


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
        self._new_id = NuidGenerator(_random_below)
        self.engines: dict[str, JetStream] = {}
        self.failed: dict[str, str] = {}  # accounts whose JetStream could not be started, and why
        self._limits: dict[str, AccountJetStream] = {}  # of the accounts that have an engine
        self._inflight = Inflight()
        self._restore_memory = RestoreMemory()
        self._requests = WaitingRequests(self._dropped)
        self._requests.set_limits(options.request_queue_limit, options.info_queue_limit)
        self.max_memory_bytes = _limit(options.max_memory_bytes, _memory_bytes())
        self.max_file_bytes = _limit(options.max_file_bytes, _disk_bytes(options.store_dir))
        self._background: LoopBackground | None = None
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
                faults.contain(self._open, self._opening_failed, name, limits)
        except StoreError as error:
            raise ServerError(f"can not start JetStream: {error}") from error
        self._refusals: dict[str, Subscription] = {}
        self._refuse_others()
        took_ms = (server.clock() - started_ns) / 1e6
        server.log.info(f"Took {took_ms:.1f}ms to start JetStream")

    @property
    def api_level(self) -> int:
        """The JetStream API level that INFO and account info advertise."""
        return EngineConfig().api_level

    @property
    def store_dir(self) -> str:
        """The directory of everything stored; "" when all is in memory."""
        return "" if self._options.store_dir is None else os.path.join(self._options.store_dir, "jetstream")

    @property
    def options(self) -> JetStreamOptions:
        return self._options

    def end_pulls(self) -> None:
        """Tells those whose pull requests wait that the server stops."""
        for engine in self.engines.values():
            engine.end_pulls()

    def _open_store(self) -> MemoryStore | FileStore:
        options = self._options
        if options.store_dir is None:
            return MemoryStore()
        key = StoreKey(options.cipher, options.key, options.prev_key)
        self._background = LoopBackground(asyncio.get_running_loop())
        return FileStore(options.store_dir, key=key, background=self._background)

    def close(self) -> None:
        """Writes what is left and closes the store. A disk that fails here is told; all else still closes."""
        for closing in (*self.engines.values(), self._store):
            faults.contain(closing.close, self._closing_failed)
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
        names = self.engines.keys() | wanted.keys()
        # Those that give something back come first.
        for name in sorted(names, key=lambda name: (growth(self._limits.get(name), wanted.get(name)), name)):
            self.configure(name, wanted.get(name))
        self._refuse_others()

    def configure(self, name: str, limits: AccountJetStream | None) -> None:
        """JetStream of one account from now on; None = it has none. See `renew`.

        Limits that would reserve more than there is are told, and change nothing.
        """
        engine, present = self.engines.get(name), self._limits.get(name)
        if limits is not None and growth(present, limits) > 0:
            problem = excess(
                (self._limits | {name: limits}).values(), self.max_memory_bytes, self.max_file_bytes
            )
            if problem:
                self._server.log.error(f'Error enabling jetstream on account "{name}": {problem}')
                self._refuse_others()
                return
        if engine is not None and limits is not None:
            engine.config = self._config(name, limits)
            self._limits[name] = limits
        elif engine is not None:
            self._end(name)
        elif limits is not None:
            refusal = self._refusals.pop(name, None)
            if refusal is not None:
                self._server.account(name).unsubscribe(refusal)
            faults.contain(self._open, self._opening_failed, name, limits)
        self._refuse_others()

    def _end(self, name: str) -> None:
        engine = self.engines.pop(name)
        del self._limits[name]
        engine.end_pulls()
        faults.contain(engine.close, self._closing_failed)
        self._tick.remove(engine)

    def _refuse_others(self) -> None:
        for account in self._server.accounts.values():
            name = account.name
            if name in self._refusals and self._imports_api(name):
                account.unsubscribe(self._refusals.pop(name))
            elif name not in self.engines and name not in self._refusals and not self._imports_api(name):
                self._refusals[name] = refuse_requests(account)
        for name in self._refusals.keys() - self._server.accounts.keys():
            del self._refusals[name]

    def _imports_api(self, name: str) -> bool:
        """Does another account answer the API in this one?"""
        own = self._server.account_options(name)
        if own is None or not own.imports:
            return False
        from penstock.routing.sharing import ServiceImport, plan

        services = [entry for entry in own.imports if isinstance(entry, ServiceImport)]
        return any(matches(plan(entry).local, "$JS.API.INFO") for entry in services)

    def _open(self, account: str, limits: AccountJetStream) -> None:
        """Starts the engine of an account with what is stored for it."""
        server = self._server
        engine = JetStream(
            server.account(account).index,
            self._store.account(account),
            config=self._config(account, limits),
            clock=server.clock,
            new_id=self._new_id,
            wake=self._tick.schedule,
            below=_random_below,
        )
        engine.describe_client = self._describe
        engine.batches.inflight = self._inflight
        engine.transfers.memory = self._restore_memory
        engine.requests = self._requests
        capacity = engine.capacity
        capacity.used_elsewhere = lambda storage: sum(
            one.capacity.used(storage) for one in self._others(engine)
        )
        capacity.reserved_elsewhere = lambda storage: sum(
            one.capacity.reserved(storage) for one in self._others(engine)
        )
        capacity.fast_batches_elsewhere = lambda: sum(
            one.capacity.fast_batches() for one in self._others(engine)
        )
        engine.recover(server.clock())
        self.engines[account], self._limits[account] = engine, limits
        self.failed.pop(account, None)
        self._tick.add(engine)

    def _opening_failed(self, error: Exception, account: str, limits: AccountJetStream) -> None:
        """One account's store can't be read at all: that account has no JetStream, the others do."""
        why = str(error)
        if not isinstance(error, (StoreError, OSError)):
            why = faults.told(faults.note(f"JetStream of account {account}", error))
        self._server.log.error(f'JetStream of account "{account}" can not be started: {why}')
        self.failed[account] = why

    def _config(self, account: str, limits: AccountJetStream) -> EngineConfig:
        server = self._server
        tiers = {name: _tier(tier) for name, tier in limits.tiers}
        limits = dict(limits.tiers).get(OWN_TIER, limits)
        return EngineConfig(
            account=account,
            tiers=tiers,
            server_id=server.server_id,
            server_name=server.server_name,
            version=VERSION,
            domain=self._options.domain,
            max_memory=self.max_memory_bytes,
            max_storage=self.max_file_bytes,
            account_memory_max=limits.max_memory_bytes,
            account_storage_max=limits.max_file_bytes,
            max_bytes_required=limits.max_bytes_required,
            memory_max_stream_bytes=limits.memory_max_stream_bytes,
            storage_max_stream_bytes=limits.file_max_stream_bytes,
            max_streams=limits.max_streams,
            max_consumers=limits.max_consumers,
            max_ack_pending=limits.max_ack_pending,
            server_max_ack_pending=self._options.ack_pending_max,
            max_request_batch=self._options.request_batch_max,
            duplicate_window_max_ns=self._options.duplicate_window_max_ns,
            consumers_per_stream_max=self._options.consumers_per_stream_max or CONSUMERS_PER_STREAM,
            max_payload=server.options.max_payload,
            max_pending=server.options.max_pending,
            sync_always=self._options.sync_always,
            sync_interval_ns=self._options.sync_interval_ns,
            batch_inflight_per_stream_max=self._options.batch_inflight_per_stream_max,
            batch_inflight_total_max=self._options.batch_inflight_total_max,
            batch_messages_max=self._options.batch_messages_max,
            batch_bytes_max=self._options.batch_bytes_max,
            official_fast_errors=self._options.official_fast_errors,
            batch_timeout_ns=self._options.batch_timeout_ns,
            buffered_msgs_max=self._options.buffered_msgs_max,
            buffered_bytes_max=self._options.buffered_bytes_max,
        )

    def _dropped(self, queue: Queue, count: int) -> None:
        """API requests were dropped: the system account hears of it."""
        server = self._server
        server.log.warning(f"{queue.value} limit reached, dropping {count} requests")
        advisories = Advisories(
            server.account(server.options.system_account).index,
            clock=server.clock,
            new_id=self._new_id,
            domain=self._options.domain,
        )
        advisories.publish(
            "API.LIMIT_REACHED", "api_limit_reached", {"server": server.server_name, "dropped": count}
        )

    def _others(self, without: JetStream) -> list[JetStream]:
        """JetStream of all accounts but one."""
        return [engine for engine in self.engines.values() if engine is not without]

    def _describe(self, sink: Sink) -> dict[str, Any] | None:
        """The `client` of an API audit advisory."""
        session = getattr(sink, "owner", None)
        if session is None:
            return None
        identity = session.identity
        about = {
            "start": format_time(session.started_ns),
            "host": session.connection.peer[0],
            "id": session.cid,
            "acc": identity.account if identity is not None else GLOBAL_ACCOUNT,
            "user": identity.user if identity is not None else "",
            "name": session.options.name,
            "lang": session.options.lang,
            "ver": session.options.version,
            "rtt": session.rtt_ns,
            "server": self._server.server_name,
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in about.items() if value not in ("", 0)}

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
        log.info(f"  API Level:       {self.api_level}")
        log.info("-------------------------------------------")


def refuse_requests(account: Account) -> Subscription:
    """Tells an account without JetStream, on a server that has it, that it is not enabled.

    Requests that are answered by messages find no responders.
    """

    def refuse(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        if not reply:
            return
        text = subject.decode("utf-8", "surrogateescape")
        found = API_TABLE.find(text.removeprefix("$JS.API.").split("."))
        if found is None:
            return  # silence, as for unknown subjects of an account with JetStream
        endpoint = found[0]
        if not endpoint.json_errors:
            account.publish(reply, b"", header=no_responders_block(text))
            return
        refused = {"type": TYPE_PREFIX + endpoint.response, "error": NOT_ENABLED_FOR_ACCOUNT}
        account.publish(reply, msgspec.json.encode(refused))

    return account.subscribe_service(b"$JS.API.>", refuse)


def _tier(limits: AccountJetStream) -> AccountLimits:
    return AccountLimits(
        max_memory=limits.max_memory_bytes,
        max_storage=limits.max_file_bytes,
        max_streams=limits.max_streams,
        max_consumers=limits.max_consumers,
        max_ack_pending=limits.max_ack_pending,
        max_bytes_required=limits.max_bytes_required,
        memory_max_stream_bytes=limits.memory_max_stream_bytes,
        storage_max_stream_bytes=limits.file_max_stream_bytes,
    )


def _random_below(n: int) -> int:
    """In [0, n). (`secrets` costs start-up time; the bias of 64 spare bits is nothing here.)"""
    return int.from_bytes(os.urandom((n.bit_length() + 64) // 8 + 1), "little") % n


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
