"""Storing one publish: retention by interest, the stream's limits, and republishing.

InterestState removes messages that no consumer needs any more from interest and work-queue streams.

A consumer needs a message that passes its filters and that it has not settled: not delivered yet, delivered
and not acked, or given up at max_deliver and not acked since. Both retention policies remove a message when its last
consumer acks it. They differ for messages that match no consumer: an interest stream does not store them, a work
queue retains them for a future consumer.

The consumers' AckStates collect acks as runs of sequences; settled() processes them once per tick. Each costs a
lookup in every other consumer's window, and a look at the message's subject only if the other consumer has filters.
settled() scans nothing. unneeded() scans; it runs when a consumer is deleted or its filters change (in parts,
jetstream/reviews.py), and after a restart, because the ack may have been written and the removal not.

Both decide, and remove nothing: what they return is a command of the stream, SettledRuns, which every replica
applies. Only the server that leads decides: its consumers have applied acks of this tick which are not commands yet.

Invariant: removal is idempotent and may be deferred, so the ack may be written before or after the removal,
with a crash in between.
Rejected: counting the consumers that still need each message (a counter per message to keep consistent
with filters, purges and deletions); a call to Python for each ack.

Republisher publishes each stored message again, with headers that describe the original.

Invariants: a message is added after it was stored, in the order of sequences, and is sent only by route(), which
the engine calls after the write; nothing is sent from a batch that could not be written.

Rejected: reading the messages back from the log in route() (a limit may have removed them by then);
a Python object per message.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.kernels.base.memory cimport array_grow, array_new
from penstock.kernels.consumer.ack_encoding cimport VARINT_MAX, get_varint, put_varint, unzigzag, zigzag
from penstock.kernels.consumer.pump cimport Pump
from penstock.kernels.ingest.publish_headers cimport PUBLISH_HAS_ID, MessageIds, PublishHead
from penstock.kernels.log.records cimport Record, cost_of
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.log.subject_state cimport Subject, SubjectState
from penstock.kernels.routing.grammar cimport filter_matches
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.wire.dispatch cimport SubjectMapper, route
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription


# --- settled messages

cdef class SettledRuns:
    def __dealloc__(self):
        free(self.runs)

    cdef int add(self, uint64_t first, uint64_t last) except -1:
        if self.count and self.runs[2 * self.count - 1] + 1 == first:
            self.runs[2 * self.count - 1] = last
            return 0
        self.runs = <uint64_t*>array_grow(
            self.runs, &self.capacity, self.count + 1, 2 * sizeof(uint64_t), 16, b"runs of settled messages"
        )
        self.runs[2 * self.count] = first
        self.runs[2 * self.count + 1] = last
        self.count += 1
        return 0

    def append(self, uint64_t first, uint64_t last):
        """Adds the sequences from first to last. Raises ValueError when a log cannot have them."""
        if not 0 < first <= last <= <uint64_t>INT64_MAX:
            raise ValueError(f"settled messages from {first} to {last}")
        self.add(first, last)

    def __eq__(self, other):
        return isinstance(other, SettledRuns) and self.items() == other.items()

    def items(self):
        """[(first, last)] of the runs, in the order in which they were settled."""
        cdef size_t i
        return [(self.runs[2 * i], self.runs[2 * i + 1]) for i in range(self.count)]

    def remove_from(self, StreamLog log not None):
        """Removes those that `log` has; returns how many. The work is linear in the runs and the messages."""
        cdef size_t i
        cdef uint64_t seq, last, gone = 0
        for i in range(self.count):
            seq = self.runs[2 * i]
            last = min(self.runs[2 * i + 1], log.last_seq)
            while seq <= last:
                if log.retire(seq):
                    gone += 1
                    seq += 1
                else:
                    seq = log.next_matching(seq + 1, NULL, 0)
                    if seq == 0:
                        break
        return gone

    def encode(self):
        """The runs, as decode() reads them: for each, two LEB128 numbers, the distance of its first sequence from the
        last one before it (zigzag) and its length less one."""
        cdef size_t i
        cdef uint64_t before = 0
        cdef char* start = <char*>array_new(self.count + 1, 2 * VARINT_MAX, b"bytes of settled messages")
        cdef char* d = start
        for i in range(self.count):
            d += put_varint(d, zigzag(<int64_t>(self.runs[2 * i] - before)))
            before = self.runs[2 * i + 1]
            d += put_varint(d, before - self.runs[2 * i])
        try:
            return PyBytes_FromStringAndSize(start, d - start)
        finally:
            free(start)

    @staticmethod
    def decode(bytes data not None, size_t start=0, size_t end=<size_t>-1):
        """The runs that were encoded as the bytes of `data` from offset `start` to `end`. Raises ValueError when they
        are malformed."""
        cdef SettledRuns runs = SettledRuns()
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef size_t n = min(end, <size_t>PyBytes_GET_SIZE(data)), at = start
        cdef uint64_t distance = 0, more = 0, before = 0, first
        cdef Py_ssize_t used, rest
        while at < n:
            used = get_varint(p + at, n - at, &distance)
            rest = get_varint(p + at + used, n - at - <size_t>used, &more) if used > 0 else -1
            if rest < 0:
                raise ValueError(f"settled messages: bad number at byte {at}")
            first = before + <uint64_t>unzigzag(distance)
            if first > <uint64_t>INT64_MAX or more > <uint64_t>INT64_MAX - first:
                raise ValueError(f"settled messages: {more + 1} from {first} on")
            before = first + more
            runs.append(first, before)
            at += <size_t>(used + rest)
        return runs


# --- interest state

cdef enum:                      # of a review, in the units of jetstream/slices.py
    MESSAGE_WORK = 48           # to examine a message
    PUMP_WORK = 3               # to check it for a consumer, plus one unit for each of its filters


cdef bint passes(Pump pump, const Record* r) except -1:
    """Does the message pass the consumer's filters?"""
    cdef bytes f
    if pump.filter_count == 0:
        return True
    for f in pump.filters:
        if filter_matches(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f), r.subject, r.subject_len):
            return True
    return False


