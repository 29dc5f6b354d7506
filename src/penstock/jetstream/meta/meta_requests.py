"""From API requests to meta commands: what the meta leader checks and adds before it proposes.

The configuration is checked here, because that needs the limits of the server and account; the checks that
depend on the meta state are made again when the command is applied, after others that were proposed before
it.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import JetStreamApiError
from penstock.jetstream import stream_config
from penstock.jetstream.consumer import consumer_config
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.meta_commands import (
    AccountRules,
    CreateConsumer,
    CreateStream,
    MoveStream,
    PlacementRules,
    RemoveFromStream,
    UpdateStream,
)
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.placement import step_down_target
from penstock.jetstream.tiers import flat
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    ConsumerCreateRequest,
    LeaderStepDownRequest,
    PeerRemoveRequest,
    ServerRemoveRequest,
    StorageType,
    StreamConfigRequest,
    StreamMoveRequest,
)


class MetaRequest(Struct, frozen=True, kw_only=True):
    """A request as the meta leader has it. clusters: of the client, then those that it reaches, nearest
    first. unique_tag, ha_streams_max: options of this server. ticket: see meta_commands."""

    account: str
    clusters: tuple[str, ...]
    engine: EngineConfig
    unique_tag: str = ""
    ha_streams_max: int = 0
    ticket: bytes = b""

    @property
    def rules(self) -> AccountRules:
        """The limits of the account."""
        limits = dict(self.engine.tiers) or {"": flat(self.engine)}
        return AccountRules(limits, self.engine.consumers_per_stream_max)

    @property
    def placement(self) -> PlacementRules:
        return PlacementRules(self.clusters, self.unique_tag, self.ha_streams_max)


def create_stream(origin: MetaRequest, request: StreamConfigRequest) -> CreateStream:
    """Raises JetStreamApiError like `stream_config.checked`."""
    config = stream_config.checked(request, origin.engine)
    return CreateStream(
        origin.account, config, origin.rules, origin.placement, request.pedantic, ticket=origin.ticket
    )


def restore_stream(origin: MetaRequest, request: StreamConfigRequest, on: str) -> CreateStream:
    """on: the peer that gets the data. Raises JetStreamApiError like `stream_config.restored`."""
    config = stream_config.restored(request, origin.engine)
    return CreateStream(
        origin.account, config, origin.rules, origin.placement, request.pedantic, True, on, origin.ticket
    )


def update_stream(tables: MetaTables, origin: MetaRequest, request: StreamConfigRequest) -> UpdateStream:
    """Raises JetStreamApiError like `stream_config.updated`, and 10059."""
    present = tables.stream(origin.account, request.name)
    config = stream_config.updated(present.config, request, origin.engine)
    return UpdateStream(
        origin.account,
        config,
        origin.rules,
        origin.placement,
        request.pedantic,
        request.sealed,
        origin.ticket,
    )


def move_stream(origin: MetaRequest, account: str, stream: str, request: StreamMoveRequest) -> MoveStream:
    """ACCOUNT.STREAM.MOVE."""
    return MoveStream(account, stream, origin.placement, request.server, tuple(request.tags), origin.ticket)


def create_consumer(
    tables: MetaTables, origin: MetaRequest, name: str, request: ConsumerCreateRequest
) -> CreateConsumer:
    """name: as in the subject or the configuration, "" for none. Raises JetStreamApiError like
    `consumer_config.checked`, and 10059."""
    stream = tables.stream(origin.account, request.stream_name)
    config = consumer_config.checked(request.config, stream.config, origin.engine, pedantic=request.pedantic)
    from_default = consumer_config.is_left_to_default(request.config, stream.config)
    return CreateConsumer(
        origin.account, stream.name, name, config, origin.rules, request.action, from_default, origin.ticket
    )


def remove_from_stream(origin: MetaRequest, stream: str, request: PeerRemoveRequest) -> RemoveFromStream:
    """STREAM.PEER.REMOVE and EVACUATE: the member stays until its replacement has the data in both cases.
    Raises JetStreamApiError 10003 without a peer."""
    if not request.peer:
        raise codes.BAD_REQUEST.exception()
    return RemoveFromStream(origin.account, stream, request.peer, origin.unique_tag, origin.ticket)


def check_consumer_removal(
    tables: MetaTables, account: str, stream: str, consumer: str, request: PeerRemoveRequest
) -> JetStreamApiError:
    """The answer to CONSUMER.PEER.REMOVE and EVACUATE: a consumer has the members of its stream, so none of
    them can be replaced for it alone. 10003, 10059, 10014, 10040, 10075."""
    if not request.peer:
        return codes.BAD_REQUEST.exception()
    try:
        tables.consumer(account, stream, consumer)
    except JetStreamApiError as error:
        return error
    record = tables.peer_named(request.peer)
    if record is None or record.peer not in tables.stream(account, stream).hosts:
        return codes.CLUSTER_PEER_NOT_MEMBER.exception()
    return codes.PEER_REMAP.exception()


def find_server(tables: MetaTables, request: ServerRemoveRequest) -> str:
    """The peer id for SERVER.REMOVE and EVACUATE. Raises JetStreamApiError 10044."""
    if request.peer_id:
        if request.peer_id in tables.peers:
            return request.peer_id
    else:
        for record in tables.peers.values():
            if record.name == request.peer:
                return record.peer
    raise codes.CLUSTER_SERVER_NOT_MEMBER.exception()


def stream_step_down(
    tables: MetaTables, stream: StreamAssignment, leader: str, request: LeaderStepDownRequest
) -> str | None:
    """The peer that should lead a stream next; None for any. leader: the peer id of the present one. Raises
    JetStreamApiError 10005. A stream with one server has nothing to do."""
    return _step_down(tables, stream.group.peers, leader, request)


def meta_step_down(
    tables: MetaTables, voters: list[str], leader: str, request: LeaderStepDownRequest
) -> str | None:
    """The peer that should lead the meta group next; None for any. Raises JetStreamApiError 10005."""
    return _step_down(tables, voters, leader, request)


def _step_down(
    tables: MetaTables, peers: tuple[str, ...] | list[str], leader: str, request: LeaderStepDownRequest
) -> str | None:
    if len(peers) == 1 or request.placement is None:
        return None
    members = [one for one in tables.offers(StorageType.FILE) if one.peer in peers]
    wanted = request.placement
    return step_down_target(wanted.preferred, wanted.cluster, wanted.tags, leader, members)
