"""`penstock server cluster`: leader and members of a JetStream cluster, and the balance of connections."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from penstock.cli.bucket_options import FORCE
from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import seconds
from penstock.cli.framework.value_texts import number_text
from penstock.cli.reports.connection_balance import ServerConnections, surplus_connections
from penstock.cli.reports.server_tables import connections_of
from penstock.cli.reports.system_requests import SystemAnswer, ask_server, ask_servers
from penstock.cli.server_report_commands import all_connections
from penstock.cli.server_selection import SYSTEM_ACCOUNT, print_done
from penstock.client import Client
from penstock.protocol.api import ServerRemoveRequest, SuccessResponse

POLL_S = 1.0

CLUSTER = CommandGroup("cluster", "Manage the servers of a JetStream cluster.", aliases=("raft", "r"))


@CLUSTER.command(
    "step-down",
    "Elect another leader of the group that manages JetStream.",
    options=(
        Option(names=("--cluster",), metavar="NAME", help="The leader should be in this cluster"),
        Option(names=("--tags",), repeated=True, commas=True, metavar="TAG",
               help="The leader should have these tags"),
        Option(names=("--host",), metavar="NAME", help="The leader should be this server"),
        FORCE,
    ),
    aliases=("stepdown", "sd", "elect", "down", "d"),
    details=SYSTEM_ACCOUNT,
)  # fmt: skip
async def step_down(run: CommandRun) -> None:
    """Let the leader step down. A user of the system account may."""
    values = run.values
    placement = {"cluster": values.text("cluster"), "tags": values.texts("tags"),
                 "preferred": values.text("host")}  # fmt: skip
    wanted = {key: value for key, value in placement.items() if value}
    run.confirm("Let the leader of the JetStream cluster step down?", force=values.flag("force"))
    async with run.jetstream() as js:
        await js.call(SuccessResponse, "META.LEADER.STEPDOWN", {"placement": wanted} if wanted else None)
    print_done(run, {"success": True}, "The leader stepped down; the servers elect another")


@CLUSTER.command(
    "peer-remove",
    "Remove a server from a JetStream cluster for good.",
    arguments=(Argument(name="name", help="Name or id of the server"),),
    options=(FORCE,),
    aliases=("rm", "pr"),
    details=f"{SYSTEM_ACCOUNT} Replicas on that server are created elsewhere. The server must not come back "
    "under this name.",
)
async def peer_remove(run: CommandRun) -> None:
    """Remove a server from the group that manages JetStream."""
    name = run.values.text("name")
    question = f"Remove server {name} from the JetStream cluster for good?"
    run.confirm(question, force=run.values.flag("force"))
    async with run.jetstream() as js:
        await js.call(SuccessResponse, "SERVER.REMOVE", {"peer": name, "peer_id": ""})
    print_done(run, {"success": True, "peer": name}, f"Removed server {name}")


@CLUSTER.command(
    "evacuate",
    "Move all streams and consumers of a server to others, and wait until they have moved.",
    arguments=(Argument(name="peer", help="Name of the server", required=False),),
    options=(
        Option(names=("--wait",), convert=seconds, default=300.0, help="How long to wait until it is empty"),
        FORCE,
    ),
    details=f"{SYSTEM_ACCOUNT} The server stays in the cluster and takes no new streams until it is started "
    "again.",
)
async def evacuate(run: CommandRun) -> None:
    """Let the streams of a server move away. A user of the system account may."""
    async with run.connect() as client:
        peer = run.values.text("peer") or run.choose("server", await _members(run, client))
        question = f"Really move all streams and consumers away from {peer}?"
        run.confirm(question, force=run.values.flag("force"))
        request = ServerRemoveRequest(peer=peer)
        await run.jetstream_of(client).call(SuccessResponse, "SERVER.EVACUATE", request)
        run.output.note(f"requested the evacuation of {peer}")
        deadline = time.monotonic() + run.values.seconds("wait")
        while any(left := await _assets(run, client, peer)):
            if time.monotonic() > deadline:
                raise CommandFailed(f"{peer} still has {left[0]} streams and {left[1]} consumers")
            await asyncio.sleep(POLL_S)
    print_done(run, {"success": True, "peer": peer}, f"{peer} has no streams and consumers")


async def _members(run: CommandRun, client: Client) -> list[str]:
    answers = await ask_servers(client, timeout_s=run.settings.timeout_s)
    return sorted(one.server_name for one in answers if one.server.get("jetstream"))


async def _assets(run: CommandRun, client: Client, peer: str) -> tuple[int, int]:
    """How many streams and consumers a server has."""
    options = {"server_name": peer, "exact_match": True}
    found = await ask_servers(client, "JSZ", options, timeout_s=run.settings.timeout_s, expect=1)
    return found[0].data.get("streams", 0), found[0].data.get("consumers", 0)


@CLUSTER.command(
    "balance",
    "Disconnect clients of busy servers, so that they connect to others.",
    arguments=(
        Argument(
            name="duration", help="Spread it over this time (default: 2m)", required=False, convert=seconds
        ),
    ),
    options=(
        Option(names=("--server-name",), metavar="NAME", help="Only connections of this server"),
        Option(names=("--cluster",), metavar="NAME", help="Only servers of this cluster"),
        Option(names=("--idle",), convert=seconds, help="Only connections without traffic for so long"),
        Option(names=("--account",), metavar="NAME", help="Only connections of this account"),
        Option(names=("--subject",), metavar="SUBJECT", help="Only with a subscription that matches"),
        Option(names=("--kind",), choices=("Client", "Leafnode"), repeated=True,
               help="Only connections of this kind (default: Client)"),
        FORCE,
    ),
    details=f"{SYSTEM_ACCOUNT} Each server keeps as many connections as the servers of its cluster have on "
    "average. Clients connect again by themselves; what they were doing may be interrupted.",
)  # fmt: skip
async def balance(run: CommandRun) -> None:
    """Kick connections above the average of a cluster. A user of the system account may."""
    values = run.values
    async with run.connect() as client:
        found = await _connections(run, client)
        chosen = surplus_connections(found)
        if values.text("server-name"):
            chosen = [one for one in chosen if one.server == values.text("server-name")]
        if chosen:
            question = f"Really disconnect {len(chosen)} clients, which connect again?"
            run.confirm(question, force=values.flag("force"))
        pause_s = values.seconds("duration", 120.0) / max(len(chosen), 1)
        for number, one in enumerate(chosen):
            if number:
                await asyncio.sleep(pause_s)
            timeout_s = run.settings.timeout_s
            await ask_server(client, one.server_id, "KICK", {"cid": one.cid}, timeout_s=timeout_s)
            run.output.note(f"disconnected {one.cid} of {one.server}")
    page = [{"server": one.server, "cid": one.cid} for one in chosen]
    print_done(run, {"kicked": page}, f"Balanced {number_text(len(chosen))} connections")


async def _connections(run: CommandRun, client: Client) -> list[ServerConnections]:
    """The connections of each server that the options select, without this command's own.

    Raises UsageError for --subject without --account.
    """
    values = run.values
    if values.text("subject") and not values.text("account"):
        raise UsageError("--subject needs --account, whose subscriptions it is about")
    options: dict[str, Any] = {"auth": True}
    named = {"cluster": "cluster", "account": "acc", "subject": "filter_subject"}
    options |= {theirs: values.text(ours) for ours, theirs in named.items() if values.text(ours)}
    answers: list[SystemAnswer] = await all_connections(client, options, timeout_s=run.settings.timeout_s)
    own, kinds = client.server_info, values.texts("kind") or ["Client"]
    servers: dict[str, ServerConnections] = {}
    for answer in answers:
        server_id = str(answer.server.get("id"))
        server = servers.setdefault(
            server_id,
            ServerConnections(answer.server_name, server_id, str(answer.server.get("cluster", ""))),
        )
        for one in connections_of([answer]):
            is_own = server_id == own.server_id and one.get("cid") == own.client_id
            idle_s = seconds(str(one.get("idle") or "0"))
            if not is_own and one.get("kind") in kinds and idle_s >= values.seconds("idle"):
                server.cids.append(one["cid"])
    return list(servers.values())