cdef bint will_skip(Pump pump, uint64_t seq) noexcept:
    """Deliver last per subject: is seq one of the messages that the consumer skips?"""
    cdef size_t low = pump.skip_at, high = pump.skip_count, middle
    if low >= high or seq > pump.skip_resume:
        return False
    while low < high:
        middle = (low + high) // 2
        if pump.skip[middle] < seq:
            low = middle + 1
        else:
            high = middle
    return low == pump.skip_count or pump.skip[low] != seq


cdef class InterestState:
    def __cinit__(self, StreamLog log not None, *, bint work_queue=False):
        self.log = log
        self.work_queue = work_queue
        self.pumps = []
        self.since = {}
        self.subscriptions = {}
        self.index = SubscriptionIndex()
        self.sink = Sink()

    def keep_all(self, bint keep):
        """While a consumer is missing, removes nothing."""
        self.held = keep

    def add(self, Pump pump not None, uint64_t since=0):
        """Adds a consumer: its AckState collects settled sequences from now on."""
        pump.state.collecting = True
        self.pumps.append(pump)
        self.since[pump] = since
        self.watch(pump, pump.filters)

    def remove(self, Pump pump not None):
        """Removes a consumer; messages that only it needed stay until review()."""
        if pump not in self.since:
            return
        pump.state.collecting = False
        self.unwatch(pump)
        self.pumps.remove(pump)
        del self.since[pump]

    def refilter(self, Pump pump not None, uint64_t since):
        """Updates the consumer's filters."""
        if pump in self.since:
            self.since[pump] = since
            self.unwatch(pump)
            self.watch(pump, pump.filters)

    def expect(self, str name not None, list filters not None):
        """Adds the filters of a consumer that another server owns, or changes them."""
        self.forget(name)
        self.watch(name, filters)

    def forget(self, str name not None):
        """Removes such a consumer."""
        if name in self.subscriptions:
            self.unwatch(name)

    cdef int watch(self, object consumer, list filters) except -1:
        # Set before the index can refuse a filter, so that unwatch() can remove those already inserted.
        subscriptions = self.subscriptions[consumer] = [SinkSubscription(self.sink, f) for f in filters]
        for subscription in subscriptions:
            self.index.insert(subscription)
        if not subscriptions:
            self.unfiltered += 1
        return 0

    cdef int unwatch(self, object consumer) except -1:
        subscriptions = self.subscriptions.pop(consumer)
        for subscription in subscriptions:
            self.index.remove(subscription)
        if not subscriptions:
            self.unfiltered -= 1
        return 0

    cdef bint is_wanted(self, const char* subject, size_t n) except -1:
        if self.unfiltered or self.held:
            return True
        return len(self.subscriptions) != 0 and len(self.index.lookup(subject, n).plain) != 0

    def wants(self, bytes subject not None):
        """`is_wanted` for Python callers."""
        return self.is_wanted(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))

    cdef bint is_needed(self, uint64_t seq, Pump but) except -1:
        """Does any consumer other than `but` need the message at seq?"""
        cdef Record r
        cdef bint known = False
        cdef Pump pump
        for pump in self.pumps:
            if pump is but or not pump.state.is_message_needed(seq) or will_skip(pump, seq):
                continue
            if pump.filter_count == 0:
                return True
            if not known:
                if not self.log.read(seq, &r):
                    return False
                known = True
            if passes(pump, &r):
                return True
        return False

    cdef bint was_acked(self, uint64_t seq, const Record* r) except -1:
        """Has a consumer whose filters the message passes settled it?"""
        cdef Pump pump
        for pump in self.pumps:
            if seq >= <uint64_t>self.since[pump] and seq <= pump.state.delivered_stream and passes(pump, r):
                return True
        return False

    def settled(self, Pump pump not None):
        """The messages that `pump`'s consumer settled since the last call and no other consumer needs; None: none."""
        cdef size_t i
        cdef uint64_t seq, last
        cdef bint alone = len(self.pumps) == 1
        cdef SettledRuns runs
        if pump.state.settled_count == 0:
            return None
        runs = SettledRuns()
        for i in range(pump.state.settled_count):
            if self.held:
                break
            seq = pump.state.settled[2 * i]
            last = pump.state.settled[2 * i + 1]
            if alone:
                runs.add(seq, last)
                continue
            while seq <= last:
                if not self.is_needed(seq, pump):
                    runs.add(seq, seq)
                seq += 1
        pump.state.settled_count = 0
        return runs if runs.count else None

    def unneeded(self, uint64_t from_seq=0, int64_t work=INT64_MAX):
        """Examines messages from from_seq on; see the .pyi."""
        cdef uint64_t seq, kept = 0, unneeded = 0
        cdef int64_t each = MESSAGE_WORK
        cdef Record r
        cdef Pump pump
        cdef SettledRuns runs = SettledRuns()
        if self.held or (not self.pumps and self.work_queue):
            return runs, 0
        if not self.pumps:
            if self.log.messages:
                runs.add(self.log.first_seq, self.log.last_seq)
            return runs, 0
        for pump in self.pumps:
            each += PUMP_WORK + <int64_t>pump.filter_count
        seq = self.log.next_matching(from_seq, NULL, 0)
        while seq and work > 0:
            work -= each
            if self.is_needed(seq, None) or (
                self.work_queue and not (self.log.read(seq, &r) and self.was_acked(seq, &r))
            ):
                kept = seq
            else:
                # Sequences without a message do not end a run.
                runs.add(unneeded + 1 if unneeded > kept else seq, seq)
                unneeded = seq
            seq = self.log.next_matching(seq + 1, NULL, 0)
        return runs, seq


