# distutils: define_macros=_GNU_SOURCE=1
"""Ingest: collects the publishes to a stream, and stores runs of them without Python.

A publish is copied once, from the connection's read buffer into the stream's batch. apply_plain()
stores a run of them, drops duplicates, checks their expectations and writes their acks; it
stops before the first one that needs a decision (another behaviour-changing header, an expectation or limit
that refuses it), which Python makes from `batch.take_one()`.

Invariants: `position` is always the start of a publish or the end of the batch, and moves past a
publish only after that publish was stored or passed to Python. An ack enters an AckBatch after its
message entered the log; the tick sends it after the record was written.

Rejected: one Python tuple per publish (0.4 M msgs/s); acking inside the run (an ack could then
overtake its write).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from penstock.kernels.base.duration_histogram cimport DurationHistogram
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.wire.dispatch cimport route
from penstock.kernels.ingest.batches cimport (
    FAST_IGNORE, FAST_STORE, FastBatch, FastBatches, StagedBatches, is_fast,
)
from penstock.kernels.ingest.publish_headers cimport (
    BODY_MAX, EXPECTS_LAST_ID, ID_NAME_SIZE, PUBLISH_EXPECTS, PUBLISH_HAS_ID, PUBLISH_IS_BATCHED,
    PUBLISH_IS_FAST, PUBLISH_IS_SPECIAL, SUBJECT_MAX, MessageIds, PublishHead, failed_expectations, fits,
    message_of, put_publish, trim,
)
from penstock.kernels.ingest.storing cimport PlainLimits, Republisher, store_publish
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink, SinkSubscription
from penstock.kernels.wire.ticks cimport monotonic_ns
from penstock.kernels.log.records cimport Record, cost_of
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

from penstock.faults import note

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t n, const void* needle, size_t m)

cdef enum:
    ACK_END_MAX = 18                # ',"duplicate":true}'
    FLOW_ACK_MAX = 160              # a flow ack and the end of its subject
    IDS_AHEAD = 16                  # publishes whose ids are looked up together

# A publish in an encoded batch, little-endian; subject, reply and body follow without padding. It has only what the
# publisher sent: flags and offsets in header blocks are derived from that, and a later version may derive others.
cdef packed struct PublishEntry:
    uint16_t subject_len
    uint16_t reply_len
    uint32_t header_len
    uint32_t body_len               # header and payload together


cdef class IngestBatch(RunBuffer):
    """A run of publishes in the order in which they reached the stream."""

    def __cinit__(self, uint64_t since=0):
        self.since = since

    cdef int put(self, const Message* m) except -1:
        cdef PublishHead* head = put_publish(self.buf, m)
        if m.reply_len and is_fast(m.reply, m.reply_len):
            head.flags |= PUBLISH_IS_FAST
        self.count += 1
        return 0

    def append(self, bytes subject, bytes reply, bytes header, bytes payload):
        """Adds one publish as if it had been routed to this stream."""
        cdef bytes body = header + payload
        cdef Message m
        m.subject = PyBytes_AS_STRING(subject)
        m.subject_len = PyBytes_GET_SIZE(subject)
        m.reply = PyBytes_AS_STRING(reply)
        m.reply_len = PyBytes_GET_SIZE(reply)
        m.body = PyBytes_AS_STRING(body)
        m.header_len = PyBytes_GET_SIZE(header)
        m.body_len = PyBytes_GET_SIZE(body)
        if not fits(&m):
            raise ValueError(
                f"a publish of {len(subject)} bytes of subject, {len(reply)} of reply and {len(body)} of body"
                f" does not fit: subjects and replies end at {SUBJECT_MAX}, bodies at {BODY_MAX} bytes"
            )
        self.put(&m)

    def take_one(self):
        """(subject, reply, header, payload) at `position`, which moves past it; None at the end."""
        cdef const PublishHead* head
        cdef const char* p
        if self.position >= self.buf.size:
            return None
        head = <const PublishHead*>(self.buf.data + self.position)
        p = <const char*>head + sizeof(PublishHead)
        subject = PyBytes_FromStringAndSize(p, head.subject_len)
        p += head.subject_len
        reply = PyBytes_FromStringAndSize(p, head.reply_len)
        p += head.reply_len
        header = PyBytes_FromStringAndSize(p, head.header_len)
        p += head.header_len
        payload = PyBytes_FromStringAndSize(p, head.body_len - head.header_len)
        self.position += head.size
        return subject, reply, header, payload

    def encode(self, bytes head not None=b""):
        """`head`, and the publishes from `position` on, as decode() reads them."""
        cdef const char* data = self.buf.data
        cdef size_t at = self.position, size = <size_t>PyBytes_GET_SIZE(head), n
        cdef const PublishHead* one
        cdef PublishEntry entry
        cdef bytes encoded
        cdef char* d
        while at < self.buf.size:
            one = <const PublishHead*>(data + at)
            size += sizeof(PublishEntry) + one.subject_len + one.reply_len + one.body_len
            at += one.size
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        d = PyBytes_AS_STRING(encoded)
        memcpy(d, PyBytes_AS_STRING(head), <size_t>PyBytes_GET_SIZE(head))
        d += PyBytes_GET_SIZE(head)
        at = self.position
        while at < self.buf.size:
            one = <const PublishHead*>(data + at)
            entry.subject_len = one.subject_len
            entry.reply_len = one.reply_len
            entry.header_len = one.header_len
            entry.body_len = one.body_len
            n = <size_t>one.subject_len + one.reply_len + one.body_len
            memcpy(d, &entry, sizeof(PublishEntry))
            memcpy(d + sizeof(PublishEntry), <const char*>one + sizeof(PublishHead), n)
            d += sizeof(PublishEntry) + n
            at += one.size
        assert d == PyBytes_AS_STRING(encoded) + size
        return encoded

    @staticmethod
    def decode(bytes data not None, size_t start=0, size_t end=<size_t>-1):
        """The batch that was encoded as the bytes of `data` from offset `start` to `end`. Raises ValueError when it is
        malformed."""
        cdef IngestBatch batch = IngestBatch()
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef size_t at = start, n
        cdef PublishEntry entry
        cdef Message m
        end = min(end, <size_t>PyBytes_GET_SIZE(data))
        if at < end:
            batch.buf.reserve(end - at + (end - at) // 8)   # the heads are larger in memory
        while at < end:
            if end - at < sizeof(PublishEntry):
                raise ValueError(f"the head of a publish at {at} ends at {end}")
            memcpy(&entry, p + at, sizeof(PublishEntry))
            at += sizeof(PublishEntry)
            m.subject = p + at
            m.subject_len = entry.subject_len
            m.reply = m.subject + m.subject_len
            m.reply_len = entry.reply_len
            m.body = m.reply + m.reply_len
            m.header_len = entry.header_len
            m.body_len = entry.body_len
            # Lengths of 16 and 32 bits: the sum cannot overflow 64 bits.
            n = m.subject_len + m.reply_len + m.body_len
            if n > end - at or m.header_len > m.body_len or m.subject_len == 0 or not fits(&m):
                raise ValueError(
                    f"a publish at {at} of {m.subject_len} bytes of subject, {m.reply_len} of reply, {m.header_len}"
                    f" of headers in {m.body_len} of body does not fit {end - at} bytes"
                )
            # Flags and offsets are derived again and never taken from the data: the kernels trust them.
            batch.put(&m)
            at += n
        return batch


cdef class StreamSink(Sink):
    """The sink of a stream's subjects. `stream` is the object added to the dirty list."""

    def __cinit__(self, DirtyList dirty_list, object stream, DirtyList full_list=None):
        self.full_list = full_list
        self.rejected = []
        self.batch = IngestBatch()
        self.spare = IngestBatch()
        self.dirty_list = dirty_list
        self.stream = stream

    def map_subjects(self, SubjectMapper mapper):
        self.mapper = mapper

    def limit(self, size_t msgs_max, size_t bytes_max):
        self.msgs_max = msgs_max
        self.bytes_max = bytes_max

    def take_rejected(self):
        cdef list rejected = self.rejected
        self.rejected = []
        return rejected

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef Message renamed
        cdef bytes subject      # owns the bytes that renamed.subject points at
        if self.msgs_max and not self.admits(m):
            return 1
        if not self.batch.count:        # one read of the clock per batch
            self.batch.since = monotonic_ns()
        if self.mapper is None:
            if not fits(m):
                return 0
            self.batch.put(m)
        else:
            subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
            try:
                subject = self.mapper.map(subject)
            except Exception as error:          # the publisher may be another stream's tick, which must continue
                note(f"subject transform of a stream, for {ascii(subject)}", error)
                return 0
            renamed = m[0]
            renamed.subject = PyBytes_AS_STRING(subject)
            renamed.subject_len = <size_t>PyBytes_GET_SIZE(subject)
            if not fits(&renamed):
                return 0
            self.batch.put(&renamed)
        if not self.is_dirty:
            self.is_dirty = True
            self.dirty_list.mark(self.stream)
        return 1

    cdef bint admits(self, const Message* m) except -1:
        """Is there room for one more publish? If not, it is rejected."""
        cdef size_t size = m.subject_len + m.reply_len + m.body_len
        if self.batch.count < self.msgs_max and size <= self.bytes_max - self.waiting_bytes:
            self.waiting_bytes += size
            return True
        if not self.rejected and self.full_list is not None:
            self.full_list.mark(self.stream)
        self.rejected.append(m.reply[:m.reply_len] if m.reply_len else b"")
        return False

    def mark(self):
        """Marks the stream dirty for work other than publishes to its subjects."""
        if not self.is_dirty:
            self.is_dirty = True
            self.dirty_list.mark(self.stream)

    def take(self):
        """The publishes collected since the last take; valid until the take after the next."""
        cdef IngestBatch taken = self.batch
        self.batch = self.spare
        self.batch.clear()
        self.spare = taken
        self.waiting_bytes = 0
        self.is_dirty = False
        return taken


