"""`penstock consumer cluster`: leaders and replicas of consumers."""

from __future__ import annotations

from penstock.cli.consumers.consumer_group import CONSUMER, CONSUMER_NAME, consumer_info_of, consumer_names
from penstock.cli.consumers.consumer_management import show_one
from penstock.cli.consumers.consumer_reports import CONSUMER_CRITERIA, matching_consumers
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_texts import number_text
from penstock.cli.reports.elections import until_led
from penstock.cli.reports.leader_balance import LedAsset, leader_moves
from penstock.cli.streams.stream_group import FORCE, STREAM_NAME
from penstock.client import JetStream
from penstock.protocol.api import LeaderStepDownRequest, PeerRemoveRequest, Placement, SuccessResponse

CONSUMER_CLUSTER = CONSUMER.group("cluster", "Manage the replicas of a consumer.")


@CONSUMER_CLUSTER.command(
    "step-down",
    "Let the leader of a consumer step down, and another be elected.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(Option(names=("--preferred",), metavar="SERVER", help="The server that should lead"), FORCE),
    aliases=("stepdown", "sd", "elect", "down", "d"),
)
async def step_down(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        leader = await _leader(run, js, stream, name)
        preferred = run.values.text("preferred")
        request = LeaderStepDownRequest(placement=Placement(preferred=preferred)) if preferred else None
        await js.call(SuccessResponse, f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}", request)
        run.output.note(f"the leader of {stream} > {name}, {leader}, steps down")

        async def new_leader() -> str:
            cluster = (await consumer_info_of(js, stream, name)).cluster
            return cluster.leader if cluster is not None else ""

        await until_led(new_leader, but=leader, timeout_s=run.settings.timeout_s)
        await show_one(run, js, stream, name)


async def _leader(run: CommandRun, js: JetStream, stream: str, name: str) -> str:
    """The leader of a replicated consumer. Raises CommandFailed if it has one replica, or no leader."""
    cluster = (await consumer_info_of(js, stream, name)).cluster
    if cluster is None or not cluster.replicas:
        raise CommandFailed(f"consumer {stream} > {name} has one replica, so no other server can lead it")
    if not cluster.leader and not run.values.flag("force"):
        raise CommandFailed(
            f"consumer {stream} > {name} has no leader now; --force sends the request nevertheless"
        )
    return cluster.leader


@CONSUMER_CLUSTER.command(
    "peer-remove",
    "Move the replica of a consumer away from a server, to another one that has the stream.",
    arguments=(STREAM_NAME, CONSUMER_NAME, Argument(name="peer", help="Name of the server")),
    options=(FORCE,),
    aliases=("pr", "evacuate"),
)
async def peer_remove(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        peer = run.values.text("peer")
        run.confirm(f"Really move {stream} > {name} away from {peer}?", force=run.values.flag("force"))
        request = PeerRemoveRequest(peer=peer)
        await js.call(SuccessResponse, f"CONSUMER.PEER.EVACUATE.{stream}.{name}", request)
        run.output.note(f"requested that {stream} > {name} moves away from {peer}")


@CONSUMER_CLUSTER.command(
    "balance",
    "Let leaders of consumers step down, so that servers lead about as many as each other.",
    arguments=(STREAM_NAME,),
    options=(*CONSUMER_CRITERIA, FORCE),
    details="It counts and moves the leaders of the stream's consumers that meet all criteria.",
)
async def balance(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, found = await matching_consumers(run, js)
        moves = leader_moves([
            LedAsset.of(one.name, one.cluster) for one in found if one.cluster is not None
        ])  # fmt: skip
        if moves:
            question = f"Really change the leaders of {len(moves)} consumers?"
            run.confirm(question, force=run.values.flag("force"))
        for move in moves:
            request = LeaderStepDownRequest(placement=Placement(preferred=move.server))
            subject = f"CONSUMER.LEADER.STEPDOWN.{stream}.{move.asset.name}"
            await js.call(SuccessResponse, subject, request)
            run.output.note(f"{move.asset.name}: {move.asset.leader} steps down for {move.server}")
    if run.output.as_json:
        run.output.json([
            {"consumer": move.asset.name, "from": move.asset.leader, "to": move.server} for move in moves
        ])  # fmt: skip
    else:
        run.output.line(f"Balanced {number_text(len(moves))} of {number_text(len(found))} consumers")
