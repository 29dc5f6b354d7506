"""Requests of a cluster's API and the answers to them: one table for the official server and for the meta
state.

The servers are a, b and c of cluster "c"; a has tag x, b has x and y, c has y. Requests follow each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.errors import JetStreamApiError
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta import meta_requests as requests
from penstock.jetstream.meta.meta_commands import MetaCommand
from penstock.jetstream.meta.meta_effects import Refused
from penstock.protocol.api import (
    ConsumerCreateRequest,
    LeaderStepDownRequest,
    PeerRemoveRequest,
    ServerRemoveRequest,
    StreamConfigRequest,
    decode,
)
from tests.support.meta_groups import MetaGroup

TAGS = {"a": ("x",), "b": ("x", "y"), "c": ("y",)}
SYSTEM = ("SERVER.", "META.", "ACCOUNT.")
NONE = "no suitable peers for placement"
OK = (0, "")


class Asked(NamedTuple):
    """A request, and the code and description of its error; 0 for success. body: LEADER in it is replaced by
    the name of the stream's leader."""

    subject: str
    body: dict[str, Any] | None
    code: int = 0
    text: str = ""


def stream(name: str, replicas: int = 3, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, "storage": "file",
        "retention": "limits", "discard": "old", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
        "max_age": 0, "max_msgs_per_subject": -1, **fields,
    }  # fmt: skip


def consumer(name: str, **fields: Any) -> dict[str, Any]:
    return {"stream_name": name, "config": {"durable_name": "d", "ack_policy": "explicit", **fields}}


TAG_Z, TAG_NOT = {"placement": {"tags": ["z"]}}, {"placement": {"tags": ["!x"]}}
OVERLAP = "subjects overlap with an existing stream"
NOT_FOUND, NO_CONSUMER = (10059, "stream not found"), (10014, "consumer not found")

TABLE = (
    Asked("STREAM.CREATE.S", stream("S", 5), 10005, NONE),
    Asked("STREAM.CREATE.S", stream("S", **TAG_Z), 10005, f"{NONE}, tags not matched ['z']"),
    Asked("STREAM.CREATE.S", stream("S", 3, **TAG_NOT), 10005, f"{NONE}, tags excluded ['x']"),
    Asked("STREAM.CREATE.S", stream("S", placement={"cluster": "zz"}), 10005, NONE),
    Asked("STREAM.CREATE.S", stream("S", 6), 10052, "maximum replicas is 5"),
    Asked("STREAM.CREATE.S", stream("S", -1), 10133, "replicas count cannot be negative"),
    Asked("STREAM.UPDATE.S", stream("S"), *NOT_FOUND),
    Asked("STREAM.CREATE.S", stream("S")),
    Asked("STREAM.CREATE.S", stream("S")),
    Asked("STREAM.CREATE.S", stream("S", max_msgs=5), 10058,
          "stream name already in use with a different configuration"),
    Asked("STREAM.CREATE.T", stream("T", subjects=["S.x"]), 10065, OVERLAP),
    Asked("STREAM.CREATE.I", stream("I", retention="interest")),
    Asked("STREAM.UPDATE.I", stream("I", retention="interest", subjects=["S.y"]), 10065, OVERLAP),
    Asked("STREAM.UPDATE.S", stream("S", storage="memory"), 10052,
          "stream configuration update can not change storage type"),
    Asked("STREAM.UPDATE.S", stream("S", 1, placement={"tags": ["x"]}), 10123,
          "can not move and scale a stream in a single update"),
    Asked("STREAM.UPDATE.S", stream("S", **TAG_Z), 10005, f"{NONE}, tags not matched ['z']"),
    Asked("STREAM.UPDATE.S", stream("S", 5), 10005, NONE),
    Asked("STREAM.CANCEL_MOVE.S", None, 10129, "stream reconfiguration not in progress"),
    Asked("STREAM.CANCEL_MOVE.Z", None, *NOT_FOUND),
    Asked("STREAM.PEER.REMOVE.S", {"peer": ""}, 10003, "bad request"),
    Asked("STREAM.PEER.REMOVE.S", {"peer": "zz"}, 10040, "peer not a member"),
    Asked("STREAM.PEER.REMOVE.S", {"peer": "a"}, 10075, "peer remap failed"),
    Asked("STREAM.PEER.EVACUATE.S", {"peer": "a"}, 10075, "peer remap failed"),
    Asked("STREAM.PEER.REMOVE.Z", {"peer": "a"}, *NOT_FOUND),
    Asked("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "zz"}}, 10005,
          'preferred server "zz" not known'),
    Asked("STREAM.LEADER.STEPDOWN.S", {"placement": {"tags": ["z"]}}, 10005, "no replacement peer connected"),
    Asked("STREAM.LEADER.STEPDOWN.S", {"placement": {"cluster": "zz"}}, 10005,
          "no replacement peer connected"),
    Asked("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "LEADER"}}, 10005,
          'preferred server "LEADER" is already leader'),
    Asked("CONSUMER.DURABLE.CREATE.Z.d", consumer("Z"), *NOT_FOUND),
    Asked("CONSUMER.DURABLE.CREATE.S.d", consumer("S", num_replicas=5), 10126,
          "consumer config replica count exceeds parent stream"),
    Asked("CONSUMER.DURABLE.CREATE.I.d", consumer("I", num_replicas=1), 10134,
          "consumer config replicas must match interest retention stream's replicas"),
    Asked("CONSUMER.DURABLE.CREATE.S.d", consumer("S")),
    Asked("CONSUMER.DURABLE.CREATE.S.d", consumer("S") | {"action": "create"}),
    Asked("CONSUMER.DURABLE.CREATE.S.d", consumer("S", max_ack_pending=7) | {"action": "create"}, 10148,
          "consumer already exists"),
    Asked("CONSUMER.DURABLE.CREATE.S.d", consumer("S", ack_policy="none"), 10012,
          "ack policy can not be updated"),
    Asked("CONSUMER.DURABLE.CREATE.S.e", {
        "stream_name": "S", "config": {"durable_name": "e", "ack_policy": "explicit"}, "action": "update",
    }, 10149, "consumer does not exist"),
    Asked("CONSUMER.PEER.REMOVE.S.d", {"peer": "zz"}, 10040, "peer not a member"),
    Asked("CONSUMER.PEER.REMOVE.S.d", {"peer": "a"}, 10075, "peer remap failed"),
    Asked("CONSUMER.PEER.REMOVE.S.z", {"peer": "a"}, *NO_CONSUMER),
    Asked("CONSUMER.DELETE.S.z", None, *NO_CONSUMER),
    Asked("CONSUMER.DELETE.S.d", None),
    Asked("STREAM.DELETE.Z", None, *NOT_FOUND),
    Asked("SERVER.REMOVE", {"peer": "zz"}, 10044, "server is not a member of the cluster"),
    Asked("SERVER.EVACUATE", {"peer": "zz"}, 10044, "server is not a member of the cluster"),
    Asked("META.LEADER.STEPDOWN", {"placement": {"preferred": "zz"}}, 10005,
          'preferred server "zz" not known'),
    Asked("STREAM.DELETE.I", None),
    Asked("ACCOUNT.PURGE.$G", None),
    Asked("STREAM.DELETE.S", None, *NOT_FOUND),
)  # fmt: skip