cdef class AckBatch:
    """Acks of one stream that wait for their records to be written.

    `prefix` is the JSON of a positive ack up to its sequence: b'{"stream":"ORDERS","seq":'.
    """

    def __cinit__(self, bytes prefix):
        self.buf = OutBuffer()
        self.prefix = prefix

    cdef int put_ack(self, const char* reply, size_t reply_len, uint64_t seq, bint duplicate) except -1:
        cdef size_t n = PyBytes_GET_SIZE(self.prefix)
        cdef char* d = self.buf.reserve(8 + reply_len + n + 20 + ACK_END_MAX)
        cdef char* text = d + 8 + reply_len
        cdef uint32_t lengths[2]
        memcpy(d + 8, reply, reply_len)
        memcpy(text, PyBytes_AS_STRING(self.prefix), n)
        n += put_uint(text + n, seq)
        if duplicate:
            memcpy(text + n, b',"duplicate":true}', ACK_END_MAX)
            n += ACK_END_MAX
        else:
            text[n] = c"}"
            n += 1
        lengths[0] = <uint32_t>reply_len
        lengths[1] = <uint32_t>n
        memcpy(d, lengths, 8)
        self.buf.size += 8 + reply_len + n
        self.count += 1
        return 0

    cdef int put_text(self, const char* reply, size_t reply_len, const char* text, size_t n) except -1:
        cdef char* d = self.buf.reserve(8 + reply_len + n)
        cdef uint32_t lengths[2]
        lengths[0] = <uint32_t>reply_len
        lengths[1] = <uint32_t>n
        memcpy(d, lengths, 8)
        memcpy(d + 8, reply, reply_len)
        memcpy(d + 8 + reply_len, text, n)
        self.buf.size += 8 + reply_len + n
        self.count += 1
        return 0

    def add_ack(self, bytes reply not None, uint64_t seq, bint duplicate=False):
        """Adds the positive ack of the message stored at `seq`, now or (duplicate) before."""
        self.put_ack(PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply), seq, duplicate)

    def add(self, bytes reply, bytes text):
        """Adds any other reply to a publish, such as an error."""
        self.put_text(
            PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply), PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
        )

    def arrived(self, uint64_t since):
        """The publishes whose acks follow arrived from `since` on."""
        if not self.count or not self.since:
            self.since = since

    def route(self, SubscriptionIndex index, DurationHistogram times=None):
        """Routes all acks and empties the batch; returns how many had a receiver."""
        cdef const char* p = self.buf.data
        cdef const char* end = p + self.buf.size
        cdef uint32_t lengths[2]
        cdef Message m
        cdef size_t taken = 0
        if times is not None and self.since and self.count:
            # One value for all, that of the first: the acks of a batch leave together.
            times.add(monotonic_ns() - self.since, self.count)
        m.reply = NULL
        m.reply_len = 0
        m.header_len = 0
        while p < end:
            memcpy(lengths, p, 8)
            m.subject = p + 8
            m.subject_len = lengths[0]
            m.body = m.subject + m.subject_len
            m.body_len = lengths[1]
            if route(index, &m, None):
                taken += 1
            p = m.body + m.body_len
        self.clear()
        return taken

    def items(self):
        """[(reply, text)] of the waiting acks."""
        cdef const char* p = self.buf.data
        cdef const char* end = p + self.buf.size
        cdef uint32_t lengths[2]
        cdef list result = []
        while p < end:
            memcpy(lengths, p, 8)
            p += 8
            reply = PyBytes_FromStringAndSize(p, lengths[0])
            result.append((reply, PyBytes_FromStringAndSize(p + lengths[0], lengths[1])))
            p += lengths[0] + lengths[1]
        return result

    def clear(self):
        """Drops the waiting acks."""
        self.buf.clear()
        self.count = 0
        self.since = 0

    def __len__(self):
        return self.count


