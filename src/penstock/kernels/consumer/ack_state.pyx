"""The delivered and acked messages of one consumer.

The window (ack_window.pxd) has an entry for each message from the oldest pending one up to the newest
delivered. It is compacted when it has many more acked entries than pending ones, so that one pending message doesn't
retain the memory of a million acked ones. Messages due for redelivery wait in a queue (ack_window.pxd). Changes are
recorded in the journal, and the complete state is written as a snapshot (both in ack_encoding.pyx).

Floors, as the official server reports them: with nothing pending both floors are the last delivered sequences;
when the oldest pending entry is settled they move to just below the next one (its stream sequence, and the
consumer sequence of its FIRST delivery, so that redeliveries don't move the consumer floor). Settling any
other entry doesn't move them. Under the policy "all" they are the sequences of the ack itself.

A message that reached max_deliver has no entry, so that it blocks no floor, but an item in `dead`, because it counts
as redelivered until it is acked after all or removed from the stream.

A message may be parked: passed over because another message of its key is in flight (key-shared delivery). It has an
entry with no deliveries, which blocks the floors like a pending one; acks, NAKs and ack waits don't affect it, and
its first delivery comes later.

A reset begins the state again at another sequence. Where it began, and how many resets there were, are a part of the
state: both are stored together with the acks that they concern, or not at all.

Rejected: a dict of sequences (a Python object per message), a bitmap (no timestamps, no delivery counts).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, UINT32_MAX, UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from penstock.kernels.consumer.ack_encoding cimport (
    Position, Record, journal_forget, journal_free, journal_op, journal_op2, journal_run, journal_take,
    journal_ts, read_record, read_snapshot, unzigzag, write_snapshot, zigzag,
)
from penstock.kernels.base.memory cimport array_grow, array_new, ring_clear, ring_drop_front, ring_free
from penstock.kernels.consumer.ack_window cimport (
    Entry, entry_at, queue_front, queue_make, queue_push, queue_remove, window_clear, window_compact,
    window_drop_front, window_find, window_make, window_push, window_reserve, window_trim,
)

cdef enum:
    # The window is compacted when it has this many entries more than four times the pending ones.
    COMPACT_SLACK = 4096

# A timestamp that makes an entry due immediately with any ack wait; safe for zigzag encoding and subtraction.
cdef int64_t DUE_TS = 0


cdef class AckState:
    def __cinit__(self, int policy, uint64_t start_seq=1, *, bint journaling=True):
        if policy < ACK_NONE or policy > ACK_EXPLICIT:
            raise ValueError(f"ack policy {policy} is not an AckPolicy")
        self.policy = policy
        self.journaling = journaling
        self.delivered_stream = self.ack_floor_stream = start_seq - 1 if start_seq else 0
        self.start_seq = start_seq
        self.dead = {}
        self.journal.ts = -1
        window_make(&self.window)
        queue_make(&self.queue)
        self.waits = <int64_t*>array_new(1, sizeof(int64_t), b"ack waits")
        self.waits[0] = INT64_MAX
        self.waits_count = 1

    def __dealloc__(self):
        ring_free(&self.window)
        journal_free(&self.journal)
        ring_free(&self.queue)
        free(self.waits)
        free(self.settled)

    # --- the window ------------------------------------------------------------------------------------

    cdef inline void settle(self, Entry* e) noexcept:
        """Settles a pending or parked entry."""
        e.pending = 0
        if self.keys is not None:
            self.keys.settle(e.seq)
        if e.deliveries == 0:
            self.num_parked -= 1
            return
        self.num_pending -= 1
        if e.deliveries > 1:
            self.redelivered -= 1
        if e.queued:
            e.queued = 0
            self.num_queued -= 1

    cdef void move_floor(self) noexcept:
        cdef Entry* e
        if self.num_pending + self.num_parked == 0:
            window_clear(&self.window)
            ring_clear(&self.queue)
            self.ack_floor_consumer = self.delivered_consumer
            self.ack_floor_stream = self.delivered_stream
            return
        window_trim(&self.window)
        e = entry_at(&self.window, 0)
        if e.cseq and e.cseq - 1 > self.ack_floor_consumer:
            self.ack_floor_consumer = e.cseq - 1
        if e.seq - 1 > self.ack_floor_stream:
            self.ack_floor_stream = e.seq - 1
        self.shrink()

    cdef inline void shrink(self) noexcept:
        if self.window.count > 4 * (self.num_pending + self.num_parked) + COMPACT_SLACK:
            window_compact(&self.window)

    # --- deliveries ------------------------------------------------------------------------------------

    cdef uint64_t deliver(self, uint64_t stream_seq, int64_t ts) except 0:
        cdef Entry* e
        cdef Py_ssize_t i
        if stream_seq <= self.delivered_stream:
            i = window_find(&self.window, stream_seq, 0)
            if i < 0:
                raise ValueError(f"redelivery of stream sequence {stream_seq}, which is not pending")
            e = entry_at(&self.window, <size_t>i)
            if self.journaling:
                journal_ts(&self.journal, ts)
                journal_op(&self.journal, c"R", stream_seq)
            if e.queued:
                self.unqueue(e)
            if e.deliveries == 1:
                self.redelivered += 1
            if e.deliveries < UINT32_MAX:
                e.deliveries += 1
            e.ts = ts
            self.delivered_consumer += 1
            if e.deliveries == 1:
                e.cseq = self.delivered_consumer
                self.num_parked -= 1
                self.num_pending += 1
            return self.delivered_consumer
        if self.policy != ACK_NONE:
            window_reserve(&self.window)
        if self.journaling:
            journal_ts(&self.journal, ts)
            journal_run(&self.journal, c"D", stream_seq)
        self.delivered_consumer += 1
        self.delivered_stream = stream_seq
        if self.policy == ACK_NONE:
            self.ack_floor_consumer = self.delivered_consumer
            self.ack_floor_stream = stream_seq
            if self.collecting:
                self.note_settled(stream_seq)
            return self.delivered_consumer
        e = window_push(&self.window)
        e.seq = stream_seq
        e.cseq = self.delivered_consumer
        e.ts = ts
        e.deliveries = 1
        e.pending = 1
        e.queued = 0
        self.num_pending += 1
        return self.delivered_consumer

    cpdef int park(self, uint64_t stream_seq) except -1:
        """Passes a message over; deliver() delivers it later."""
        cdef Entry* e
        if stream_seq <= self.delivered_stream or self.policy != ACK_EXPLICIT:
            raise ValueError(f"stream sequence {stream_seq} can't be parked: delivered {self.delivered_stream},"
                             f" ack policy {self.policy}")
        window_reserve(&self.window)
        if self.journaling:
            journal_op(&self.journal, c"P", stream_seq)
        self.delivered_stream = stream_seq
        e = window_push(&self.window)
        e.seq = stream_seq
        e.cseq = 0
        e.ts = 0
        e.deliveries = 0
        e.pending = 1
        e.queued = 0
        self.num_parked += 1
        return 0

    cdef bint is_parked(self, uint64_t stream_seq) noexcept:
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        return i >= 0 and entry_at(&self.window, <size_t>i).deliveries == 0

    cdef uint32_t deliveries_of(self, uint64_t stream_seq) noexcept:
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        return entry_at(&self.window, <size_t>i).deliveries if i >= 0 else 0

    def delivered(self, uint64_t stream_seq, int64_t ts):
        """`deliver` for Python callers (the pump calls it in C)."""
        return self.deliver(stream_seq, ts)

    def deliveries(self, uint64_t stream_seq):
        """Number of deliveries; 0 when it isn't pending."""
        return self.deliveries_of(stream_seq)

    def skip(self, uint64_t stream_seq):
        """Marks everything up to and including stream_seq as not to be delivered (a purge): advances the delivered
        sequence, and the floor with it when nothing is pending."""
        if stream_seq <= self.delivered_stream:
            return
        if self.journaling:
            journal_op(&self.journal, c"S", stream_seq)
        self.delivered_stream = stream_seq
        if self.num_pending == 0:
            self.move_floor()

    # --- acks ------------------------------------------------------------------------------------------

    cdef int ack(self, uint64_t stream_seq, uint64_t consumer_seq) except -1:
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, consumer_seq)
        if i >= 0 and entry_at(&self.window, <size_t>i).deliveries == 0:
            return 0                    # parked: no client has the message, so none can ack it
        if i < 0:
            if self.dead and stream_seq in self.dead:
                if self.journaling:
                    journal_run(&self.journal, c"A", stream_seq)
                del self.dead[stream_seq]
                if self.collecting:
                    self.note_settled(stream_seq)
            return 0
        if self.journaling:
            journal_run(&self.journal, c"A", stream_seq)
        if self.collecting:
            self.note_settled(stream_seq)
        self.settle(entry_at(&self.window, <size_t>i))
        if i == 0 or self.num_pending == 0:
            self.move_floor()
        else:
            self.shrink()
        return 1

    cdef size_t ack_all(self, uint64_t stream_seq, uint64_t consumer_seq) except? 0:
        cdef size_t before = self.num_pending
        cdef Entry* e
        if stream_seq <= self.ack_floor_stream or stream_seq > self.delivered_stream:
            return 0
        # A client may ack a redelivery that a power failure removed from the state: the message is still pending
        # from an earlier delivery, so the ack counts and its sender gets a confirmation.
        if consumer_seq > self.delivered_consumer:
            consumer_seq = self.delivered_consumer
        if self.journaling:
            journal_op2(&self.journal, c"L", stream_seq, consumer_seq)
        while self.window.count and entry_at(&self.window, 0).seq <= stream_seq:
            e = entry_at(&self.window, 0)
            if e.pending:
                if self.collecting:
                    self.note_settled(e.seq)
                self.settle(e)
            window_drop_front(&self.window)
        window_trim(&self.window)
        for dead in [seq for seq in self.dead if seq <= stream_seq]:
            del self.dead[dead]
            if self.collecting:
                self.note_settled(dead)
        self.ack_floor_stream = stream_seq
        if consumer_seq > self.ack_floor_consumer:
            self.ack_floor_consumer = consumer_seq
        if self.num_pending == 0:
            window_clear(&self.window)
            ring_clear(&self.queue)
        return before - self.num_pending

    def acked(self, uint64_t stream_seq, uint64_t consumer_seq=0):
        """`ack` (`ack_all` under the policy "all") for Python callers; returns how many messages it settled."""
        if self.policy == ACK_ALL:
            return self.ack_all(stream_seq, consumer_seq)
        return self.ack(stream_seq, consumer_seq)

    def drop(self, uint64_t stream_seq):
        """Settles a message without an ack (+TERM, removed from the stream); True when it was pending."""
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        if i < 0 or entry_at(&self.window, <size_t>i).deliveries:
            return self.ack(stream_seq, 0) == 1
        if self.journaling:
            journal_op(&self.journal, c"X", stream_seq)
        self.settle(entry_at(&self.window, <size_t>i))
        self.move_floor()
        return False

    def drop_below(self, uint64_t first_seq):
        """Settles everything below first_seq, which was removed from the stream; returns how many were pending."""
        cdef size_t before = self.num_pending, parked_before = self.num_parked
        cdef Entry* e
        cdef list gone = [seq for seq in self.dead if seq < first_seq]
        if not gone and (self.window.count == 0 or entry_at(&self.window, 0).seq >= first_seq):
            return 0
        if self.journaling:
            journal_op(&self.journal, c"B", first_seq)
        for seq in gone:
            del self.dead[seq]
        while self.window.count and entry_at(&self.window, 0).seq < first_seq:
            e = entry_at(&self.window, 0)
            if e.pending:
                self.settle(e)
            window_drop_front(&self.window)
        if before != self.num_pending or parked_before != self.num_parked:
            self.move_floor()
        return before - self.num_pending

    def truncate(self, uint64_t last_seq):
        """Drops all state above last_seq: the stream lost its end, and will use these sequences again. A position that
        began beyond the end stays at its start."""
        cdef Entry* e
        cdef size_t _
        cdef uint64_t queued
        if self.start_seq and self.start_seq - 1 > last_seq:
            last_seq = self.start_seq - 1
        while self.window.count and entry_at(&self.window, self.window.count - 1).seq > last_seq:
            e = entry_at(&self.window, self.window.count - 1)
            if e.pending:
                self.settle(e)
            self.window.count -= 1
        # The stream lost these messages in a crash, and new ones get their sequences: a stale item in the queue would
        # be taken for that of the new message.
        for _ in range(self.queue.count):
            queued = queue_front(&self.queue)
            ring_drop_front(&self.queue)
            if queued <= last_seq:
                queue_push(&self.queue, queued)
        for seq in [seq for seq in self.dead if seq > last_seq]:
            del self.dead[seq]
        if self.delivered_stream > last_seq:
            self.delivered_stream = last_seq
        if self.ack_floor_stream > last_seq:
            self.ack_floor_stream = last_seq
        if self.since and self.since - 1 > last_seq:
            self.since = last_seq + 1
        if self.num_pending == 0:
            self.move_floor()

    def reset(self, uint64_t stream_seq, uint64_t start_seq=0):
        """Begins at stream_seq, as if nothing had been delivered. start_seq: truncate() leaves the position at or after
        it; 0 for a reset within the stream, whose position follows the stream's end."""
        if stream_seq == 0 or start_seq > stream_seq:
            raise ValueError(f"consumer journal: reset to {stream_seq}, not below {start_seq}")
        if self.journaling:
            journal_op2(&self.journal, c"F", stream_seq, start_seq)
        window_clear(&self.window)
        ring_clear(&self.queue)
        self.dead.clear()
        self.recount()
        self.delivered_consumer = self.ack_floor_consumer = 0
        self.delivered_stream = self.ack_floor_stream = stream_seq - 1
        self.since = stream_seq
        self.start_seq = start_seq
        self.resets += 1

    def is_pending(self, uint64_t stream_seq):
        """Was it delivered and not settled yet?"""
        return self.deliveries_of(stream_seq) != 0

    def pending(self):
        """[(stream seq, first consumer seq, ts, deliveries)] of everything pending, in order, and of what is
        parked (no deliveries)."""
        cdef size_t i
        cdef Entry* e
        cdef list result = []
        for i in range(self.window.count):
            e = entry_at(&self.window, i)
            if e.pending:
                result.append((e.seq, e.cseq, e.ts, e.deliveries))
        return result

    @property
    def num_redelivered(self):
        """Messages delivered more than once and not acked, including those given up."""
        return self.redelivered + len(self.dead)

    # --- for streams that remove acked messages ----------------------------------------------------------

    cdef int note_settled(self, uint64_t seq) except -1:
        if self.settled_count and self.settled[2 * self.settled_count - 1] + 1 == seq:
            self.settled[2 * self.settled_count - 1] = seq
            return 0
        self.settled = <uint64_t*>array_grow(
            self.settled, &self.settled_capacity, self.settled_count + 1, 2 * sizeof(uint64_t), 16, b"runs of acks"
        )
        self.settled[2 * self.settled_count] = self.settled[2 * self.settled_count + 1] = seq
        self.settled_count += 1
        return 0

    cdef bint is_message_needed(self, uint64_t seq) except -1:
        if seq > self.delivered_stream:
            return True
        if self.policy == ACK_EXPLICIT:
            if window_find(&self.window, seq, 0) >= 0:
                return True
        elif seq > self.ack_floor_stream:
            return True
        return len(self.dead) != 0 and seq in self.dead

    def is_needed(self, uint64_t seq):
        """`is_message_needed` for Python callers."""
        return self.is_message_needed(seq)

    def take_settled(self):
        """Runs [(first, last)] of the stream sequences settled by acks since the last call, while `collecting`, in
        the order of the acks."""
        cdef size_t i
        cdef list result = [(self.settled[2 * i], self.settled[2 * i + 1]) for i in range(self.settled_count)]
        self.settled_count = 0
        return result

    # --- redelivery ------------------------------------------------------------------------------------

    def set_waits(self, list waits_ns):
        """Sets the ack waits in ns by number of deliveries (the backoff; one entry without it). Empty: never
        due."""
        cdef size_t n = len(waits_ns) or 1
        cdef int64_t* waits = <int64_t*>array_new(n, sizeof(int64_t), b"ack waits")
        cdef size_t i
        waits[0] = INT64_MAX
        try:
            for i in range(<size_t>len(waits_ns)):
                waits[i] = waits_ns[i]
        except BaseException:  # no integer, or one of more than 64 bits: the old waits stay
            free(waits)
            raise
        free(self.waits)
        self.waits = waits
        self.waits_count = n

    cdef inline int64_t wait_of(self, Entry* e) noexcept:
        cdef size_t i = e.deliveries - 1 if e.deliveries else 0
        return self.waits[i if i < self.waits_count else self.waits_count - 1]

    cdef int enqueue(self, Entry* e) except -1:
        if e.queued:
            return 0
        queue_push(&self.queue, e.seq)
        e.queued = 1
        self.num_queued += 1
        return 0

    cdef void unqueue(self, Entry* e) noexcept:
        """Removes a pending entry from the redelivery queue; usually it is at the front. A stale item must not stay:
        the entry, queued again later, would get its old position."""
        e.queued = 0
        self.num_queued -= 1
        queue_remove(&self.queue, e.seq)

    cdef uint64_t next_queued(self) except? 0:
        cdef uint64_t seq
        cdef Py_ssize_t i
        while self.queue.count:
            seq = queue_front(&self.queue)
            i = window_find(&self.window, seq, 0)
            if i >= 0 and entry_at(&self.window, <size_t>i).queued:
                return seq
            ring_drop_front(&self.queue)
        return 0

    def peek_queued(self):
        """`next_queued` for Python callers."""
        return self.next_queued()

    def expire(self, int64_t now, uint32_t max_deliver=0):
        """Queues every pending entry whose ack wait has passed, in the order of their sequences.

        Args: now in ns; max_deliver, 0 for no maximum: entries with that many deliveries are given up instead.
        Returns: (number queued, [(stream seq, deliveries)] given up, earliest deadline in ns or 0 when
        nothing else will become due).
        """
        cdef size_t i, queued = 0
        cdef Entry* e
        cdef int64_t wait, deadline, earliest = INT64_MAX
        cdef list given_up = []
        for i in range(self.window.count):
            e = entry_at(&self.window, i)
            if not e.pending or e.queued or e.deliveries == 0:
                continue
            wait = self.wait_of(e)
            deadline = INT64_MAX if wait > INT64_MAX - e.ts else e.ts + wait
            if deadline > now:
                if deadline < earliest:
                    earliest = deadline
            elif max_deliver and e.deliveries >= max_deliver:
                given_up.append((e.seq, e.deliveries))
            else:
                self.enqueue(e)
                queued += 1
        for seq, _ in given_up:
            self.give_up(seq)
        return queued, given_up, 0 if earliest == INT64_MAX else earliest

    def earliest_deadline(self):
        """When the next ack wait ends, ns; 0 when nothing will become due. Scans the window."""
        cdef size_t i
        cdef Entry* e
        cdef int64_t wait, earliest = INT64_MAX
        for i in range(self.window.count):
            e = entry_at(&self.window, i)
            if e.pending and not e.queued and e.deliveries:
                wait = self.wait_of(e)
                if wait <= INT64_MAX - e.ts and e.ts + wait < earliest:
                    earliest = e.ts + wait
        return 0 if earliest == INT64_MAX else earliest

    def give_up(self, uint64_t stream_seq):
        """Gives up a message that reached max_deliver: it is no longer pending and blocks no floor, but counts as
        redelivered. True when it was pending."""
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        if i < 0:
            return False
        if entry_at(&self.window, <size_t>i).deliveries == 0:
            self.drop(stream_seq)       # only when replaying a journal
            return False
        if self.journaling:
            journal_op(&self.journal, c"X", stream_seq)
        self.dead[stream_seq] = entry_at(&self.window, <size_t>i).deliveries
        self.settle(entry_at(&self.window, <size_t>i))
        if i == 0 or self.num_pending == 0:
            self.move_floor()
        else:
            self.shrink()
        return True

    def given_up(self):
        """[(stream seq, deliveries)] of the messages given up and not settled since, in order."""
        return sorted(self.dead.items())

    def requeue(self, uint64_t stream_seq):
        """Makes a message due now (a NAK without delay). True when it is pending and wasn't queued yet."""
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        if i < 0 or entry_at(&self.window, <size_t>i).queued or entry_at(&self.window, <size_t>i).deliveries == 0:
            return False
        self.touch(stream_seq, DUE_TS)
        self.enqueue(entry_at(&self.window, <size_t>i))
        return True

    def touch(self, uint64_t stream_seq, int64_t ts):
        """Restarts the ack wait at ts (ns) (+WPI; a NAK with delay: ts = due time - ack wait) and removes the message
        from the redelivery queue. Returns when it is due, ns; 0 when it isn't pending."""
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        cdef Entry* e
        cdef int64_t wait
        if i < 0 or entry_at(&self.window, <size_t>i).deliveries == 0:
            return 0
        if self.journaling:
            journal_op2(&self.journal, c"W", stream_seq, zigzag(ts))
        e = entry_at(&self.window, <size_t>i)
        e.ts = ts
        if e.queued:
            self.unqueue(e)
        wait = self.wait_of(e)
        return INT64_MAX if ts > 0 and wait > INT64_MAX - ts else ts + wait

    def wait_ns(self, uint64_t stream_seq):
        """The ack wait of a pending entry in ns, by its number of deliveries."""
        cdef Py_ssize_t i = window_find(&self.window, stream_seq, 0)
        return self.wait_of(entry_at(&self.window, <size_t>i)) if i >= 0 else self.waits[0]

    # --- the journal -----------------------------------------------------------------------------------

    def take_journal(self):
        """The changes since the last take (or snapshot), for the consumer's store; b"" without changes."""
        return journal_take(&self.journal)

    @property
    def has_changes(self):
        """Were there changes since the last take?"""
        return self.journal.size != 0 or self.journal.run_kind != 0

    def replay(self, bytes entry):
        """Applies one journal entry. Raises ValueError when it cannot follow this state."""
        cdef const char* p = PyBytes_AS_STRING(entry)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(entry), at = 0
        cdef Record record
        cdef bint journaling = self.journaling
        record.ts = self.journal.ts
        self.journaling = False
        try:
            while read_record(p, n, &at, &record):
                self.replay_record(&record)
        finally:
            self.journaling = journaling
            self.journal.ts = -1

    cdef int replay_record(self, const Record* record) except -1:
        cdef uint64_t a = record.a, b = record.b, i
        cdef int op = record.op
        if op == c"D":
            if a <= self.delivered_stream or b > UINT64_MAX - a:
                raise ValueError(f"consumer journal: delivery of {a} x {b} after {self.delivered_stream}")
            if self.policy == ACK_NONE and b:
                # A consumer without acks may have millions in one run.
                self.delivered_consumer += b
                self.delivered_stream = a + b - 1
                self.ack_floor_consumer = self.delivered_consumer
                self.ack_floor_stream = self.delivered_stream
                return 0
            for i in range(b):
                self.deliver(a + i, record.ts)
        elif op == c"A":
            # The entries of a run are pending, so a run longer than the window is corrupt.
            if b > self.window.count + <size_t>len(self.dead):
                raise ValueError(f"consumer journal: {b} acks from {a} on with {self.window.count} deliveries")
            for i in range(b):
                self.ack(a + i, 0)
        elif op == c"R":
            if a > self.delivered_stream:
                raise ValueError(f"consumer journal: redelivery of {a} after {self.delivered_stream}")
            self.deliver(a, record.ts)
        elif op == c"L":
            self.ack_all(a, b)
        elif op == c"W":
            self.touch(a, unzigzag(b))
        elif op == c"X":
            self.give_up(a)
        elif op == c"B":
            self.drop_below(a)
        elif op == c"S":
            self.skip(a)
        elif op == c"P":
            self.park(a)
        elif op == c"F":
            self.reset(a, b)
        else:
            raise ValueError(f"consumer journal: unknown record {op:#x}")
        return 0

    # --- snapshots -------------------------------------------------------------------------------------

    def snapshot(self):
        """The complete state as bytes. It includes the journal's changes, so the journal is emptied."""
        cdef Position position
        cdef bytes result
        position.delivered_consumer, position.delivered_stream = self.delivered_consumer, self.delivered_stream
        position.ack_floor_consumer, position.ack_floor_stream = self.ack_floor_consumer, self.ack_floor_stream
        position.resets, position.since, position.start_seq = self.resets, self.since, self.start_seq
        result = write_snapshot(
            self.policy, &position, &self.window, self.num_pending + self.num_parked, self.dead
        )
        journal_forget(&self.journal)
        return result

    def restore(self, bytes snapshot):
        """Restores the state from a snapshot. Raises ValueError when it is invalid."""
        cdef Position position
        position.start_seq = self.start_seq
        try:
            read_snapshot(snapshot, self.policy, &position, &self.window, self.dead)
        finally:
            self.recount()
        self.delivered_consumer, self.delivered_stream = position.delivered_consumer, position.delivered_stream
        self.ack_floor_consumer, self.ack_floor_stream = position.ack_floor_consumer, position.ack_floor_stream
        self.resets, self.since, self.start_seq = position.resets, position.since, position.start_seq
        ring_clear(&self.queue)
        journal_forget(&self.journal)

    cdef void recount(self) noexcept:
        cdef size_t i
        cdef Entry* e
        self.num_pending = self.num_parked = self.num_queued = self.redelivered = 0
        for i in range(self.window.count):
            e = entry_at(&self.window, i)
            if not e.pending:
                continue
            if e.deliveries:
                self.num_pending += 1
            else:
                self.num_parked += 1
            self.redelivered += e.deliveries > 1
            self.num_queued += e.queued
