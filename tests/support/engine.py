"""A JetStream engine in the test's own hands: no server, no sockets, a clock that is set."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from penstock.jetstream.api import ApiService
from penstock.jetstream.commands import CommandSink
from penstock.jetstream.engine import JetStreamEngine, RequestService, SharedState
from penstock.jetstream.limits import EngineConfig
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.store.interface import AccountStore
from penstock.store.memory import MemoryStore

Message = tuple[bytes, bytes, bytes]  # subject, header, payload

START_NS = 1_700_000_000_000_000_000


class EngineHarness:
    """Publishes, requests and ticks by hand; `now` is the clock (ns)."""

    def __init__(
        self,
        store: AccountStore | None = None,
        *,
        now: int = START_NS,
        shared: SharedState | None = None,
        commands: CommandSink | None = None,
        api: Callable[[JetStreamEngine], RequestService] = ApiService,
        **settings: Any,
    ) -> None:
        self.now = now
        self.wakes = 0
        self.index = SubscriptionIndex()
        self.store = store if store is not None else MemoryStore().account("$G")
        ids = itertools.count(1)
        self.engine = JetStreamEngine(
            self.index,
            self.store,
            api=api,
            config=EngineConfig(server_name="srv", version="2.14.0", **settings),
            clock=lambda: self.now,
            new_id=lambda: f"id{next(ids):06d}",
            wake=self._woken,
            shared=shared,
            commands=commands,
        )
        self.engine.recover(now)
        self._inboxes = itertools.count(1)
        self.tick()

    def _woken(self) -> None:
        self.wakes += 1

    def tick(self) -> None:
        """The end of a tick, as the server runs it."""
        self.engine.tick.apply(self.now)
        self.engine.tick.write()
        self.engine.tick.acknowledge()
        self.engine.tick.deliver(self.now)

    def wait_until(self, now: int) -> None:
        """Lets time pass, with every deadline on the way."""
        while (due := self.engine.tick.next_deadline()) is not None and due <= now:
            self.now = max(self.now, due)
            self.engine.tick.on_time(self.now)
            self.tick()
        self.now = now

    def listen(self, subject: bytes) -> list[Message]:
        """A list that grows with the messages on the subject."""
        heard: list[Message] = []

        def hear(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
            heard.append((subject, header, payload))

        self.index.insert(SinkSubscription(ServiceSink(hear), subject))
        return heard

    def send(self, subject: str, reply: bytes = b"", header: bytes = b"", payload: bytes = b"") -> None:
        """Publishes a message, without a tick."""
        publish(self.index, subject.encode(), reply, header, payload)

    def messages(self, subject: str, body: Any = b"", header: bytes = b"") -> list[Message]:
        """Everything that a request is answered with in its tick, or in those that its slices take."""
        inbox = b"_INBOX.%d" % next(self._inboxes)
        heard = self.listen(inbox)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        publish(self.index, subject.encode(), inbox, header, payload)
        self.tick()
        while self.engine.slices:
            self.tick()
        return heard

    def request(self, subject: str, body: Any = b"", header: bytes = b"") -> Any:
        """The one JSON answer to a request or publish."""
        heard = self.messages(subject, body, header)
        assert len(heard) == 1, f"{subject} was answered {len(heard)} times"
        return json.loads(heard[0][2])

    def api(self, request: str, body: Any = b"", header: bytes = b"") -> Any:
        """The answer to a `$JS.API.` request."""
        return self.request("$JS.API." + request, body, header)

    def create(self, name: str, *subjects: str, **settings: Any) -> Any:
        """STREAM.CREATE, which must work."""
        answer = self.api(
            f"STREAM.CREATE.{name}", {"name": name, "subjects": list(subjects) or [name], **settings}
        )
        assert "error" not in answer, answer
        return answer

    def state(self, name: str, **body: Any) -> dict[str, Any]:
        """The state of a stream's info."""
        state: dict[str, Any] = self.api(f"STREAM.INFO.{name}", body)["state"]
        return state

    def restart(self) -> EngineHarness:
        """The same store under a new engine; the old one just stops."""
        return EngineHarness(self.store, now=self.now)