cpdef size_t apply_plain(
    IngestBatch batch,
    StreamLog log,
    PlainLimits limits,
    MessageIds ids,
    int64_t now,
    int64_t ts,
    AckBatch acks,
    Republisher republisher=None,
    FastBatches batches=None,
    StagedBatches staged=None,
) except? 0:
    """Stores publishes from `batch.position` on; returns how many it processed, including duplicates.

    Stops at the end of the batch or before the first publish that is left to Python.
    `ts` (ns) is the time of every message of the run; `now` (ns) decides which message ids are still in the dedupe
    window. `batches` track the messages of fast batches; without them those are left to Python. `staged` receives
    the messages of open atomic batches, except the last of each.
    """
    cdef const char* data = batch.buf.data
    cdef size_t end = batch.buf.size
    cdef size_t taken = 0
    cdef const PublishHead* head
    cdef Message m
    cdef uint64_t seq
    cdef uint32_t failed
    cdef size_t room
    cdef FastBatch fast
    cdef int verdict
    cdef uint32_t hashes[IDS_AHEAD]     # of the ids of the next publishes
    cdef size_t hashed = 0, used = 0
    cdef uint32_t id_hash = 0
    if batch.count and batch.since and not acks.count:
        acks.since = batch.since
    if limits.per_message:
        return 0
    while batch.position < end:
        head = <const PublishHead*>(data + batch.position)
        if head.flags & PUBLISH_IS_SPECIAL:
            break
        if limits.msg_size_max >= 0 and <int64_t>head.body_len > limits.msg_size_max:
            break
        message_of(head, &m)
        if head.flags & PUBLISH_HAS_ID:
            if used == hashed:
                used = 0
                hashed = fetch_ids(ids, data, batch.position, end, hashes)
            id_hash = hashes[used]
            used += 1
        if head.flags & PUBLISH_IS_BATCHED and not head.flags & PUBLISH_IS_FAST:
            if staged is None or not staged.take(head, now):
                break
            batch.position += head.size
            taken += 1
            if m.reply_len and not limits.no_ack:
                acks.put_text(m.reply, m.reply_len, b"", 0)
            continue
        fast = None
        if head.flags & PUBLISH_IS_FAST:
            if batches is None:
                break
            fast = batches.next_append(m.reply, m.reply_len, now, &verdict)
            if verdict == FAST_IGNORE:
                batch.position += head.size
                taken += 1
                continue
            if verdict != FAST_STORE:
                break
        failed = 0
        if head.flags & PUBLISH_EXPECTS:
            failed = failed_expectations(&m, log, limits.stream, ids)
            if failed & ~<uint32_t>EXPECTS_LAST_ID:
                break
        if head.flags & PUBLISH_HAS_ID:
            seq = ids.seq_of(m.body + head.id_start, head.id_len, id_hash, now)
            if seq:
                if fast is not None:
                    batches.took(fast, fast.seq + 1, seq, True)
                elif m.reply_len and not limits.no_ack:
                    acks.put_ack(m.reply, m.reply_len, seq, True)
                batch.position += head.size
                taken += 1
                continue
        if failed:      # checked after duplicates: a duplicate is acked whatever it expects
            break
        if limits.discard_new and (
            limits.interest_state is None or limits.interest_state.is_wanted(m.subject, m.subject_len)
        ):
            if limits.msgs_max > 0 and log.messages >= <uint64_t>limits.msgs_max:
                break
            if limits.bytes_max > 0:
                room = cost_of(&log.cost, m.subject_len, m.header_len, m.body_len)
                if log.bytes + room > <uint64_t>limits.bytes_max:   # Python checks what it would replace
                    break
        seq = store_publish(log, limits, ids, head, &m, id_hash, ts, republisher)
        batch.position += head.size
        taken += 1
        if fast is not None:
            batches.took(fast, fast.seq + 1, seq, False)
        elif m.reply_len and not limits.no_ack:
            acks.put_ack(m.reply, m.reply_len, seq, False)
    return taken