# --- republish

cdef enum:
    LENGTHS = 12                    # subject, header and body length, before each message
    ADDED_MAX = 200                 # bytes of added names and numbers, without subjects and the stream's name


cdef inline char* put_text(char* d, const char* s, size_t n) noexcept nogil:
    memcpy(d, s, n)
    return d + n


cdef class Republisher:
    def __cinit__(self, bytes stream not None, format_time):
        self.buf = OutBuffer()
        self.stream = b"Nats-Stream: " + stream + b"\r\nNats-Subject: "
        self.format_time = format_time
        self.time_text = b""
        self.time_ts = -1
        self.destination = b""

    def configure(self, SubjectMapper mapper, bint headers_only):
        """Changes the configuration for later messages."""
        self.mapper = mapper
        self.headers_only = headers_only

    cdef int before(self, const Message* m, StreamLog log) except -1:
        if self.mapper is None:
            return 0
        self.destination = self.mapper.map(PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len))
        if PyBytes_GET_SIZE(self.destination):
            self.previous_seq = log.last_of_subject(m.subject, m.subject_len)
        return 0

    cdef int after(self, const Message* m, uint64_t seq, int64_t ts) except -1:
        cdef size_t subject_len = <size_t>PyBytes_GET_SIZE(self.destination)
        cdef size_t payload_len = m.body_len - m.header_len
        cdef uint32_t lengths[3]
        cdef char* start
        cdef char* header
        cdef char* d
        if self.mapper is None or subject_len == 0:
            return 0
        if ts != self.time_ts:
            self.time_text = self.format_time(ts).encode()
            self.time_ts = ts
        start = self.buf.reserve(
            LENGTHS + subject_len + m.body_len + m.subject_len + ADDED_MAX
            + <size_t>PyBytes_GET_SIZE(self.stream) + <size_t>PyBytes_GET_SIZE(self.time_text)
        )
        d = put_text(start + LENGTHS, PyBytes_AS_STRING(self.destination), subject_len)
        header = d
        if m.header_len > 2:
            d = put_text(d, m.body, m.header_len - 2)      # without the final empty line
        else:
            d = put_text(d, b"NATS/1.0\r\n", 10)
        d = put_text(d, PyBytes_AS_STRING(self.stream), <size_t>PyBytes_GET_SIZE(self.stream))
        d = put_text(d, m.subject, m.subject_len)
        d = put_text(d, b"\r\nNats-Sequence: ", 17)
        d += put_uint(d, seq)
        d = put_text(d, b"\r\nNats-Time-Stamp: ", 19)
        d = put_text(d, PyBytes_AS_STRING(self.time_text), <size_t>PyBytes_GET_SIZE(self.time_text))
        d = put_text(d, b"\r\nNats-Last-Sequence: ", 22)
        d += put_uint(d, self.previous_seq)
        if self.headers_only:
            d = put_text(d, b"\r\nNats-Msg-Size: ", 17)
            d += put_uint(d, payload_len)
            payload_len = 0
        d = put_text(d, b"\r\n\r\n", 4)
        lengths[0] = <uint32_t>subject_len
        lengths[1] = <uint32_t>(d - header)
        lengths[2] = <uint32_t>(d - header + payload_len)
        d = put_text(d, m.body + m.header_len, payload_len)
        memcpy(start, lengths, LENGTHS)
        self.buf.size += <size_t>(d - start)
        self.count += 1
        return 0

    def route(self, SubscriptionIndex index not None):
        """Routes the waiting messages; returns how many had a receiver."""
        cdef const char* p = self.buf.data
        cdef const char* end = p + self.buf.size
        cdef uint32_t lengths[3]
        cdef Message m
        cdef size_t taken = 0
        m.reply = NULL
        m.reply_len = 0
        while p < end:
            memcpy(lengths, p, LENGTHS)
            m.subject = p + LENGTHS
            m.subject_len = lengths[0]
            m.body = m.subject + m.subject_len
            m.header_len = lengths[1]
            m.body_len = lengths[2]
            if route(index, &m, None):
                taken += 1
            p = m.body + m.body_len
        self.clear()
        return taken

    def clear(self):
        """Drops the waiting messages."""
        self.buf.clear()
        self.count = 0


