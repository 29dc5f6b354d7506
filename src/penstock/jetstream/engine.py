"""One account's JetStream: its streams and consumers, the API that manages them, and the order of a tick.

The server drives it: `apply`, `write`, `acknowledge`, `deliver` at the end of each tick, `on_time` when
`next_deadline` has come. Between two ticks, publishes gather in the streams' batches and acks in the
consumers' sinks; whatever has work is in a dirty list, whose first entry wakes the server.

Ordering contracts:
- apply before write before acknowledge: an ack leaves only after its record is with the operating system
  (on the disk with sync_always).
- deliver after write: a consumer never sees a message that a crash could take back.
- API requests see every publish that arrived before them: their sinks run `apply` first.

No IO, no clock, no randomness of its own: files are the store's, time and ids come in as callables.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

import msgspec

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.jetstream import config as stream_config
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.api import ApiService
from penstock.jetstream.api.waiting import WaitingRequests
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.claims import SubjectClaims, bounded
from penstock.jetstream.consumer.consumer import Consumer
from penstock.jetstream.consumer.interest import InterestWatch
from penstock.jetstream.consumer.turns import Turns
from penstock.jetstream.containment import Containment
from penstock.jetstream.deadlines import Deadlines, earliest
from penstock.jetstream.groupcommit import GroupCommit
from penstock.jetstream.indexing import SubjectIndexing
from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.opening import Opening
from penstock.jetstream.slices import Slices
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.stream.origins import check_among
from penstock.jetstream.stream.overflow import Overflow
from penstock.jetstream.stream.stream import Stream, StreamMeta
from penstock.jetstream.transfers import Transfers
from penstock.kernels.sinks import DirtyList, Sink
from penstock.kernels.subjects import SubscriptionIndex
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiStats, PersistMode, StreamConfig, StreamConfigRequest
from penstock.protocol.transforms import Below
from penstock.store.interface import AccountStore, StreamStore

log = logging.getLogger("penstock.jetstream")

CONSUMERS_TICK = 1024  # consumers, or deadlines, that one tick works on: 20 ms at most, and 2 ms mostly
EXPIRY_WORK = 512 * 1024  # of all streams in a tick: 1 ms, in the units of slices.py
AGAIN_NS = 100_000_000  # until the next tick at the latest, after a step that failed


class JetStream:
    """The engine of one account.

    index: the account's subscriptions; the engine adds its own sinks. stores: where streams are kept.
    clock: ns since epoch. new_id: an unused id (for consumers and advisories). wake: called when there is
    work for the end of a tick. below: `below(n)` draws evenly from 0..n-1 (for subject transforms).
    """

    def __init__(
        self,
        index: SubscriptionIndex,
        stores: AccountStore,
        *,
        config: EngineConfig,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        wake: Callable[[], None],
        below: Below = lambda n: 0,
    ) -> None:
        self.index = index
        self.stores = stores
        self.config = config
        self.clock = clock
        self.new_id = new_id
        self.streams: dict[str, Stream] = {}
        self.claims = SubjectClaims()  # of the streams, and of those that are being restored
        self.offline: dict[str, str] = {}  # streams that could not be opened, and why
        self.advisories = Advisories(index, clock=clock, new_id=new_id, domain=config.domain)
        self.api_stats = ApiStats(level=config.api_level)
        self.capacity = Capacity(self)
        self.describe_client: Callable[[Sink], dict[str, Any] | None] | None = None
        self.batches = BatchContext(lambda: self.config, abandoned=self.advisories.batch_abandoned)
        self.dirty_streams = DirtyList(wake)
        self.dirty_consumers = DirtyList(wake)
        self.wake = wake
        self._below = below
        self._unwritten: dict[str, Stream] = {}
        self._changed: dict[str, Stream] = {}  # since consumers looked for news last
        self._lagging: dict[Consumer, None] = {}  # consumers whose last write failed
        self._active: dict[Consumer, None] = {}  # an ordered set: consumers with something to do this tick
        # True while kernels send from buffers and blocks: whoever changes those meanwhile would leave them
        # with dangling pointers. An API request that arrives then (a message delivered to an API subject, a
        # pub ack whose reply is one) waits for the next tick.
        self.is_routing = False
        self._written: list[Consumer] = []  # consumers in this tick, which may confirm acks
        self._deferred: list[Callable[[], object]] = []
        self._deadlines: Deadlines[Stream | Consumer] = Deadlines()
        self._unsynced: dict[str, None] = {}
        self.overflow = Overflow(wake)
        self.requests = WaitingRequests()  # of the whole server, once it has set its own
        self.group = GroupCommit(self)
        self._sync_due: int | None = None
        self._failing: dict[str, Stream] = {}  # streams whose last write failed
        self._retry_due: int | None = None
        self.containment = Containment(self)
        self._stream_failed = self.containment.stream_failed
        self._consumer_failed = self.containment.consumer_failed
        self._may_send = True  # what was applied was written since a step failed
        self._again: list[Consumer] = []  # to be looked at in the next tick
        self._again_due: int | None = None
        self.interest = InterestWatch(index)
        self.turns = Turns()
        self.indexing = SubjectIndexing(wake)
        self.slices = Slices(self)
        self.transfers = Transfers(self)
        self.sourcing = Sourcing(self)
        self._opening = Opening(self)
        self._api = ApiService(self)

    # --- life ----------------------------------------------------------------------------------

    def recover(self, now: int) -> None:
        """Opens every stored stream with its consumers, then answers requests. See opening.py."""
        self._opening.recover(now)
        faults.contain(self.sourcing.retire_orphans, self.containment.work_failed)
        self._api.start()

    def serve(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        """Answers a request to the API that came before the engine listened."""
        self._api.on_request(subject, reply, header, payload, origin)

    def adopt(self, store: StreamStore) -> Generator[int, None, Stream]:
        """A stream with messages and consumers becomes one of the account's; its store is open. Yields work
        in the units of slices.py."""
        stream = yield from self._opening.adopt(store)
        self.advisories.stream_action(stream.name, "create")
        return stream

    def end_pulls(self) -> None:
        """The server is about to stop: tells everybody whose pull request waits."""
        for stream in list(self.streams.values()):
            for consumer in list(stream.consumers.values()):
                faults.contain(consumer.end_pulls, self.containment.work_failed)

    def close(self) -> None:
        """Takes no more messages, writes what is left and closes every store."""
        failed = self.containment.work_failed
        for stop in (self._api.stop, self.slices.stop, self.transfers.stop, self.sourcing.stop):
            faults.contain(stop, failed)
        for stream in list(self.streams.values()):
            faults.contain(stream.unsubscribe, failed, self.index)
        for stream in list(self.streams.values()):
            faults.contain(self._finish_sync, self._stream_failed, stream)
        self.apply(self.clock())
        self.write()
        for stream in list(self.streams.values()):
            faults.contain(self._finish_sync, self._stream_failed, stream)
        self.acknowledge()
        for stream in self.streams.values():
            stream.atomic.drop()
            for close in (*(consumer.close for consumer in stream.consumers.values()), stream.store.close):
                faults.contain(close, partial(self._closing_failed, stream))
        self.streams.clear()

    def _closing_failed(self, stream: Stream, error: Exception) -> None:
        if not isinstance(error, StoreError):
            faults.note(f"closing stream {stream.name}", error)
        log.error("stream %s: closing it failed: %s", stream.name, error)

    def _finish_sync(self, stream: Stream) -> None:
        """Waits for a sync that is under way."""
        if stream.syncing:
            try:
                stream.store.sync()
            except StoreError as error:
                log.error("stream %s: syncing it failed: %s", stream.name, error)

    # --- the tick ------------------------------------------------------------------------------

    # Each step is contained as a whole, and in it the work on each stream and consumer: containment.py.

    def apply(self, now: int) -> None:
        """Applies publishes, then consumers' acks."""
        faults.contain(self._apply, self.containment.step_failed, now)

    def _apply(self, now: int) -> None:
        ready = dict.fromkeys(self.group.take_ready())
        for stream in [*ready, *cast("list[Stream]", self.dirty_streams.take())]:
            if self.streams.get(stream.name) is stream:  # else deleted or set aside in this very tick
                faults.contain(self._apply_stream, self._stream_failed, stream, now, stream in ready)
        again, self._again = self._again, []
        for consumer in [*again, *cast("list[Consumer]", self.dirty_consumers.take())]:
            faults.contain(self._apply_consumer, self._consumer_failed, consumer, now)
        while self._deferred:
            faults.contain(self._deferred.pop(0), self.containment.work_failed)

    def _apply_stream(self, stream: Stream, now: int, was_held: bool) -> None:
        if stream.syncing:
            self.group.hold(stream)
            return
        self._admit(stream)
        if was_held and (stream.next_deadline() or now + 1) <= now:
            stream.expire(now, EXPIRY_WORK)  # came while it was synced
        stream.apply_pending(now)
        self._note_stream(stream)

    def _apply_consumer(self, consumer: Consumer, now: int) -> None:
        consumer.apply(now)
        self._active[consumer] = None
        self._remove_settled(consumer)

    def write(self) -> None:
        """Hands what is new to the operating system; with sync_always to the disk."""
        faults.contain(self._write, self.containment.step_failed)

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, {}
        for stream in unwritten.values():
            if stream.syncing:
                self._unwritten[stream.name] = stream  # time changed it: nobody waits for that
            else:
                faults.contain(self._write_stream, self._stream_failed, stream)
        self._written = self._first_active()
        for consumer in self._written:
            faults.contain(self._write_consumer, self._consumer_failed, consumer)
        if self._unsynced and self._sync_due is None:
            self._sync_due = self.clock() + self.config.sync_interval_ns
        self._may_send = True

    def acknowledge(self) -> None:
        """Sends pub acks and confirmations of consumer acks. Only after `write`."""
        if self._may_send:
            faults.contain(self._acknowledge, self.containment.step_failed)

    def _acknowledge(self) -> None:
        self.is_routing = True
        try:
            faults.contain(self._answer_overflow, self.containment.work_failed)
            for stream in list(self._changed.values()):
                if not stream.syncing:
                    faults.contain(self._acknowledge_stream, self._stream_failed, stream)
            for consumer in self._written:
                if consumer in self._active and consumer not in self._lagging:
                    faults.contain(self._confirm, self._consumer_failed, consumer)
        finally:
            self.is_routing = False

    def _answer_overflow(self) -> None:
        self.overflow.answer(self.index, self.clock())

    def _acknowledge_stream(self, stream: Stream) -> None:
        stream.acknowledge(self.index)

    def _confirm(self, consumer: Consumer) -> None:
        consumer.confirm()

    def deliver(self, now: int) -> None:
        """Lets consumers with work send messages, and writes what they noted about it."""
        if self._may_send:
            faults.contain(self._deliver_all, self.containment.step_failed, now)

    def _deliver_all(self, now: int) -> None:
        changed, self._changed = self._changed, {}
        for stream in changed.values():
            if stream.write_failure is None and not stream.syncing:
                news = faults.contain(self._with_news, self._stream_failed, stream)
                self._active.update(dict.fromkeys(news or ()))
        active = self._first_active()
        if len(active) == len(self._active):
            self._active = {}
        else:
            for consumer in active:
                del self._active[consumer]
            self.wake()
        self._deliver(active, now)
        for advance in (
            partial(self.sourcing.advance, changed),
            self.transfers.advance,
            self.slices.advance,
        ):
            faults.contain(advance, self.containment.work_failed, now)
        faults.contain(self.indexing.advance, self.containment.work_failed)

    def _first_active(self) -> list[Consumer]:
        """Consumers that have their turn in a tick: ten thousand take a tenth of a second. Those that became
        active first are first, and the others follow in the next ticks."""
        return list(itertools.islice(self._active, CONSUMERS_TICK))

    def _with_news(self, stream: Stream) -> list[Consumer]:
        """The consumers that waited for what the stream now holds."""
        return [] if stream.wiring is None else stream.wiring.with_news()

    def _deliver(self, consumers: list[Consumer], now: int) -> None:
        share = self.turns.share(len(consumers))
        self.is_routing = True
        try:
            for consumer in self.turns.in_order(consumers):
                if consumer.stream.syncing:
                    self.group.hold_consumer(consumer)
                else:
                    faults.contain(self._deliver_one, self._consumer_failed, consumer, now, share)
        finally:
            self.is_routing = False

    def _deliver_one(self, consumer: Consumer, now: int, share: int) -> None:
        consumer.deliver(now, share)
        self._write_consumer(consumer)
        if self._remove_settled(consumer):  # without acks, a delivery settles
            self.wake()
        self._deadlines.set(consumer, consumer.next_deadline())

    def begin_again(self) -> None:
        """A step failed as a whole, and who has work is not known any more: the next tick looks at
        everything, and nothing leaves before that was written."""
        self._may_send = False
        self.group.ready = list(self.streams.values())
        for stream in self.streams.values():
            self._unwritten[stream.name] = self._changed[stream.name] = stream
            self._again += stream.consumers.values()
        self._again_due = self.clock() + AGAIN_NS

    def synced(self, stream: Stream, error: StoreWriteError | None, held: list[Consumer]) -> None:
        """A sync in the background is done: what the stream's tick held back of acks and deliveries."""
        faults.contain(self._synced, self._stream_failed, stream, error, held)

    def _synced(self, stream: Stream, error: StoreWriteError | None, held: list[Consumer]) -> None:
        if error is not None:
            self._failed_to_write(stream, error)
        else:
            stream.kept_seq = stream.log.last_seq
        self.is_routing = True
        try:
            stream.acknowledge(self.index)
        finally:
            self.is_routing = False
        news = self._with_news(stream) if error is None else []
        self._deliver([one for one in dict.fromkeys([*held, *news]) if not one.closed], self.clock())
        self.sourcing.advance([stream.name], self.clock())
        if stream.name in self._unwritten:
            self.wake()

    def defer(self, work: Callable[[], object]) -> None:
        """Runs `work` in the next tick, after what is pending was applied."""
        self._deferred.append(work)
        self.wake()

    def may_answer(self) -> bool:
        """Applies what arrived before, for a request that only reads. False: it has to wait."""
        group = self.group
        if self.is_routing or group.count:
            return False
        if self.dirty_streams or self.dirty_consumers or self._deferred or group.ready:
            self.apply(self.clock())
        return True

    def next_deadline(self) -> int | None:
        """When (ns) `on_time` wants to be called; None when nothing waits for time."""
        others = earliest(self.transfers.next_deadline(), self.sourcing.next_deadline(), self._again_due)
        return earliest(self._deadlines.earliest(), self._sync_due, self._retry_due, others)

    def on_time(self, now: int) -> None:
        """Does what is due at `now`: expiries, redeliveries, heartbeats, the periodic sync."""
        faults.contain(self._on_time, self.containment.step_failed, now)

    def _on_time(self, now: int) -> None:
        self._again_due = None
        # Those that are left are due at once again: the timer brings another turn. They are taken one by one,
        # because a stream with more to expire is due again behind the others.
        work = EXPIRY_WORK
        for _ in range(CONSUMERS_TICK):
            due = self._deadlines.take_due(now, 1) if work > 0 else []
            if not due:
                break
            thing = due[0]
            if isinstance(thing, Stream):
                work -= faults.contain(self._stream_on_time, self._stream_failed, thing, now) or 0
            else:
                faults.contain(self._consumer_on_time, self._consumer_failed, thing, now)
        for on_time in (self.transfers.on_time, self.sourcing.on_time):
            faults.contain(on_time, self.containment.work_failed, now)
        if self._sync_due is not None and self._sync_due <= now:
            self._sync_due = None
            self._sync()
        if self._retry_due is not None and self._retry_due <= now:
            self._retry_due = None
            for stream in self._failing.values():
                self._touch(stream)
            for consumer in self._lagging:
                self.touch_consumer(consumer)

    def _stream_on_time(self, stream: Stream, now: int) -> int:
        """Returns the work it did."""
        if stream.syncing:
            self.group.hold(stream)  # what time stores must not leave with the sync that is under way
            return 0
        self._admit(stream)
        work = stream.expire(now, EXPIRY_WORK)
        self._touch(stream)
        return work

    def _admit(self, stream: Stream) -> None:
        """Tells the stream what the account allows it to store just now."""
        stream.refuse_all = stream.write_failure or self.capacity.refusal(stream)
        stream.bytes_end = self.capacity.bytes_end(stream)

    def _consumer_on_time(self, consumer: Consumer, now: int) -> None:
        consumer.on_time(now)
        self.touch_consumer(consumer)

    def touch_stream(self, stream: Stream) -> None:
        """A request changed the stream: it is written, all its consumers look at it in this tick."""
        stream.sync_at_once = self.config.sync_always
        self._touch(stream)

    def keep_change(self, stream: Stream) -> None:
        """Writes what a request changed before it is answered. Raises StoreWriteError: the change holds, and
        is written when that works again, but until then it could be lost."""
        self.touch_stream(stream)
        self._unwritten.pop(stream.name, None)
        self._write_stream(stream)
        if stream.write_failure is not None:
            raise StoreWriteError(stream.write_failure.description)

    def keep_removals(self, stream: Stream) -> None:
        """Writes what acks removed from an interest or work-queue stream, when it waits to be written.

        A consumer may end only after that: until then its state alone tells what it acked. After a crash in
        between, the next consumer of a work queue would get messages whose acks were confirmed. Raises
        StoreWriteError.
        """
        if stream.needs is not None and not stream.syncing and not stream.log.is_written:
            self.keep_change(stream)

    def _touch(self, stream: Stream) -> None:
        self._note_stream(stream)
        self._active.update(dict.fromkeys(stream.consumers.values()))
        self.wake()

    def touch_consumer(self, consumer: Consumer) -> None:
        """The consumer has something to do in this tick."""
        self._active[consumer] = None
        self.wake()

    def _remove_settled(self, consumer: Consumer) -> int:
        """What the consumer settled leaves an interest or work-queue stream, unless another one needs it."""
        stream = consumer.stream
        if stream.needs is None or consumer.closed:
            return 0
        gone = stream.needs.settle(consumer.pump)
        if gone:
            self._note_stream(stream)
        return gone

    def _note_stream(self, stream: Stream) -> None:
        self.capacity.note(stream)
        self._unwritten[stream.name] = stream
        self._changed[stream.name] = stream
        self._deadlines.set(stream, stream.next_deadline())

    def _write_stream(self, stream: Stream) -> None:
        try:
            stream.write()
            if stream.is_memory:
                pass
            elif self.config.sync_always and stream.config.persist_mode is not PersistMode.ASYNC:
                self.group.sync(stream)
            else:
                self._unsynced[stream.name] = None
        except StoreWriteError as error:
            self._failed_to_write(stream, error)
        else:
            if not stream.syncing:
                stream.kept_seq = stream.log.last_seq
            if stream.write_failure is not None:
                log.warning("stream %s is written again", stream.name)
                stream.write_failure = None
                self._failing.pop(stream.name, None)
                self._active.update(dict.fromkeys(stream.consumers.values()))

    def _failed_to_write(self, stream: Stream, error: StoreWriteError) -> None:
        log.error("stream %s can not be written, its publishes are refused: %s", stream.name, error)
        stream.write_failed(str(error))
        self._failing[stream.name] = stream
        self._retry_later()

    def _write_consumer(self, consumer: Consumer) -> None:
        try:
            consumer.write()
        except StoreWriteError as error:
            log.error("consumer %s: its state is behind on disk: %s", consumer.name, error)
            self._lagging[consumer] = None
            self._retry_later()
        else:
            if consumer in self._lagging:
                del self._lagging[consumer]

    def _retry_later(self) -> None:
        if self._retry_due is None:
            self._retry_due = self.clock() + self.config.write_retry_ns

    def _sync(self) -> None:
        unsynced, self._unsynced = self._unsynced, {}
        for name in unsynced:
            stream = self.streams.get(name)
            if stream is not None:
                faults.contain(self._sync_stream, self._stream_failed, stream)

    def _sync_stream(self, stream: Stream) -> None:
        stream.store.start_sync(partial(self._synced_now_and_then, stream.name))
        stream.store.rest()

    def _synced_now_and_then(self, name: str, error: StoreWriteError | None) -> None:
        if error is None:
            return
        log.error("stream %s: the periodic sync failed, the next one tries again: %s", name, error)
        self._unsynced[name] = None
        if self._sync_due is None:
            self._sync_due = self.clock() + self.config.sync_interval_ns
            self.wake()

    # --- streams -------------------------------------------------------------------------------

    def stream(self, name: str) -> Stream:
        """The stream of that name. Raises JetStreamApiError 10059, or 10194 when it is offline."""
        stream = self.streams.get(name)
        if stream is None:
            if name in self.offline:
                raise codes.STREAM_OFFLINE_REASON.exception(err=self.offline[name], stream=name)
            raise codes.STREAM_NOT_FOUND.exception(stream=name)
        return stream

    def create_stream(self, request: Any, now: int) -> Stream:
        """The stream a StreamConfigRequest asks for; the present one when it is configured just so.

        Raises JetStreamApiError: what `config.checked` refuses, 10058 for another configuration under that
        name, 10065 for subjects of another stream, 10027, 10028 and 10047 for the account's limits.
        """
        config = self._among_others(stream_config.checked(request, self.config), request)
        present = self.streams.get(config.name)
        if self.transfers.is_restoring(config.name):
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if present is not None:
            if stream_config.same(present.config, config):
                return self._kept(present)
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if config.name in self.offline:
            self.stream(config.name)
        self._check_overlap(config)
        self.capacity.check(config, None)
        meta = msgspec.json.encode(StreamMeta(config, now))
        try:
            store = self.stores.create_stream(config.name, meta, config.storage.value)
        except StoreError as error:
            log.error("stream %s can not be created: %s", config.name, error)
            raise codes.STREAM_CREATE.exception(err=str(error)) from error
        try:
            stream = self.streams[config.name] = self.new_stream(config, store, now)
            self.claims.hold(config.name, config.subjects)
            stream.number_from_first()
            stream.subscribe(self.index)
            self.sourcing.follow(stream)
        except Exception:
            half_made = self.streams.get(config.name)
            if half_made is not None:
                self.containment.take_out(half_made)
            self.claims.release(config.name)
            # A restart must not meet what can't be opened.
            faults.contain(store.delete, partial(self.containment.still_kept, config.name))
            raise
        self.touch_stream(stream)
        self.advisories.stream_action(stream.name, "create")
        return stream

    def _kept(self, present: Stream) -> Stream:
        """The answer that a stream exists promises it, as that to its creation does. Raises 10049."""
        try:
            present.store.sync_name()
        except StoreError as error:
            raise codes.STREAM_CREATE.exception(err=str(error)) from error
        return present

    def check_restore(self, request: StreamConfigRequest) -> StreamConfig:
        """The configuration of a stream that is to be restored. Raises JetStreamApiError like create_stream,
        and 10130 for a name in use."""
        config = self._among_others(stream_config.restored(request, self.config), request)
        self._check_overlap(config)
        self.capacity.check(config, None)
        name = config.name
        if name in self.streams or name in self.offline or self.transfers.is_restoring(name):
            raise codes.STREAM_NAME_EXIST_RESTORE_FAILED.exception(stream=name)
        return config

    def update_stream(self, request: Any, now: int) -> Stream:
        """Changes a stream's configuration. Raises JetStreamApiError like create_stream, 10059, 10052."""
        stream = self.stream(request.name)
        config = self._among_others(stream_config.updated(stream.config, request, self.config), request)
        self._check_consumer_limits(stream, config)
        self._check_overlap(config)
        self.capacity.check(config, stream)
        with self.containment.changing(stream):
            try:
                stream.update(config, now)
            except StoreError as error:
                log.error("stream %s: its new configuration can not be written: %s", stream.name, error)
                raise codes.STREAM_UPDATE.exception(err=str(error)) from error
            self.claims.hold(config.name, config.subjects)
            stream.subscribe(self.index)
            self.sourcing.follow(stream)
        self.touch_stream(stream)
        self.advisories.stream_action(stream.name, "modify")
        return stream

    def delete_stream(self, name: str) -> None:
        """Removes a stream with its messages and consumers, also one that is offline.

        Raises JetStreamApiError 10059, and 10050 where its files can't be removed: it is offline then, for a
        restart may find it, until another request removes it.
        """
        try:
            if name in self.offline:
                self.stores.delete_stream(name)
                del self.offline[name]
                self.claims.release(name)
                self.sourcing.retire_orphans()
            else:
                stream = self.stream(name)
                with self.containment.changing(stream):
                    self._delete_stream(stream)
        except StoreError as error:
            log.error("stream %s: its files can not be removed: %s", name, error)
            raise codes.STREAM_DELETE.exception(err=str(error)) from error
        self.advisories.stream_action(name, "delete")

    def _delete_stream(self, stream: Stream) -> None:
        try:
            stream.store.delete()  # first: a stream that may come back needs its consumers in its origins
        except StoreError as error:
            self.containment.set_aside(stream, str(error))
            raise
        stream.unsubscribe(self.index)
        self.sourcing.forget(stream)
        stream.atomic.drop()
        self.drop_stream(stream)
        self.group.drop(stream)
        self.claims.release(stream.name)
        for consumer in list(stream.consumers.values()):
            self.forget_consumer(consumer)
            consumer.end()
            self.advisories.consumer_action(stream.name, consumer.name, "delete")
        stream.consumers.clear()

    def drop_stream(self, stream: Stream) -> None:
        """A stream goes away: no more turns and deadlines for it."""
        name = stream.config.name
        is_known = self.streams.get(name) is stream
        if is_known:
            del self.streams[name]
        for table in (self._unwritten, self._changed, self._failing, self._unsynced):
            table.pop(name, None)
        if is_known:
            self.capacity.forget(stream)
        self._deadlines.set(stream, None)

    def _among_others(self, config: StreamConfig, request: StreamConfigRequest) -> StreamConfig:
        def find(name: str) -> StreamConfig | None:
            stream = self.streams.get(name)
            return stream.config if stream is not None else None

        return check_among(config, find, pedantic=request.pedantic)

    def delete_offline_consumer(self, stream: Stream, name: str, *, sync: bool) -> None:
        """Removes what is kept of a consumer that does not work; what only that one needed goes with it.

        Raises StoreWriteError. sync: power loss does not bring it back.
        """
        stream.store.delete_consumer(name, sync=sync)
        del stream.offline[name]
        if stream.needs is not None and not stream.offline:
            stream.needs.held = False
            stream.consumer_left(held_back=True)
        self.touch_stream(stream)
        self.advisories.consumer_action(stream.name, name, "delete")

    def forget_consumer(self, consumer: Consumer) -> None:
        """A consumer goes away: no more turns and deadlines for it."""
        self._active.pop(consumer, None)
        self._lagging.pop(consumer, None)
        self._deadlines.set(consumer, None)

    def new_stream(self, config: StreamConfig, store: Any, created: int) -> Stream:
        """A stream over its store, which nothing reaches yet."""
        stream = Stream(
            config,
            store,
            created=created,
            domain=self.config.domain,
            api_level=self.config.api_level,
            dirty=self.dirty_streams,
            full=self.overflow.full,
            below=self._below,
            batches=self.batches,
        )
        self.overflow.bound(stream, self.config, is_held=False)
        stream.fast.may_start = partial(self.capacity.may_start_fast_batch, stream)
        stream.fast.config = lambda: self.config
        stream.fast.abandoned = partial(self.advisories.batch_abandoned, stream.name, reason="timeout")
        return stream

    def _check_consumer_limits(self, stream: Stream, config: StreamConfig) -> None:
        """Limits that change may not be below what the consumers have (10069)."""
        before, limits = stream.config.consumer_limits, config.consumer_limits
        if limits == before:
            return
        violated = [
            name
            for name, consumer in sorted(stream.consumers.items())
            if 0 < limits.inactive_threshold < consumer.config.inactive_threshold
            or 0 < limits.max_ack_pending < consumer.config.max_ack_pending
        ]
        if violated:
            err = f"change to limits violates consumers: {', '.join(violated)}"
            raise codes.STREAM_UPDATE.exception(err=err)

    def _check_overlap(self, config: StreamConfig) -> None:
        with bounded(stream_config.refuse):
            if self.claims.collide(config.name, config.subjects):
                raise codes.STREAM_SUBJECT_OVERLAP.exception(stream=config.name)