def acknowledge_fast(FastBatches batches not None, AckBatch acks not None, uint32_t limit):
    """Adds the flow acks that are due, one per batch; `limit`: the number of messages per ack that they
    approach."""
    cdef FastBatch batch
    cdef OutBuffer text = batches.scratch
    cdef size_t head_len, reply_len
    cdef char* d
    cdef list due = batches.due
    batches.due = []
    for batch in due:
        batches.step(batch, limit)
        head_len = <size_t>PyBytes_GET_SIZE(batch.head)
        text.clear()
        d = text.reserve(head_len + FLOW_ACK_MAX)
        memcpy(d, PyBytes_AS_STRING(batch.head), head_len)
        reply_len = head_len + put_uint(d + head_len, batch.seq)
        memcpy(d + reply_len, b".1.$FI", 6)
        reply_len += 6
        acks.put_text(d, reply_len, d + reply_len, flow_ack(d + reply_len, batch))


cdef size_t flow_ack(char* d, FastBatch batch) noexcept:
    """Writes {"type":"ack","seq":N,"msgs":M,"ack_msgs":M}: the official server has "msgs", the ADR "ack_msgs"."""
    cdef size_t n = 20
    memcpy(d, b'{"type":"ack","seq":', 20)
    n += put_uint(d + n, batch.acked)
    memcpy(d + n, b',"msgs":', 8)
    n += 8
    n += put_uint(d + n, batch.msgs)
    memcpy(d + n, b',"ack_msgs":', 12)
    n += 12
    n += put_uint(d + n, batch.msgs)
    d[n] = c"}"
    return n + 1