# --- limits

cdef enum:
    EVICTED_MIN = 2                 # messages that a stored message may always remove, even if it is smaller
    # In the units of jetstream/slices.py:
    PART = 16                       # messages removed between two checks of the work
    SUBJECT_WORK = 16               # to examine a subject
    REMOVAL_WORK = 192              # to remove a message
    BYTES_PER_UNIT = 8              # of removed messages, which have to be read


cdef class PlainLimits:
    """The limits of a stream's configuration that apply_plain() enforces; negative and 0 mean none.

    `per_message` leaves every publish to Python: sealed streams, discard_new_per_subject, counters. `interest_state`
    of an interest stream: a message that no consumer wants uses up a sequence and is not stored. `stream` is the name
    that publishes may expect.
    """

    def __cinit__(
        self,
        *,
        int64_t msgs_max=-1,
        int64_t bytes_max=-1,
        int64_t msg_size_max=-1,
        int64_t per_subject_max=-1,
        bint discard_new=False,
        bint per_message=False,
        bint no_ack=False,
        InterestState interest_state=None,
        bytes stream=b"",
    ):
        self.msgs_max = msgs_max
        self.bytes_max = bytes_max
        self.msg_size_max = msg_size_max
        self.per_subject_max = <uint64_t>per_subject_max if per_subject_max > 0 else 0
        self.discard_new = discard_new
        self.per_message = per_message
        self.no_ack = no_ack
        self.interest_state = interest_state
        self.stream = stream


