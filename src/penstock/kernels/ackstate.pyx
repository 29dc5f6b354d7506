"""What one consumer has delivered and what is acked.

The window is a ring of entries ordered by stream sequence, from the oldest pending one up to the newest
delivered. An ack finds its entry by an offset guess (consumer sequences are dense where nothing was
redelivered), else by binary search. Acked entries in the middle stay until the front moves over them, or
until they outweigh the pending ones: then the ring is compacted, so that one stuck message doesn't hold the
memory of a million acked ones.

Floors, as the official server reports them: with nothing pending both floors are what was delivered;
when the oldest pending entry is settled they move to just below the next one (its stream sequence, and the
consumer sequence of its FIRST delivery, so that redeliveries don't move the consumer floor). Settling any
other entry leaves them where they are. Under the policy "all" they are the sequences of the ack itself.

What a message that reached max_deliver leaves: no entry (it blocks no floor), but a line in `dead`,
since it counts as redelivered until it is acked after all or leaves the stream.

A message may be parked: passed over because its turn hasn't come (key-shared delivery). It has an entry
with no deliveries, which holds the floors like a pending one; acks, NAKs and ack waits don't touch it, and
its first delivery comes later.

The journal says what changed since the last snapshot, in runs: a thousand deliveries in sequence are one
record of a few bytes. `replay()` of it on the snapshot gives the same state, at every cut between records.
The redelivery queue is not in it: after a restart queued messages are simply due (a NAK sets its timestamp
far into the past).

    T <ts>             time of what follows (8 bytes LE)
    D <first> <count>  first deliveries at consecutive stream sequences
    R <seq>            redelivery
    A <first> <count>  acks at consecutive stream sequences
    L <seq> <cseq>     ack of everything up to seq
    W <seq> <ts>       new timestamp (+WPI, NAK)
    X <seq>            given up at max_deliver
    B <seq>            everything below seq is gone from the stream
    S <seq>            skip: nothing up to seq will be delivered
    P <seq>            parked
(numbers are LEB128; W's ts is zigzag)

Rejected: a dict of sequences (a Python object a message), a bitmap (no timestamps, no delivery counts),
writing the whole state at every ack (the official server's way, quadratic under many pending).
"""
from libc.stdint cimport INT64_MAX, UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels.buffers cimport OutBuffer

cdef enum:
    RING_CAPACITY_MIN = 64
    # The ring is compacted when it holds this many entries more than four times the pending ones.
    COMPACT_SLACK = 4096
    SNAPSHOT_VERSION = 1
    SNAPSHOT_HEAD = 1 + 1 + 4 * 8 + 8 + 8
    SNAPSHOT_ENTRY = 8 + 8 + 8 + 4
    SNAPSHOT_DEAD = 8 + 4

# A timestamp that makes an entry due at once, whatever its ack wait; survives zigzag and subtraction.
cdef int64_t DUE_TS = 0


cdef inline size_t put_varint(char* d, uint64_t v) noexcept:
    cdef size_t n = 0
    while v >= 0x80:
        d[n] = <char>(<uint8_t>(v & 0x7F) | 0x80)
        v >>= 7
        n += 1
    d[n] = <char>v
    return n + 1


cdef inline Py_ssize_t get_varint(const char* p, size_t n, uint64_t* v) noexcept:
    """Bytes read, or -1 when the number is cut off or over 64 bits."""
    cdef uint64_t value = 0, byte
    cdef size_t i = 0
    while i < n and i < 10:
        byte = <uint8_t>p[i]
        if i == 9 and byte > 1:
            return -1
        value |= (byte & 0x7F) << (7 * i)
        i += 1
        if byte < 0x80:
            v[0] = value
            return <Py_ssize_t>i
    return -1


cdef inline uint64_t zigzag(int64_t v) noexcept:
    return (<uint64_t>v << 1) ^ (<uint64_t>0 - <uint64_t>(v < 0))


cdef inline int64_t unzigzag(uint64_t v) noexcept:
    return <int64_t>((v >> 1) ^ (<uint64_t>0 - (v & 1)))


