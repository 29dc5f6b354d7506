"""A server's API in a cluster whose every answer the test gives: what this server knows about a request, when
its reads are confirmed, and what the groups of its streams do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from penstock.jetstream.api.api_table import ApiRequest
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.meta.meta_commands import MetaCommand
from penstock.jetstream.meta.meta_requests import MetaRequest
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.request_routing import AssetView, RequestView
from penstock.protocol.api import StreamConfigRequest
from penstock.raft.membership import Membership
from penstock.server.replicated.cluster_api import ClusterApi
from penstock.server.replicated.request_tickets import PassedRequest
from tests.support.engine import Message
from tests.support.meta_groups import MetaGroup
from tests.support.replicated_engines import ReplicatedEngines

LEADS = AssetView(is_member=True, is_leader=True, is_current=True)
FOLLOWS = AssetView(is_member=True, is_current=True)
LEADERLESS = AssetView(is_member=True, has_leader=False)
ELSEWHERE = AssetView()


class ScriptedStreamGroup:
    """The group of a stream as the API uses it. deferred: requests that wait here. noted: requests that were
    about to be served, with is_late. stepped_down: to whom."""

    def __init__(self, *voters: str) -> None:
        self.is_serving = True
        self.is_changing = False
        self.defers_requests = False
        self.takes_late_requests = False
        self.is_electing = False
        self.applied_all = True
        self.membership = Membership(voters)
        self.deferred: list[PassedRequest] = []
        self.noted: list[tuple[PassedRequest, bool]] = []
        self.served: set[bytes] = set()
        self.stepped_down: list[str | None] = []

    @property
    def port(self) -> ScriptedStreamGroup:
        """It is its own port."""
        return self

    def defer(self, request: PassedRequest) -> None:
        self.deferred.append(request)

    def is_first(self, request: PassedRequest, *, is_late: bool) -> bool:
        self.noted.append((request, is_late))
        return request.reply not in self.served

    def step_down(self, to: str | None = None) -> bool:
        self.stepped_down.append(to)
        return True


class ScriptedCluster:
    """Implements ClusterView. meta: the meta state, with servers A, B and C. streams, consumers: what this
    server knows of those that a request may name. reads: (done, lost) of each read that waits."""

    def __init__(self) -> None:
        self.meta = MetaGroup()
        self.is_meta_leader = False
        self.leaderless = False
        self.awaits_meta_leader = False
        self.is_new_meta_leader = False
        self.takes = True
        self.streams: dict[str, AssetView] = {}
        self.consumers: dict[tuple[str, str], AssetView] = {}
        self.groups: dict[str, ScriptedStreamGroup] = {}
        self.proposed: list[MetaCommand] = []
        self.reads: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self.deferred: list[str] = []
        self.calls: list[tuple[int, Callable[[], object]]] = []
        self.gathered: list[tuple[str, list[str]]] = []
        self.infos: dict[str, Any] = {}
        self.used: tuple[int, int] | None = (0, 0)
        self.restore: Callable[..., Any] = lambda *given: lambda store, done: None

    @property
    def tables(self) -> MetaTables:
        return self.meta.machine.tables

    def view(self, account: str, stream: str, consumer: str) -> RequestView:
        assert account == "$G"
        return RequestView(
            is_meta_leader=self.is_meta_leader,
            leaderless=self.leaderless,
            stream=self.streams.get(stream),
            consumer=self.consumers.get((stream, consumer)),
        )

    def origin(self, engine: JetStreamEngine, ticket: bytes) -> MetaRequest:
        return MetaRequest(
            account=engine.config.account, clusters=("c",), engine=engine.config, ticket=ticket
        )

    def propose(self, command: MetaCommand) -> bool:
        if self.takes:
            self.proposed.append(command)
        return self.takes

    def confirm(self, done: Callable[[], object], lost: Callable[[], object] = lambda: None) -> bool:
        self.reads.append((done, lost))
        return True

    def defer(self, account: str, request: ApiRequest) -> None:
        self.deferred.append(request.subject.removeprefix("$JS.API."))

    def later(self, delay_ns: int, call: Callable[[], object]) -> None:
        self.calls.append((delay_ns, call))

    def begin_restore(
        self, engine: JetStreamEngine, origin: MetaRequest, request: StreamConfigRequest
    ) -> Any:
        return self.restore(engine, origin, request)

    def find_group(self, account: str, stream: str) -> Any:
        return self.groups.get(stream)

    def leader_peer(self, account: str, stream: str) -> str:
        return "A"

    def usage(self, account: str) -> tuple[int, int]:
        if self.used is None:
            raise RuntimeError("no figures")
        return self.used

    def gather(
        self, account: str, stream: str, names: list[str], done: Callable[[dict[str, Any]], object]
    ) -> None:
        self.gathered.append((stream, names))
        done(self.infos)

    # --- for the tests

    def confirm_reads(self) -> int:
        """The reads that wait are current now; returns how many."""
        reads, self.reads = self.reads, []
        for done, _ in reads:
            done()
        return len(reads)

    def lose_reads(self) -> None:
        """The leadership ended before."""
        reads, self.reads = self.reads, []
        for _, lost in reads:
            lost()


class ApiUnderTest:
    """The API of an engine in such a cluster."""

    def __init__(self, *, leads_meta: bool = False) -> None:
        self.cluster = cluster = ScriptedCluster()
        cluster.is_meta_leader = leads_meta
        self.apis: list[ClusterApi] = []

        def made(engine: JetStreamEngine) -> ClusterApi:
            self.apis.append(ClusterApi(engine, cluster, engine.requests))
            return self.apis[0]

        self.engines = ReplicatedEngines(1, api=made, is_clustered=True)
        self.js = self.engines.engines[0]
        self._inboxes = itertools.count(1)

    @property
    def api(self) -> ClusterApi:
        return self.apis[0]

    def open(self, name: str = "S", **fields: Any) -> ScriptedStreamGroup:
        """This server leads a stream; its group confirms when the test says so."""
        self.engines.open(name, f"{name}.>", allow_direct=True, **fields)
        self.cluster.streams[name] = LEADS
        group = self.cluster.groups[name] = ScriptedStreamGroup("a.1")
        return group

    def ask(self, subject: str, body: Any = b"") -> list[Message]:
        """Sends a request below `$JS.API.`; returns a list that grows with its answers."""
        inbox = b"_INBOX.%d" % next(self._inboxes)
        heard = self.js.listen(inbox)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.js.send(f"$JS.API.{subject}", inbox, payload=payload)
        self.js.tick()
        return heard

    def answer(self, subject: str, body: Any = b"") -> Any:
        """The one answer of the meta leader, whose read is confirmed."""
        heard = self.ask(subject, body)
        assert heard == [], "the meta leader confirms first"
        assert self.cluster.confirm_reads() == 1
        assert len(heard) == 1, f"{subject} was answered {len(heard)} times"
        return json.loads(heard[0][2])

    def error(self, subject: str, body: Any = b"") -> tuple[int, str]:
        """The error in that answer."""
        return error_in(self.answer(subject, body))

    def proposes(self, subject: str, body: Any = b"") -> Any:
        """The one command that the meta leader proposes for a request, which is not answered yet."""
        heard = self.ask(subject, body)
        assert self.cluster.proposed == []
        assert self.cluster.confirm_reads() == 1
        assert heard == []
        [command] = self.cluster.proposed
        self.cluster.proposed.clear()
        return command


def error_in(answer: Any) -> tuple[int, str]:
    """Code and description."""
    return answer["error"]["err_code"], answer["error"]["description"]


def errors(heard: list[Message]) -> list[int]:
    """The error codes of answers; 0 for one without."""
    return [json.loads(payload).get("error", {}).get("err_code", 0) for _, _, payload in heard]


def passed(subject: str, reply: bytes, body: Any = b"") -> PassedRequest:
    """A request below `$JS.API.` that waited on another server."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PassedRequest("$G", f"$JS.API.{subject}".encode(), reply, b"", payload)