cdef size_t fetch_ids(MessageIds ids, const char* data, size_t at, size_t end, uint32_t* hashes) noexcept:
    """Hashes the ids of the next publishes, up to IDS_AHEAD, and prefetches what their lookups read; returns how many
    have one.

    A new id takes about two cache misses, one after the other: its cell, and the entry of an id that has its cell. In
    a window of half a million ids they took a third of what storing a message takes.
    """
    cdef const PublishHead* head
    cdef Message m
    cdef size_t looks = 0, n = 0, i
    while at < end and looks < IDS_AHEAD:
        looks += 1
        head = <const PublishHead*>(data + at)
        if head.flags & PUBLISH_HAS_ID:
            message_of(head, &m)
            hashes[n] = ids.hash_of(m.body + head.id_start, head.id_len)
            ids.fetch_cells(hashes[n])
            n += 1
        at += head.size
    for i in range(n):
        ids.fetch_entries(hashes[i])
    return n


def scan_headers(StreamLog log not None, bytes name not None, uint64_t from_seq, size_t looks):
    """[(seq, ts, value)] of messages at or after from_seq whose header block has the name, and where to
    continue; see the .pyi."""
    cdef bytes needle = b"\r\n" + name + b":"
    cdef const char* n = PyBytes_AS_STRING(needle)
    cdef size_t size = PyBytes_GET_SIZE(needle)
    cdef list found = []
    cdef Record r
    cdef const char* p
    cdef const char* end
    cdef uint64_t seq = log.next_matching(from_seq, NULL, 0)
    while seq and looks:
        looks -= 1
        if log.read(seq, &r) and r.header_len > size:
            p = <const char*>memmem(r.body, r.header_len, n, size)
            if p != NULL:
                p += size
                end = <const char*>memchr(p, c"\r", r.body + r.header_len - p)
                if end == NULL:
                    end = r.body + r.header_len
                found.append((r.seq, r.ts, PyBytes_FromStringAndSize(p, end - p).strip(b" \t")))
        seq = log.next_matching(seq + 1, NULL, 0)
    return found, seq


def recover_ids(StreamLog log not None, MessageIds ids not None, uint64_t from_seq, size_t looks):
    """Adds the ids of messages at or after from_seq to `ids`, as storing them did; returns where to continue,
    see the .pyi."""
    cdef Record r
    cdef const char* p
    cdef const char* end
    cdef size_t size = 0
    cdef uint64_t seq = log.next_matching(from_seq, NULL, 0)
    while seq and looks:
        looks -= 1
        # Most messages have no id, and to check the hashes of all would take most of the time.
        if log.may_have_header(seq, ID_NAME_SIZE + 2) and log.read(seq, &r):
            p = <const char*>memmem(r.body, r.header_len, b"\r\nNats-Msg-Id:", ID_NAME_SIZE + 2)
            if p != NULL:
                p += ID_NAME_SIZE + 2
                end = <const char*>memchr(p, c"\r", r.body + r.header_len - p)
                p = trim(p, end if end != NULL else r.body + r.header_len, &size)
                # If the window has grown since, the log may have an id twice: the older entry counts until it
                # expires, then the newer one.
                if size:
                    ids.remember(p, size, ids.hash_of(p, size), r.seq, r.ts)
        seq = log.next_matching(seq + 1, NULL, 0)
    return seq
