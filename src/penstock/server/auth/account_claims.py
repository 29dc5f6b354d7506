"""Converts account and user claims to the options of nats.conf.

Pure conversion, without keys and clock: `operators` checks signatures and validity. Conventions differ: in
claims -1 is no limit and 0 permits nothing; JetStream limits of 0 streams or consumers are no limits, and no
storage of either kind means no JetStream.

Tiers of JetStream limits are by replicas; the engine selects the tier.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.protocol import claims
from penstock.protocol.subjects import is_valid_subject
from penstock.routing.imports_exports import (
    AnyExport,
    AnyImport,
    Latency,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
)
from penstock.routing.mapping import Destination, SubjectMapping
from penstock.routing.permissions import PermissionEntry, Permissions, ResponsePermission, SubjectPermission
from penstock.server.config.server_options import AccountJetStream, AccountOptions, MessageTrace

CONNECTION_TYPES = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)
_RESPONSES = {"Stream": ResponseType.STREAMED, "Chunked": ResponseType.CHUNKED}


def permissions_of(given: claims.PermissionsClaim) -> Permissions | None:
    """Permissions of a user, or an account's default permissions; None = no restrictions.

    Raises ConfigError for an invalid filter.
    """
    if given.is_empty:
        return None
    responses = None
    if given.resp is not None:
        default = ResponsePermission()
        responses = ResponsePermission(
            max_msgs=given.resp.max or default.max_msgs, expires_ns=given.resp.ttl or default.expires_ns
        )
    return Permissions(
        publish=_subjects(given.pub, queues=False),
        subscribe=_subjects(given.sub, queues=True),
        responses=responses,
    )


def _subjects(given: claims.PermissionClaim, *, queues: bool) -> SubjectPermission:
    allow, deny = (
        tuple(PermissionEntry.parse(entry, queues=queues) for entry in entries)
        for entries in (given.allow, given.deny)
    )
    return SubjectPermission(allow=allow or None, deny=deny)


def account_options(
    account: claims.AccountClaims, is_activated: Callable[[claims.ImportClaim], bool]
) -> AccountOptions:
    """Converts account claims to account options.

    Args:
        account: claims without problems.
        is_activated: whether the activation token of an import is valid.

    Raises:
        ConfigError: invalid mappings.
    """
    body, limits = account.nats, account.nats.limits
    return AccountOptions(
        name=account.subject,
        mappings=tuple(_mapping(source, to) for source, to in body.mappings.items()),
        jetstream=jetstream_of(limits),
        max_connections=limits.conn,
        max_subscriptions=limits.subs,
        max_payload=limits.payload,
        max_leafnodes=limits.leaf,
        trace=_trace(body.trace),
        exports=tuple(_export(one) for one in body.exports),
        imports=tuple(_import(one, is_activated(one)) for one in body.imports),
    )


def _trace(given: claims.TraceClaim | None) -> MessageTrace | None:
    if given is None or not is_valid_subject(given.dest):
        return None
    return MessageTrace(dest=given.dest, sampling=given.sampling if 0 < given.sampling <= 100 else 100)


def jetstream_of(limits: claims.OperatorLimits) -> AccountJetStream | None:
    """JetStream limits of an account; None = no JetStream."""
    if not limits.has_jetstream:
        return None
    tiers = limits.tiered_limits
    if tiers:
        return AccountJetStream(tiers=tuple((name, _tier(tiers[name])) for name in sorted(tiers)))
    return _tier(limits)


def _tier(own: claims.JetStreamLimits) -> AccountJetStream:
    return AccountJetStream(
        max_memory_bytes=own.mem_storage,
        max_file_bytes=own.disk_storage,
        max_streams=own.streams or -1,
        max_consumers=own.consumer or -1,
        max_ack_pending=own.max_ack_pending or -1,
        max_bytes_required=own.max_bytes_required,
        memory_max_stream_bytes=own.mem_max_stream_bytes or -1,
        file_max_stream_bytes=own.disk_max_stream_bytes or -1,
    )


def _mapping(source: str, destinations: tuple[claims.WeightedMapping, ...]) -> SubjectMapping:
    return SubjectMapping(
        source,
        tuple(
            Destination(subject=one.subject, weight=one.weight or 100, cluster=one.cluster)
            for one in destinations
        ),
    )


def _export(one: claims.ExportClaim) -> AnyExport:
    if one.type == "stream":
        return StreamExport(
            subject=one.subject,
            token_required=one.token_req,
            account_token_position=one.account_token_position,
        )
    latency = None
    if one.service_latency is not None:
        sampling = one.service_latency.sampling
        latency = Latency(
            subject=one.service_latency.results, sampling=sampling if isinstance(sampling, int) else 0
        )
    default = ServiceExport(subject=one.subject)
    return ServiceExport(
        subject=one.subject,
        token_required=one.token_req,
        account_token_position=one.account_token_position,
        response=_RESPONSES.get(one.response_type, ResponseType.SINGLETON),
        response_threshold_ns=one.response_threshold or default.response_threshold_ns,
        latency=latency,
        allow_trace=one.allow_trace,
    )


def _import(one: claims.ImportClaim, activated: bool) -> AnyImport:
    if one.type == "stream":
        # The deprecated field `to` of a stream import is a prefix; `local_subject` is the whole subject.
        to = one.local_subject or (f"{one.to}.{one.subject}" if one.to else "")
        return StreamImport(
            account=one.account, subject=one.subject, to=to, allow_trace=one.allow_trace, activated=activated
        )
    # The deprecated form of a service import has the local subject in `subject` and the remote one in `to`.
    subject, to = (
        (one.subject, one.local_subject) if one.local_subject else (one.to or one.subject, one.subject)
    )
    return ServiceImport(account=one.account, subject=subject, to=to, share=one.share, activated=activated)


def connection_types_of(user: claims.UserLimits) -> frozenset[str] | None:
    """Connection types a user may use; empty = all, None = none that this server supports."""
    known = frozenset(kind.upper() for kind in user.allowed_connection_types) & CONNECTION_TYPES
    return known if known or not user.allowed_connection_types else None
