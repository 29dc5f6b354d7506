"""Creates the JetStream engines of accounts, with the settings they share.

A separate module because of its imports, which are half of the server's modules. `jetstream_service` loads it
when an account has stored data, or with the first request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.jetstream.advisories import Advisories
from penstock.jetstream.api import ApiService
from penstock.jetstream.engine import JetStreamEngine, SharedState
from penstock.jetstream.limits import CONSUMERS_PER_STREAM, OWN_TIER, EngineConfig
from penstock.jetstream.waiting import Queue, WaitingRequests
from penstock.protocol.api import AccountLimits
from penstock.protocol.durations import format_time
from penstock.protocol.ids import NuidGenerator
from penstock.server.auth.authenticator import GLOBAL_ACCOUNT
from penstock.server.server_identity import API_LEVEL, VERSION

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import Sink
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.server_options import AccountJetStream
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.server_context import ServerContext
    from penstock.store.interface import AccountStore


class EngineFactory:
    """Creates engines.

    Args:
        context: options, clock, log and identity of the server.
        accounts: the accounts of the engines.
        service: JetStream of the server; has its limits.
        wake: called when an engine has work for the end of a tick.
    """

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        service: JetStreamService,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._service = service
        self._wake = wake
        self._new_id = NuidGenerator(_random_below)
        requests = WaitingRequests(self._dropped)
        requests.set_limits(service.options.request_queue_limit, service.options.info_queue_limit)
        self._shared = SharedState(
            engines=service.running.values(), requests=requests, describe_client=self._describe
        )
        if service.cluster is not None:
            self._shared = structs.replace(
                self._shared,
                cluster_of=service.cluster.cluster_of,
                alternates_of=service.cluster.alternates_of,
            )

    def open(self, account: str, limits: AccountJetStream, store: AccountStore) -> JetStreamEngine:
        """Opens the engine of an account with its stored data. Raises StoreError, OSError."""
        context = self._context
        engine = JetStreamEngine(
            self._accounts.open(account).index,
            store,
            api=ApiService if self._service.cluster is None else self._service.cluster.api,
            config=self.config(account, limits),
            clock=context.clock,
            new_id=self._new_id,
            wake=self._wake,
            below=_random_below,
            shared=self._shared,
        )
        engine.recover(context.clock())
        return engine

    def config(self, account: str, limits: AccountJetStream) -> EngineConfig:
        """The configuration of an account's engine."""
        context, service = self._context, self._service
        options = service.options
        tiers = {name: _tier(tier) for name, tier in limits.tiers}
        limits = dict(limits.tiers).get(OWN_TIER, limits)
        return EngineConfig(
            account=account,
            is_clustered=service.cluster is not None,
            durability=options.durability if service.cluster is not None else "",
            tiers=tiers,
            server_id=context.server_id,
            server_name=context.server_name,
            version=VERSION,
            api_level=API_LEVEL,
            domain=options.domain,
            max_memory=service.max_memory_bytes,
            max_storage=service.max_file_bytes,
            account_memory_max=limits.max_memory_bytes,
            account_storage_max=limits.max_file_bytes,
            max_bytes_required=limits.max_bytes_required,
            memory_max_stream_bytes=limits.memory_max_stream_bytes,
            storage_max_stream_bytes=limits.file_max_stream_bytes,
            max_streams=limits.max_streams,
            max_consumers=limits.max_consumers,
            max_ack_pending=limits.max_ack_pending,
            server_max_ack_pending=options.ack_pending_max,
            max_request_batch=options.request_batch_max,
            duplicate_window_max_ns=options.duplicate_window_max_ns,
            consumers_per_stream_max=options.consumers_per_stream_max or CONSUMERS_PER_STREAM,
            max_payload=context.options.max_payload,
            max_pending=context.options.max_pending,
            # The log of a cluster's groups has what their files have not synced.
            sync_always=options.sync_always and service.cluster is None,
            sync_interval_ns=options.sync_interval_ns,
            batch_inflight_per_stream_max=options.batch_inflight_per_stream_max,
            batch_inflight_total_max=options.batch_inflight_total_max,
            batch_messages_max=options.batch_messages_max,
            batch_bytes_max=options.batch_bytes_max,
            official_fast_errors=options.official_fast_errors,
            batch_timeout_ns=options.batch_timeout_ns,
            buffered_msgs_max=options.buffered_msgs_max,
            buffered_bytes_max=options.buffered_bytes_max,
        )

    def _describe(self, sink: Sink) -> dict[str, Any] | None:
        """The `client` object of an API audit advisory."""
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
            "server": self._context.server_name,
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in about.items() if value not in ("", 0)}

    def _dropped(self, queue: Queue, count: int) -> None:
        """Publishes an advisory in the system account: API requests were dropped."""
        context = self._context
        context.log.warning(f"{queue.value} limit reached, dropping {count} requests")
        advisories = Advisories(
            self._accounts.open(context.options.system_account).index,
            clock=context.clock,
            new_id=self._new_id,
            domain=self._service.options.domain,
        )
        advisories.publish(
            "API.LIMIT_REACHED", "api_limit_reached", {"server": context.server_name, "dropped": count}
        )


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
    """A random integer in [0, n). (`secrets` costs start-up time; the bias with 64 extra bits is
    negligible.)"""
    return int.from_bytes(os.urandom((n.bit_length() + 64) // 8 + 1), "little") % n