cdef uint64_t store_publish(
    StreamLog log, PlainLimits limits, MessageIds ids, const PublishHead* head, const Message* m, uint32_t id_hash,
    int64_t ts, Republisher republisher,
) except 0:
    cdef bint wanted = limits.interest_state is None or limits.interest_state.is_wanted(m.subject, m.subject_len)
    cdef uint64_t seq
    if not wanted:
        seq = log.skip_message(ts)
    elif republisher is None:
        seq = log.append_message(m, ts)
    else:
        republisher.before(m, log)
        seq = log.append_message(m, ts)
        republisher.after(m, seq, ts)
    if head.id_len or ids.last_size:
        ids.set_last(m.body + head.id_start, head.id_len)
    if head.flags & PUBLISH_HAS_ID:
        ids.remember(m.body + head.id_start, head.id_len, id_hash, seq, ts)
    if wanted:
        enforce(log, limits, m)
    return seq


cpdef uint64_t store_one(
    StreamLog log,
    PlainLimits limits,
    bytes subject,
    bytes header,
    bytes payload,
    int64_t ts,
    Republisher republisher=None,
) except 0:
    """Stores one message that Python has checked, enforces the limits, returns its sequence."""
    cdef bytes body = header + payload if header else payload
    cdef Message m
    cdef uint64_t seq
    m.subject = PyBytes_AS_STRING(subject)
    m.subject_len = PyBytes_GET_SIZE(subject)
    m.reply = NULL
    m.reply_len = 0
    m.body = PyBytes_AS_STRING(body)
    m.header_len = PyBytes_GET_SIZE(header)
    m.body_len = PyBytes_GET_SIZE(body)
    if republisher is not None:
        republisher.before(&m, log)
    seq = log.append_message(&m, ts)
    if republisher is not None:
        republisher.after(&m, seq, ts)
    enforce(log, limits, &m)
    return seq


cdef int enforce(StreamLog log, PlainLimits limits, const Message* m) except -1:
    """Enforces the limits after a message was stored: its subject's limit first, then the stream's.

    After an update lowered limits, the log exceeds them until enforce_part() is complete. Until then a message removes
    only as much as keeps the log from growing, and up to EVICTED_MIN messages: removing a million takes slices.
    """
    if limits.per_subject_max:
        log.enforce_subject_limit(m.subject, m.subject_len, limits.per_subject_max, EVICTED_MIN)
    if limits.discard_new:          # it accepted only messages within its limits
        return 0
    if (limits.msgs_max > 0 and log.messages > <uint64_t>limits.msgs_max) or (
        limits.bytes_max > 0 and log.bytes > <uint64_t>limits.bytes_max
    ):
        log.enforce_limits(
            limits.msgs_max, limits.bytes_max, EVICTED_MIN, cost_of(&log.cost, m.subject_len, m.header_len, m.body_len)
        )
    return 0


def enforce_part(StreamLog log not None, PlainLimits limits not None, uint64_t at, int64_t work):
    """Removes messages above changed limits, up to an amount of work; see the .pyi.

    Subjects come first, as when a message is stored: `at` counts them from 1, in the order of their slots.
    Subjects that are added later are within their limits.
    """
    cdef SubjectState state = log.state
    cdef const Subject* s
    cdef uint64_t gone, before
    cdef int64_t left = work
    while left > 0:
        gone = 0
        before = log.bytes
        # (If there are as many messages as subjects, each subject has one.)
        if at <= state.used and limits.per_subject_max and log.messages > state.count:
            s = &state.items[at - 1]
            left -= SUBJECT_WORK
            if s.count > limits.per_subject_max:
                gone = log.enforce_subject_limit(state.arena + s.text, s.text_len, limits.per_subject_max, PART)
            if gone < PART:         # even if some are left: messages damaged on disk count until a restart
                at += 1
        else:
            at = state.used + 1
            if not limits.discard_new:      # else it stays full until messages are removed otherwise
                gone = log.enforce_limits(limits.msgs_max, limits.bytes_max, PART, 0)
            if gone < PART:
                at = 0
        left -= <int64_t>(gone * REMOVAL_WORK + (before - log.bytes) // BYTES_PER_UNIT)
        if at == 0:
            break
    return work - left, at