class MetaAnswers:
    """The meta state of such a cluster, and what the meta leader answers."""

    def __init__(self) -> None:
        self.group = MetaGroup(0)
        for name, tags in TAGS.items():
            self.group.join(name.upper(), tags=tags)
        self._origin = requests.MetaRequest(
            account="$G", clusters=("c",), engine=EngineConfig(is_clustered=True), ticket=b"t"
        )

    def leader_of(self, name: str) -> str:
        """The server that leads a stream."""
        return self.group.stream(name).group.peers[0].lower()

    def answer(self, subject: str, body: dict[str, Any] | None) -> tuple[int, str]:
        """The code and description of the error; (0, "") for success."""
        for verbs, handler in self._handlers().items():
            if subject == verbs or subject.startswith(f"{verbs}."):
                args = subject.removeprefix(verbs).removeprefix(".").split(".")
                try:
                    command = handler(args, json.dumps(body or {}).encode())
                except JetStreamApiError as error:
                    return error.err_code, error.description
                return self._apply(command) if command is not None else OK
        raise AssertionError(f"no handler of {subject}")

    def _apply(self, command: MetaCommand) -> tuple[int, str]:
        for effect in self.group.apply(command):
            if isinstance(effect, Refused):
                return effect.error.err_code, effect.error.description
        return OK

    def _handlers(self) -> dict[str, Callable[[list[str], bytes], MetaCommand | None]]:
        origin, tables = self._origin, self.group.machine.tables
        account = origin.account
        return {
            "STREAM.CREATE": lambda args, body: requests.create_stream(
                origin, decode(StreamConfigRequest, body)
            ),
            "STREAM.UPDATE": lambda args, body: requests.update_stream(
                tables, origin, decode(StreamConfigRequest, body)
            ),
            "STREAM.DELETE": lambda args, body: commands.DeleteStream(account, args[0], ticket=b"t"),
            "STREAM.CANCEL_MOVE": lambda args, body: commands.CancelMove(account, args[0], b"t"),
            "STREAM.PEER": lambda args, body: requests.remove_from_stream(
                origin, args[1], decode(PeerRemoveRequest, body)
            ),
            "STREAM.LEADER.STEPDOWN": self._step_down,
            "CONSUMER.DURABLE.CREATE": lambda args, body: requests.create_consumer(
                tables, origin, args[1], decode(ConsumerCreateRequest, body)
            ),
            "CONSUMER.DELETE": lambda args, body: commands.DeleteConsumer(account, *args, ticket=b"t"),
            "CONSUMER.PEER": self._remove_from_consumer,
            "SERVER.REMOVE": lambda args, body: commands.RemoveServer(
                requests.find_server(tables, decode(ServerRemoveRequest, body)), b"t"
            ),
            "SERVER.EVACUATE": lambda args, body: commands.EvacuateServer(
                requests.find_server(tables, decode(ServerRemoveRequest, body)), b"t"
            ),
            "META.LEADER.STEPDOWN": self._meta_step_down,
            "ACCOUNT.PURGE": lambda args, body: commands.PurgeAccount(args[0], 64, b"t"),
        }

    def _step_down(self, args: list[str], body: bytes) -> None:
        present = self.group.stream(args[0])
        leader = present.group.peers[0]
        requests.stream_step_down(
            self.group.machine.tables, present, leader, decode(LeaderStepDownRequest, body)
        )

    def _meta_step_down(self, args: list[str], body: bytes) -> None:
        tables = self.group.machine.tables
        requests.meta_step_down(tables, list(tables.peers), "A", decode(LeaderStepDownRequest, body))

    def _remove_from_consumer(self, args: list[str], body: bytes) -> None:
        request = decode(PeerRemoveRequest, body)
        raise requests.check_consumer_removal(self.group.machine.tables, "$G", args[1], args[2], request)
