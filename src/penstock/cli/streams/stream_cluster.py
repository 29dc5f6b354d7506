"""`penstock stream cluster`: leaders and replicas of streams."""

from __future__ import annotations

import asyncio
import time

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import seconds
from penstock.cli.framework.value_texts import number_text
from penstock.cli.reports.elections import until_led
from penstock.cli.reports.leader_balance import LedAsset, leader_moves
from penstock.cli.streams.stream_group import FORCE, STREAM, STREAM_NAME, stream_info_of, stream_name
from penstock.cli.streams.stream_management import show_one
from penstock.cli.streams.stream_reports import STREAM_CRITERIA, matching_streams
from penstock.client import JetStream
from penstock.protocol.api import (
    ApiStreamInfo,
    LeaderStepDownRequest,
    PeerRemoveRequest,
    Placement,
    SuccessResponse,
)

POLL_S = 0.5
WAIT = Option(names=("--wait",), convert=seconds, default=60.0, help="How long to wait until it has moved")

CLUSTER = STREAM.group("cluster", "Manage the replicas of a stream.", aliases=("c",))


@CLUSTER.command(
    "step-down",
    "Let the leader of a stream step down, and another be elected.",
    arguments=(STREAM_NAME,),
    options=(
        Option(names=("--preferred",), metavar="SERVER", help="The server that should lead"),
        FORCE,
    ),
    aliases=("stepdown", "sd", "elect", "down", "d"),
)
async def step_down(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        info = await stream_info_of(js, name)
        if info.cluster is None or not info.cluster.replicas:
            raise CommandFailed(f"stream {name!r} has one replica, so no other server can lead it")
        if not info.cluster.leader and not run.values.flag("force"):
            raise CommandFailed(f"stream {name!r} has no leader now; --force sends the request nevertheless")
        preferred = run.values.text("preferred")
        request = LeaderStepDownRequest(placement=Placement(preferred=preferred)) if preferred else None
        await js.call(SuccessResponse, f"STREAM.LEADER.STEPDOWN.{name}", request)
        run.output.note(f"the leader of {name}, {info.cluster.leader}, steps down")

        async def leader() -> str:
            cluster = (await stream_info_of(js, name)).cluster
            return cluster.leader if cluster is not None else ""

        await until_led(leader, but=info.cluster.leader, timeout_s=run.settings.timeout_s)
        await show_one(run, js, name)


@CLUSTER.command(
    "peer-remove",
    "Remove a server from the replicas of a stream; another takes its place.",
    arguments=(STREAM_NAME, Argument(name="peer", help="Name of the server", required=False)),
    options=(FORCE,),
    aliases=("pr",),
)
async def peer_remove(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        peer = await _peer(run, js, name)
        run.confirm(f"Really remove {peer} from stream {name}?", force=run.values.flag("force"))
        await js.call(SuccessResponse, f"STREAM.PEER.REMOVE.{name}", PeerRemoveRequest(peer=peer))
        run.output.note(f"requested the removal of {peer} from {name}")


async def _peer(run: CommandRun, js: JetStream, name: str) -> str:
    """The replica of a stream that the command names; without one, the user's choice.

    Raises CommandFailed for a stream with one replica, and for a server that has none of it.
    """
    info = await stream_info_of(js, name)
    if info.cluster is None or not info.cluster.replicas:
        raise CommandFailed(f"stream {name!r} has one replica, which can't be removed")
    peers = peers_of(info)
    peer = run.values.text("peer") or run.choose("peer", peers)
    if peer not in peers and not run.values.flag("force"):
        raise CommandFailed(f"{peer!r} is no replica of stream {name!r}; these are {', '.join(peers)}")
    return peer


def peers_of(info: ApiStreamInfo) -> list[str]:
    """Names of the servers that have a replica of a stream, the leader first."""
    if info.cluster is None:
        return []
    return [one for one in (info.cluster.leader, *(one.name for one in info.cluster.replicas)) if one]


@CLUSTER.command(
    "evacuate",
    "Move the replica of a stream from a server to another one, and wait until it has moved.",
    arguments=(STREAM_NAME, Argument(name="peer", help="Name of the server", required=False)),
    options=(WAIT, FORCE),
    details="The replica stays until another server has caught up, so that there are never fewer replicas.",
)
async def evacuate(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        peer = await _peer(run, js, name)
        run.confirm(f"Really move stream {name} away from {peer}?", force=run.values.flag("force"))
        await js.call(SuccessResponse, f"STREAM.PEER.EVACUATE.{name}", PeerRemoveRequest(peer=peer))
        run.output.note(f"requested that {name} moves away from {peer}")
        deadline = time.monotonic() + run.values.seconds("wait")
        while peer in peers_of(info := await stream_info_of(js, name)):
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"stream {name!r} is still on {peer}; `stream info {name}` shows its state"
                )
            await asyncio.sleep(POLL_S)
        if run.output.as_json:
            run.output.json(info)
        else:
            run.output.line(f"Stream {name} is on {', '.join(peers_of(info))}")


@CLUSTER.command(
    "cancel-move",
    "Cancel the move of a stream that has not ended.",
    arguments=(STREAM_NAME,),
    options=(FORCE,),
)
async def cancel_move(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        run.confirm(f"Really cancel the move of stream {name}?", force=run.values.flag("force"))
        await js.call(SuccessResponse, f"STREAM.CANCEL_MOVE.{name}")
        if run.output.as_json:
            run.output.json({"success": True})
        else:
            run.output.line(f"Cancelled the move of stream {name}")


@CLUSTER.command(
    "balance",
    "Let leaders of streams step down, so that servers lead about as many as each other.",
    options=(*STREAM_CRITERIA, FORCE),
    details="It counts and moves the leaders of streams that meet all criteria.",
    examples=("stream cluster balance --cluster east --force",),
)
async def balance(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await matching_streams(run, js)
        moves = leader_moves([
            LedAsset.of(one.config.name, one.cluster) for one in found if one.cluster is not None
        ])  # fmt: skip
        if moves:
            run.confirm(f"Really change the leaders of {len(moves)} streams?", force=run.values.flag("force"))
        for move in moves:
            request = LeaderStepDownRequest(placement=Placement(preferred=move.server))
            await js.call(SuccessResponse, f"STREAM.LEADER.STEPDOWN.{move.asset.name}", request)
            run.output.note(f"{move.asset.name}: {move.asset.leader} steps down for {move.server}")
    if run.output.as_json:
        run.output.json([
            {"stream": move.asset.name, "from": move.asset.leader, "to": move.server} for move in moves
        ])  # fmt: skip
    else:
        run.output.line(f"Balanced {number_text(len(moves))} of {number_text(len(found))} streams")