cdef class AckState:
    def __cinit__(self, int policy, uint64_t start_seq=1, *, bint journaling=True):
        if policy < ACK_NONE or policy > ACK_EXPLICIT:
            raise ValueError(f"ack policy {policy} is none of AckPolicy")
        self.policy = policy
        self.journaling = journaling
        self.delivered_stream = self.ack_floor_stream = start_seq - 1 if start_seq else 0
        self.dead = {}
        self.journal = OutBuffer()
        self.journal_ts = -1
        self.ring = <Entry*>malloc(RING_CAPACITY_MIN * sizeof(Entry))
        self.queue = <uint64_t*>malloc(RING_CAPACITY_MIN * sizeof(uint64_t))
        self.waits = <int64_t*>malloc(sizeof(int64_t))
        if self.ring == NULL or self.queue == NULL or self.waits == NULL:
            raise MemoryError("no memory for the window of a consumer")
        self.capacity = self.queue_capacity = RING_CAPACITY_MIN
        self.waits[0] = INT64_MAX
        self.waits_count = 1

    def __dealloc__(self):
        free(self.ring)
        free(self.queue)
        free(self.waits)
        free(self.settled)

    # --- the window ------------------------------------------------------------------------------------

    cdef inline Entry* at(self, size_t i) noexcept:
        return &self.ring[(self.head + i) & (self.capacity - 1)]

    cdef Py_ssize_t find(self, uint64_t seq, uint64_t cseq) noexcept:
        """Index of the pending entry of seq, or -1. cseq is a hint."""
        cdef Entry* e
        cdef uint64_t guess
        cdef size_t low = 0, high = self.count, middle
        if self.count == 0:
            return -1
        e = self.at(0)
        if seq < e.seq:
            return -1
        guess = cseq - e.cseq
        if cseq >= e.cseq and guess < self.count and self.at(<size_t>guess).seq == seq:
            low = <size_t>guess
        else:
            guess = seq - e.seq
            if guess < self.count and self.at(<size_t>guess).seq == seq:
                low = <size_t>guess
            else:
                while low < high:
                    middle = low + (high - low) // 2
                    if self.at(middle).seq < seq:
                        low = middle + 1
                    else:
                        high = middle
                if low == self.count:
                    return -1
        e = self.at(low)
        return <Py_ssize_t>low if e.seq == seq and e.pending else -1

    cdef int grow(self) except -1:
        cdef size_t capacity = self.capacity * 2, first
        cdef Entry* ring = <Entry*>malloc(capacity * sizeof(Entry))
        if ring == NULL:
            raise MemoryError(f"no memory for a window of {capacity} deliveries")
        first = self.capacity - self.head
        if first > self.count:
            first = self.count
        memcpy(ring, self.ring + self.head, first * sizeof(Entry))
        memcpy(ring + first, self.ring, (self.count - first) * sizeof(Entry))
        free(self.ring)
        self.ring = ring
        self.capacity = capacity
        self.head = 0
        return 0

    cdef void compact(self) noexcept:
        cdef size_t i, kept = 0
        cdef Entry* e
        for i in range(self.count):
            e = self.at(i)
            if e.pending:
                if kept != i:
                    self.at(kept)[0] = e[0]
                kept += 1
        self.count = kept

    cdef inline void settle(self, Entry* e) noexcept:
        """A pending or parked entry stops being so."""
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

    cdef inline void trim(self) noexcept:
        """The window begins with a pending entry."""
        while self.count and not self.at(0).pending:
            self.head = (self.head + 1) & (self.capacity - 1)
            self.count -= 1

    cdef void move_floor(self) noexcept:
        cdef Entry* e
        if self.num_pending + self.num_parked == 0:
            self.count = self.head = 0
            self.queue_count = self.queue_head = 0
            self.ack_floor_consumer = self.delivered_consumer
            self.ack_floor_stream = self.delivered_stream
            return
        self.trim()
        e = self.at(0)
        if e.cseq and e.cseq - 1 > self.ack_floor_consumer:
            self.ack_floor_consumer = e.cseq - 1
        if e.seq - 1 > self.ack_floor_stream:
            self.ack_floor_stream = e.seq - 1
        self.shrink()

    cdef inline void shrink(self) noexcept:
        if self.count > 4 * (self.num_pending + self.num_parked) + COMPACT_SLACK:
            self.compact()

    # --- deliveries ------------------------------------------------------------------------------------

    cdef uint64_t deliver(self, uint64_t stream_seq, int64_t ts) except 0:
        cdef Entry* e
        cdef Py_ssize_t i
        if stream_seq <= self.delivered_stream:
            i = self.find(stream_seq, 0)
            if i < 0:
                raise ValueError(f"redelivery of stream sequence {stream_seq}, which is not pending")
            e = self.at(<size_t>i)
            if self.journaling:
                self.note_ts(ts)
                self.note_op(c"R", stream_seq, 0, 1)
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
        if self.policy != ACK_NONE and self.count == self.capacity:
            self.grow()
        if self.journaling:
            self.note_ts(ts)
            self.note_run(c"D", stream_seq)
        self.delivered_consumer += 1
        self.delivered_stream = stream_seq
        if self.policy == ACK_NONE:
            self.ack_floor_consumer = self.delivered_consumer
            self.ack_floor_stream = stream_seq
            if self.collecting:
                self.note_settled(stream_seq)
            return self.delivered_consumer
        e = self.at(self.count)
        e.seq = stream_seq
        e.cseq = self.delivered_consumer
        e.ts = ts
        e.deliveries = 1
        e.pending = 1
        e.queued = 0
        self.count += 1
        self.num_pending += 1
        return self.delivered_consumer

    cpdef int park(self, uint64_t stream_seq) except -1:
        """It is passed over and will be delivered later, by `deliver`."""
        cdef Entry* e
        if stream_seq <= self.delivered_stream or self.policy != ACK_EXPLICIT:
            raise ValueError(f"stream sequence {stream_seq} can't be parked: delivered {self.delivered_stream},"
                             f" ack policy {self.policy}")
        if self.count == self.capacity:
            self.grow()
        if self.journaling:
            self.note_op(c"P", stream_seq, 0, 1)
        self.delivered_stream = stream_seq
        e = self.at(self.count)
        e.seq = stream_seq
        e.cseq = 0
        e.ts = 0
        e.deliveries = 0
        e.pending = 1
        e.queued = 0
        self.count += 1
        self.num_parked += 1
        return 0

    cdef bint is_parked(self, uint64_t stream_seq) noexcept:
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        return i >= 0 and self.at(<size_t>i).deliveries == 0

    cdef uint32_t deliveries_of(self, uint64_t stream_seq) noexcept:
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        return self.at(<size_t>i).deliveries if i >= 0 else 0

    def delivered(self, uint64_t stream_seq, int64_t ts):
        """`deliver` for Python callers (the pump calls it in C)."""
        return self.deliver(stream_seq, ts)

    def deliveries(self, uint64_t stream_seq):
        """How often it was delivered: 0 when it isn't pending."""
        return self.deliveries_of(stream_seq)

    def skip(self, uint64_t stream_seq):
        """Nothing up to and with stream_seq will be delivered (a purge): moves what was delivered, and the
        floor with it when nothing is pending."""
        if stream_seq <= self.delivered_stream:
            return
        if self.journaling:
            self.note_op(c"S", stream_seq, 0, 1)
        self.delivered_stream = stream_seq
        if self.num_pending == 0:
            self.move_floor()

    # --- acks ------------------------------------------------------------------------------------------

    cdef int ack(self, uint64_t stream_seq, uint64_t consumer_seq) except -1:
        cdef Py_ssize_t i = self.find(stream_seq, consumer_seq)
        if i >= 0 and self.at(<size_t>i).deliveries == 0:
            return 0                    # nobody has it who could ack it
        if i < 0:
            if self.dead and stream_seq in self.dead:
                if self.journaling:
                    self.note_run(c"A", stream_seq)
                del self.dead[stream_seq]
                if self.collecting:
                    self.note_settled(stream_seq)
            return 0
        if self.journaling:
            self.note_run(c"A", stream_seq)
        if self.collecting:
            self.note_settled(stream_seq)
        self.settle(self.at(<size_t>i))
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
        if consumer_seq > self.delivered_consumer:
            return 0
        if self.journaling:
            self.note_op(c"L", stream_seq, consumer_seq, 2)
        while self.count and self.at(0).seq <= stream_seq:
            e = self.at(0)
            if e.pending:
                if self.collecting:
                    self.note_settled(e.seq)
                self.settle(e)
            self.head = (self.head + 1) & (self.capacity - 1)
            self.count -= 1
        self.trim()
        for dead in [seq for seq in self.dead if seq <= stream_seq]:
            del self.dead[dead]
            if self.collecting:
                self.note_settled(dead)
        self.ack_floor_stream = stream_seq
        if consumer_seq > self.ack_floor_consumer:
            self.ack_floor_consumer = consumer_seq
        if self.num_pending == 0:
            self.count = self.head = 0
            self.queue_count = self.queue_head = 0
        return before - self.num_pending

    def acked(self, uint64_t stream_seq, uint64_t consumer_seq=0):
        """`ack` (`ack_all` under the policy "all") for Python callers: how many stopped being pending."""
        if self.policy == ACK_ALL:
            return self.ack_all(stream_seq, consumer_seq)
        return self.ack(stream_seq, consumer_seq)

    def drop(self, uint64_t stream_seq):
        """The message is settled without an ack (+TERM, gone from the stream): True when it was pending."""
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        if i < 0 or self.at(<size_t>i).deliveries:
            return self.ack(stream_seq, 0) == 1
        if self.journaling:
            self.note_op(c"X", stream_seq, 0, 1)
        self.settle(self.at(<size_t>i))
        self.move_floor()
        return False

    def drop_below(self, uint64_t first_seq):
        """Everything below first_seq left the stream: returns how many pending ones went with it."""
        cdef size_t before = self.num_pending, parked_before = self.num_parked
        cdef Entry* e
        cdef list gone = [seq for seq in self.dead if seq < first_seq]
        if not gone and (self.count == 0 or self.at(0).seq >= first_seq):
            return 0
        if self.journaling:
            self.note_op(c"B", first_seq, 0, 1)
        for seq in gone:
            del self.dead[seq]
        while self.count and self.at(0).seq < first_seq:
            e = self.at(0)
            if e.pending:
                self.settle(e)
            self.head = (self.head + 1) & (self.capacity - 1)
            self.count -= 1
        if before != self.num_pending or parked_before != self.num_parked:
            self.move_floor()
        return before - self.num_pending

    def truncate(self, uint64_t last_seq):
        """Forgets everything above last_seq: the stream lost its end, and its sequences will be used again."""
        cdef Entry* e
        while self.count and self.at(self.count - 1).seq > last_seq:
            e = self.at(self.count - 1)
            if e.pending:
                self.settle(e)
            self.count -= 1
        for seq in [seq for seq in self.dead if seq > last_seq]:
            del self.dead[seq]
        if self.delivered_stream > last_seq:
            self.delivered_stream = last_seq
        if self.ack_floor_stream > last_seq:
            self.ack_floor_stream = last_seq
        if self.num_pending == 0:
            self.move_floor()

    def is_pending(self, uint64_t stream_seq):
        """Was it delivered, and is not settled yet?"""
        return self.deliveries_of(stream_seq) != 0

    def pending(self):
        """[(stream seq, first consumer seq, ts, deliveries)] of everything pending, in order, and of what is
        parked (no deliveries)."""
        cdef size_t i
        cdef Entry* e
        cdef list result = []
        for i in range(self.count):
            e = self.at(i)
            if e.pending:
                result.append((e.seq, e.cseq, e.ts, e.deliveries))
        return result

    @property
    def num_redelivered(self):
        """Messages delivered more than once and not acked, the given up ones among them."""
        return self.redelivered + len(self.dead)

    # --- for streams whose messages go when they are acked ----------------------------------------------

    cdef int note_settled(self, uint64_t seq) except -1:
        cdef size_t capacity
        cdef uint64_t* settled
        if self.settled_count and self.settled[2 * self.settled_count - 1] + 1 == seq:
            self.settled[2 * self.settled_count - 1] = seq
            return 0
        if self.settled_count == self.settled_capacity:
            capacity = self.settled_capacity * 2 if self.settled_capacity else 16
            settled = <uint64_t*>realloc(self.settled, capacity * 2 * sizeof(uint64_t))
            if settled == NULL:
                raise MemoryError(f"no memory for {capacity} runs of acks")
            self.settled = settled
            self.settled_capacity = capacity
        self.settled[2 * self.settled_count] = self.settled[2 * self.settled_count + 1] = seq
        self.settled_count += 1
        return 0

    cdef bint needs(self, uint64_t seq) except -1:
        if seq > self.delivered_stream:
            return True
        if self.policy == ACK_EXPLICIT:
            if self.find(seq, 0) >= 0:
                return True
        elif seq > self.ack_floor_stream:
            return True
        return len(self.dead) != 0 and seq in self.dead

    def is_needed(self, uint64_t seq):
        """`needs` for Python callers."""
        return self.needs(seq)

    def take_settled(self):
        """[(first, last)] of the stream sequences settled by acks since the last time, while `collecting`: in
        runs, in the order of the acks."""
        cdef size_t i
        cdef list result = [(self.settled[2 * i], self.settled[2 * i + 1]) for i in range(self.settled_count)]
        self.settled_count = 0
        return result

    # --- redelivery ------------------------------------------------------------------------------------

    def set_waits(self, list waits_ns):
        """Ack wait in ns by number of deliveries (the backoff; one entry when there is none). Empty: never
        due."""
        cdef size_t n = len(waits_ns) or 1
        cdef int64_t* waits = <int64_t*>malloc(n * sizeof(int64_t))
        cdef size_t i
        if waits == NULL:
            raise MemoryError("no memory for a backoff")
        waits[0] = INT64_MAX
        for i in range(<size_t>len(waits_ns)):
            waits[i] = waits_ns[i]
        free(self.waits)
        self.waits = waits
        self.waits_count = n

    cdef inline int64_t wait_of(self, Entry* e) noexcept:
        cdef size_t i = e.deliveries - 1 if e.deliveries else 0
        return self.waits[i if i < self.waits_count else self.waits_count - 1]

    cdef int enqueue(self, Entry* e) except -1:
        cdef uint64_t* queue
        cdef size_t i
        if e.queued:
            return 0
        if self.queue_count == self.queue_capacity:
            queue = <uint64_t*>malloc(self.queue_capacity * 2 * sizeof(uint64_t))
            if queue == NULL:
                raise MemoryError(f"no memory for {self.queue_capacity * 2} redeliveries")
            for i in range(self.queue_count):
                queue[i] = self.queue[(self.queue_head + i) & (self.queue_capacity - 1)]
            free(self.queue)
            self.queue = queue
            self.queue_head = 0
            self.queue_capacity *= 2
        self.queue[(self.queue_head + self.queue_count) & (self.queue_capacity - 1)] = e.seq
        self.queue_count += 1
        e.queued = 1
        self.num_queued += 1
        return 0

    cdef void unqueue(self, Entry* e) noexcept:
        """A pending entry leaves the redelivery queue: at its front as a rule. Its item goes with it, or the entry,
        queued again later, would have its old place."""
        cdef size_t i, mask = self.queue_capacity - 1
        e.queued = 0
        self.num_queued -= 1
        for i in range(self.queue_count):
            if self.queue[(self.queue_head + i) & mask] == e.seq:
                break
        else:
            return
        while i:
            self.queue[(self.queue_head + i) & mask] = self.queue[(self.queue_head + i - 1) & mask]
            i -= 1
        self.queue_head = (self.queue_head + 1) & mask
        self.queue_count -= 1

    cdef uint64_t next_queued(self) except? 0:
        cdef uint64_t seq
        cdef Py_ssize_t i
        while self.queue_count:
            seq = self.queue[self.queue_head]
            i = self.find(seq, 0)
            if i >= 0 and self.at(<size_t>i).queued:
                return seq
            self.queue_head = (self.queue_head + 1) & (self.queue_capacity - 1)
            self.queue_count -= 1
        return 0

    def peek_queued(self):
        """`next_queued` for Python callers."""
        return self.next_queued()

    def expire(self, int64_t now, uint32_t max_deliver=0):
        """Queues every pending entry whose ack wait is over, in the order of their sequences.

        Args: now in ns; max_deliver, 0 for no maximum: entries that had them all are given up instead.
        Returns: (how many were queued, [(stream seq, deliveries)] given up, earliest deadline in ns or 0 when
        nothing else will become due).
        """
        cdef size_t i, queued = 0
        cdef Entry* e
        cdef int64_t wait, deadline, earliest = INT64_MAX
        cdef list given_up = []
        for i in range(self.count):
            e = self.at(i)
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
        """When the next ack wait is over, ns; 0 when nothing will become due. Scans the window."""
        cdef size_t i
        cdef Entry* e
        cdef int64_t wait, earliest = INT64_MAX
        for i in range(self.count):
            e = self.at(i)
            if e.pending and not e.queued and e.deliveries:
                wait = self.wait_of(e)
                if wait <= INT64_MAX - e.ts and e.ts + wait < earliest:
                    earliest = e.ts + wait
        return 0 if earliest == INT64_MAX else earliest

    def give_up(self, uint64_t stream_seq):
        """It reached max_deliver: no longer pending, blocks no floor, counts as redelivered. True when it was
        pending."""
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        if i < 0:
            return False
        if self.at(<size_t>i).deliveries == 0:
            self.drop(stream_seq)       # only a replayed journal comes here
            return False
        if self.journaling:
            self.note_op(c"X", stream_seq, 0, 1)
        self.dead[stream_seq] = self.at(<size_t>i).deliveries
        self.settle(self.at(<size_t>i))
        if i == 0 or self.num_pending == 0:
            self.move_floor()
        else:
            self.shrink()
        return True

    def given_up(self):
        """[(stream seq, deliveries)] of everything given up and not settled since, in order."""
        return sorted(self.dead.items())

    def requeue(self, uint64_t stream_seq):
        """A NAK without delay: due now. True when it is pending and wasn't queued yet."""
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        if i < 0 or self.at(<size_t>i).queued or self.at(<size_t>i).deliveries == 0:
            return False
        self.touch(stream_seq, DUE_TS)
        self.enqueue(self.at(<size_t>i))
        return True

    def touch(self, uint64_t stream_seq, int64_t ts):
        """The ack wait runs from ts (ns) again (+WPI; a NAK with delay: ts = when it is due - its ack
        wait). It leaves the redelivery queue. Returns when it is due, ns; 0 when it isn't pending."""
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        cdef Entry* e
        cdef int64_t wait
        if i < 0 or self.at(<size_t>i).deliveries == 0:
            return 0
        if self.journaling:
            self.note_op(c"W", stream_seq, zigzag(ts), 2)
        e = self.at(<size_t>i)
        e.ts = ts
        if e.queued:
            self.unqueue(e)
        wait = self.wait_of(e)
        return INT64_MAX if ts > 0 and wait > INT64_MAX - ts else ts + wait

    def wait_ns(self, uint64_t stream_seq):
        """The ack wait of a pending entry in ns, by its number of deliveries."""
        cdef Py_ssize_t i = self.find(stream_seq, 0)
        return self.wait_of(self.at(<size_t>i)) if i >= 0 else self.waits[0]

    # --- the journal -----------------------------------------------------------------------------------

    cdef int close_run(self) except -1:
        cdef uint64_t first = self.run_first, count = self.run_count
        cdef int kind = self.run_kind
        if kind:
            self.run_kind = 0
            self.note_op(kind, first, count, 2)
        return 0

    cdef inline int note_run(self, int kind, uint64_t seq) except -1:
        if self.run_kind == kind and seq == self.run_first + self.run_count:
            self.run_count += 1
            return 0
        self.close_run()
        self.run_kind = kind
        self.run_first = seq
        self.run_count = 1
        return 0

    cdef inline int note_ts(self, int64_t ts) except -1:
        cdef char* d
        if ts == self.journal_ts:
            return 0
        self.close_run()
        d = self.journal.reserve(9)
        d[0] = c"T"
        memcpy(d + 1, &ts, 8)
        self.journal.size += 9
        self.journal_ts = ts
        return 0

    cdef int note_op(self, int op, uint64_t a, uint64_t b, int operands) except -1:
        cdef char* d
        cdef size_t n = 1
        self.close_run()
        d = self.journal.reserve(21)
        d[0] = <char>op
        n += put_varint(d + n, a)
        if operands == 2:
            n += put_varint(d + n, b)
        self.journal.size += n
        return 0

    def take_journal(self):
        """What changed since the last take (or snapshot), for the consumer's store; b"" when nothing did."""
        self.close_run()
        self.journal_ts = -1       # every entry stands alone: it begins with its own time
        if self.journal.size == 0:
            return b""
        return self.journal.take()

    def replay(self, bytes entry):
        """Applies one journal entry. Raises ValueError where it is not one that follows this state."""
        cdef const char* p = PyBytes_AS_STRING(entry)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(entry), at = 0
        cdef uint64_t a, b
        cdef Py_ssize_t used
        cdef int op
        cdef bint journaling = self.journaling
        self.journaling = False
        try:
            while at < n:
                op = p[at]
                at += 1
                a = b = 0
                if op == c"T":
                    if n - at < 8:
                        raise ValueError(f"consumer journal: cut off at byte {at}")
                    memcpy(&self.journal_ts, p + at, 8)
                    at += 8
                    continue
                used = get_varint(p + at, n - at, &a)
                if used < 0:
                    raise ValueError(f"consumer journal: bad number at byte {at}")
                at += <size_t>used
                if op == c"D" or op == c"A" or op == c"L" or op == c"W":
                    used = get_varint(p + at, n - at, &b)
                    if used < 0:
                        raise ValueError(f"consumer journal: bad number at byte {at}")
                    at += <size_t>used
                self.replay_op(op, a, b)
        finally:
            self.journaling = journaling
            self.journal_ts = -1

    cdef int replay_op(self, int op, uint64_t a, uint64_t b) except -1:
        cdef uint64_t i
        if op == c"D":
            if a <= self.delivered_stream or b > UINT64_MAX - a:
                raise ValueError(f"consumer journal: delivery of {a} x {b} after {self.delivered_stream}")
            if self.policy == ACK_NONE and b:
                # An ack none consumer may have millions in one run.
                self.delivered_consumer += b
                self.delivered_stream = a + b - 1
                self.ack_floor_consumer = self.delivered_consumer
                self.ack_floor_stream = self.delivered_stream
                return 0
            for i in range(b):
                self.deliver(a + i, self.journal_ts)
        elif op == c"A":
            # A run's entries are pending: more of them than the window holds is no run of ours.
            if b > self.count + <size_t>len(self.dead):
                raise ValueError(f"consumer journal: {b} acks from {a} on with {self.count} deliveries")
            for i in range(b):
                self.ack(a + i, 0)
        elif op == c"R":
            if a > self.delivered_stream:
                raise ValueError(f"consumer journal: redelivery of {a} after {self.delivered_stream}")
            self.deliver(a, self.journal_ts)
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
        else:
            raise ValueError(f"consumer journal: unknown record {op:#x}")
        return 0

    # --- snapshots -------------------------------------------------------------------------------------

    def snapshot(self):
        """The whole state as bytes; what the journal had noted so far is covered by it and forgotten."""
        cdef size_t held = self.num_pending + self.num_parked
        cdef size_t size = SNAPSHOT_HEAD + held * SNAPSHOT_ENTRY + len(self.dead) * SNAPSHOT_DEAD
        cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        cdef char* d = PyBytes_AS_STRING(result)
        cdef uint64_t number
        cdef uint32_t count
        cdef size_t i
        cdef Entry* e
        d[0] = SNAPSHOT_VERSION
        d[1] = <char>self.policy
        d += 2
        for number in (self.delivered_consumer, self.delivered_stream, self.ack_floor_consumer,
                       self.ack_floor_stream, held, len(self.dead)):
            memcpy(d, &number, 8)
            d += 8
        for i in range(self.count):
            e = self.at(i)
            if e.pending:
                memcpy(d, &e.seq, 8)
                memcpy(d + 8, &e.cseq, 8)
                memcpy(d + 16, &e.ts, 8)
                memcpy(d + 24, &e.deliveries, 4)
                d += SNAPSHOT_ENTRY
        for number, count in sorted(self.dead.items()):
            memcpy(d, &number, 8)
            memcpy(d + 8, &count, 4)
            d += SNAPSHOT_DEAD
        self.run_kind = 0
        self.journal_ts = -1
        self.journal.clear()
        return result

    def restore(self, bytes snapshot):
        """Becomes what `snapshot` was taken of. Raises ValueError where it isn't one."""
        cdef const char* p = PyBytes_AS_STRING(snapshot)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(snapshot)
        cdef uint64_t numbers[6]
        cdef uint64_t number, last = 0
        cdef uint32_t count
        cdef Entry e
        if n < SNAPSHOT_HEAD or p[0] != SNAPSHOT_VERSION or p[1] != self.policy:
            raise ValueError(f"consumer snapshot: {n} bytes, version and policy {snapshot[:2]!r} instead of "
                             f"{bytes((SNAPSHOT_VERSION, self.policy))!r}")
        memcpy(numbers, p + 2, 6 * 8)
        n -= SNAPSHOT_HEAD
        if numbers[4] > n // SNAPSHOT_ENTRY or \
                numbers[4] * SNAPSHOT_ENTRY + numbers[5] * SNAPSHOT_DEAD != n or numbers[5] > n:
            raise ValueError(f"consumer snapshot: {numbers[4]} pending and {numbers[5]} dead in {n} bytes")
        p += SNAPSHOT_HEAD
        self.delivered_consumer, self.delivered_stream = numbers[0], numbers[1]
        self.ack_floor_consumer, self.ack_floor_stream = numbers[2], numbers[3]
        self.count = self.head = self.num_pending = self.num_parked = self.redelivered = 0
        self.queue_count = self.queue_head = self.num_queued = 0
        self.dead.clear()
        for _ in range(<size_t>numbers[4]):
            memcpy(&e.seq, p, 8)
            memcpy(&e.cseq, p + 8, 8)
            memcpy(&e.ts, p + 16, 8)
            memcpy(&e.deliveries, p + 24, 4)
            e.pending = 1
            e.queued = 0
            if e.seq <= last or e.seq > self.delivered_stream or (e.deliveries == 0) != (e.cseq == 0):
                raise ValueError(
                    f"consumer snapshot: entry {e.seq} after {last}, delivered {self.delivered_stream}"
                )
            last = e.seq
            if self.count == self.capacity:
                self.grow()
            self.at(self.count)[0] = e
            self.count += 1
            if e.deliveries:
                self.num_pending += 1
            else:
                self.num_parked += 1
            if e.deliveries > 1:
                self.redelivered += 1
            p += SNAPSHOT_ENTRY
        for _ in range(<size_t>numbers[5]):
            memcpy(&number, p, 8)
            memcpy(&count, p + 8, 4)
            self.dead[number] = count
            p += SNAPSHOT_DEAD
        self.run_kind = 0
        self.journal.clear()


def make_snapshot(int policy, tuple delivered, tuple floor, list pending, list given_up):
    """What snapshot() of such a state returns; see the .pyi."""
    cdef list parts = [bytes((SNAPSHOT_VERSION, policy))]
    for number in (*delivered, *floor, len(pending), len(given_up)):
        parts.append(int(number).to_bytes(8, "little"))
    for seq, consumer_seq, ts, deliveries in pending:
        parts.append(seq.to_bytes(8, "little") + consumer_seq.to_bytes(8, "little"))
        parts.append(ts.to_bytes(8, "little", signed=True) + deliveries.to_bytes(4, "little"))
    for seq, deliveries in given_up:
        parts.append(seq.to_bytes(8, "little") + deliveries.to_bytes(4, "little"))
    return b"".join(parts)
