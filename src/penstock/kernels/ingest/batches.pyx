"""Batches of publishes (ADR-50): fast batches, staged atomic batches, and their commit.

Fast batches: the grammar of their reply subjects, and the progress of each batch.

The reply subject of a message of a fast batch describes the message:
`<prefix>.<id>.<flow>.<ok|fail>.<seq>.<op>.$FI`, parsed from the right, because a prefix may have dots. The ingest
kernel calls next_append() for each publish with such a reply, stores the next message of an open batch by
itself, and then calls took(); Python handles every other event of a batch
(jetstream/stream/fast_batches.py).

Invariants: `acked <= seq`; a batch is in the table from its start until forget(), and open until it has
a final ack; `due` has exactly the open batches with `seq >= acked + msgs`. The key of a batch is prefix and
id together, so that no publisher can enter another one's batch by its id alone. The last ENDED_KEPT ended batches
stay in the table: a ping gets the final ack again; of their publishers' other messages in flight, one per tick is
refused and the rest is dropped.

Rejected: a Python dict (with several publishers, a key object for every message); storing the reply subject
of the last message for the ack (it can be rebuilt from the head and a sequence).

Staging: messages of atomic batches wait there for the commit.

take() copies the next message of an open batch to the end of the others, with its classified headers, and creates no
Python object. Python (jetstream/stream/atomic_batches.py) handles every other event (first message, commit, gap,
other headers) on the same batches.

Invariants: `buf` contains `count` messages in order, and `size` is the size of their future records; the totals of
stream and server are exactly the sums of their open batches. Only the stream's own total decides: what others hold is
in its limit, which is part of the stream's state. No message is taken at or after `check_at`, so that none enters a
batch that has timed out.

Rejected: a Python tuple per message (3 us); leaving the messages in the streams' batches until the commit
(those are reused every tick).

Commit: for batches whose headers the kernels understand.

check_staged() is the fast path of the checks of jetstream/stream/staged.py, for the headers that the ingest kernel
understands (message ids, expectations, limits that refuse); store_staged() then stores the
messages in one run. If it returns False, Python checks message by message, and reports the error.

Invariant: check_staged() accepts no batch that staged.py refuses; it changes no state.
Rejected: sets of Python objects for ids and subjects (0.3 us per message).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from penstock.kernels.ingest.storing cimport PlainLimits, Republisher, store_publish
from penstock.kernels.base.hash_table cimport (
    Cell, HashTable, table_drop, table_first, table_free, table_next, table_put, table_reserve,
)
from penstock.kernels.ingest.publish_headers cimport (
    EXPECTS_LAST_ID, EXPECTS_SEQ, EXPECTS_SUBJECT_SEQ, PUBLISH_COMMITS, PUBLISH_EXPECTS, PUBLISH_HAS_ID,
    PUBLISH_IS_SPECIAL, MessageIds, PublishHead, failed_expectations, fits, message_of, present_expectations,
    put_publish,
)
from penstock.kernels.log.records cimport cost_of, record_size, xxh64
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport Message

from collections import deque


# --- batches by their keys

cdef class KeyEntry:
    """Base class of the entries of a KeyTable."""


cdef class KeyTable:
    """Entries by keys that are slices of a buffer: a lookup creates no key object.

    `members` owns the entries; the cells of `table` point to them and own nothing. The hash is seeded per process,
    so that a peer cannot construct collisions. An entry is in at most one table, and no two have the same key.
    Rejected: a dict by key (a key object per lookup).
    """

    def __cinit__(self):
        self.seed = <uint64_t>hash(b"penstock.keytable")
        self.members = {}

    def __dealloc__(self):
        table_free(&self.table)

    cdef KeyEntry look_up(self, const char* key, size_t n):
        """The entry of a key, or None."""
        cdef Cell* cell = table_first(&self.table, xxh64(key, n, self.seed))
        cdef KeyEntry entry
        while cell != NULL:
            entry = <KeyEntry><void*>cell.value
            if <size_t>PyBytes_GET_SIZE(entry.key) == n and memcmp(PyBytes_AS_STRING(entry.key), key, n) == 0:
                return entry
            cell = table_next(&self.table, cell)
        return None

    cdef int add(self, KeyEntry entry, bytes key) except -1:
        """Adds an entry whose key is not in the table."""
        entry.key = key
        entry.hash = xxh64(PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key), self.seed)
        self.members[entry] = None
        table_put(&self.table, entry.hash, <uint64_t><void*>entry)
        return 0

    cdef int remove(self, KeyEntry entry) except -1:
        """Removes an entry of the table."""
        cdef Cell* cell = table_first(&self.table, entry.hash)
        while <void*>cell.value != <void*>entry:
            cell = table_next(&self.table, cell)
        table_drop(&self.table, cell)
        del self.members[entry]     # after the cell, which must never point to a freed entry
        return 0

    cdef list entries(self):
        """All entries, in the order of their insertion."""
        return list(self.members)

    cdef int remove_all(self) except -1:
        table_free(&self.table)
        self.members = {}
        return 0


# --- fast batch

cdef enum:
    SUFFIX_SIZE = 4                 # ".$FI"
    ENDED_KEPT = 64
    FLOW_DEFAULT = 10               # for an invalid flow
    FLOW_MAX = 65535

cdef uint64_t SEQ_END = <uint64_t>-1    # not a valid sequence: its successor would overflow


cdef bint is_fast(const char* reply, size_t n) noexcept nogil:
    return n > SUFFIX_SIZE and memcmp(reply + n - SUFFIX_SIZE, b".$FI", SUFFIX_SIZE) == 0


cdef inline size_t token_start(const char* p, size_t end) noexcept nogil:
    """Start of the token that ends before `end`; 0: there is no dot before it."""
    while end > 0 and p[end - 1] != c".":
        end -= 1
    return end


cdef bint read_seq(const char* p, size_t n, uint64_t* value) noexcept nogil:
    """Parses a decimal batch sequence: neither 0 nor the largest number."""
    cdef uint64_t v = 0
    cdef uint64_t digit
    cdef size_t i
    if n == 0:
        return False
    for i in range(n):
        if p[i] < c"0" or p[i] > c"9":
            return False
        digit = <uint64_t>(p[i] - c"0")
        if v > (SEQ_END - digit) // 10:
            return False
        v = v * 10 + digit
    value[0] = v
    return v != 0 and v != SEQ_END


cdef uint32_t read_flow(const char* p, size_t n) noexcept nogil:
    """Parses the flow that a client requests; 10 for an invalid one, as on the official server."""
    cdef uint64_t v = 0
    cdef size_t i
    for i in range(n):
        if p[i] < c"0" or p[i] > c"9":
            return FLOW_DEFAULT
        v = min(v * 10 + <uint64_t>(p[i] - c"0"), <uint64_t>FLOW_MAX)
    return <uint32_t>v if v else <uint32_t>FLOW_DEFAULT


cdef bint parse_end(const char* p, size_t head_len, size_t n, FastSubject* s) noexcept nogil:
    """Parses `<seq>.<op>.$FI` after a head of head_len bytes."""
    cdef size_t op_at = n - SUFFIX_SIZE - 1
    if n < head_len + SUFFIX_SIZE + 3 or p[op_at - 1] != c"." or p[op_at] < c"0" or p[op_at] > c"4":
        return False
    s.operation = p[op_at] - c"0"
    s.head_len = head_len
    if not read_seq(p + head_len, op_at - 1 - head_len, &s.seq):
        return False
    if s.operation == FAST_START:
        return s.seq == 1
    return s.seq > 1 or (s.operation != FAST_APPEND and s.operation != FAST_EOB)


cdef bint parse_subject(const char* p, size_t n, FastSubject* s) noexcept nogil:
    cdef size_t start, end
    if not is_fast(p, n):
        return False
    start = token_start(p, n - SUFFIX_SIZE)         # the operation
    if start < 2:
        return False
    start = token_start(p, start - 1)               # the sequence
    if start < 2 or not parse_end(p, start, n, s):
        return False
    end = start - 1
    start = token_start(p, end)                     # the gap mode
    if end - start == 2 and memcmp(p + start, b"ok", 2) == 0:
        s.gap_ok = True
    elif end - start == 4 and memcmp(p + start, b"fail", 4) == 0:
        s.gap_ok = False
    else:
        return False
    if start < 2:
        return False
    end = start - 1
    start = token_start(p, end)
    if start < 2:
        return False
    s.flow = read_flow(p + start, end - start)
    s.key_len = start - 1
    s.id_start = token_start(p, s.key_len)
    return s.id_start > 1 and s.id_start < s.key_len


def parse(bytes reply not None):
    """(id, flow, gap_ok, seq, operation) of a reply subject of a fast batch; None for any other."""
    cdef FastSubject s
    cdef const char* p = PyBytes_AS_STRING(reply)
    if not parse_subject(p, <size_t>PyBytes_GET_SIZE(reply), &s):
        return None
    batch_id = PyBytes_FromStringAndSize(p + s.id_start, <Py_ssize_t>(s.key_len - s.id_start))
    return batch_id, s.flow, s.gap_ok, s.seq, s.operation


cdef class FastBatch(KeyEntry):
    """One batch; FastBatches creates it."""

    def heard(self, int64_t now):
        """A message of the batch arrived that Python handles."""
        self.heard_ns = now

    def refuse(self, bint refused):
        """Whether further messages behind the end of the batch are dropped in this tick."""
        self.is_refused = refused


cdef class FastBatches(KeyTable):
    def __cinit__(self):
        self.scratch = OutBuffer()
        self.clear()

    # ------------------------------------------------------------------ for the ingest kernel

    cdef FastBatch next_append(self, const char* reply, size_t n, int64_t now, int* verdict):
        """The batch whose next message this is (FAST_STORE); otherwise None and another verdict."""
        cdef FastBatch batch = self.last
        cdef FastSubject s
        cdef size_t head_len
        verdict[0] = FAST_ASK
        if batch is not None:
            head_len = <size_t>PyBytes_GET_SIZE(batch.head)
            if n <= head_len or memcmp(reply, PyBytes_AS_STRING(batch.head), head_len) != 0:
                batch = None
            elif not parse_end(reply, head_len, n, &s):
                return None
        if batch is None:
            if not parse_subject(reply, n, &s):
                return None
            batch = <FastBatch>self.look_up(reply, s.key_len)
            if batch is None:
                return None
            self.last = batch
            head_len = <size_t>PyBytes_GET_SIZE(batch.head)
            if s.head_len != head_len or memcmp(reply, PyBytes_AS_STRING(batch.head), head_len) != 0:
                # Some clients change to the flow that they were granted.
                batch.head = PyBytes_FromStringAndSize(reply, <Py_ssize_t>s.head_len)
        if batch.final is not None:
            if batch.is_refused and s.operation != FAST_PING and s.seq > 1:
                verdict[0] = FAST_IGNORE
            return None
        if s.operation != FAST_APPEND or s.seq != batch.seq + 1:
            return None
        batch.heard_ns = now
        verdict[0] = FAST_STORE
        return batch

    cdef int took(self, FastBatch batch, uint64_t seq, uint64_t stream_seq, bint duplicate) except -1:
        batch.seq = seq
        if stream_seq and (not duplicate or batch.stream_seq == 0):
            batch.stream_seq = stream_seq
        if not batch.is_due and seq - batch.acked >= batch.msgs:
            batch.is_due = True
            self.due.append(batch)
        return 0

    cdef int step(self, FastBatch batch, uint32_t limit) except -1:
        """Advances `acked` to the latest multiple of `msgs`, then doubles or halves `msgs` towards `limit`."""
        batch.is_due = False
        batch.acked += (batch.seq - batch.acked) // batch.msgs * batch.msgs
        limit = max(<uint32_t>1, min(limit, batch.flow))
        if batch.msgs < limit:
            batch.msgs = min(batch.msgs * 2, limit)
        elif batch.msgs > limit:
            batch.msgs = max(batch.msgs // 2, limit)
            # A publisher that already uses the smaller number waits for these acks, and must not hang.
            batch.acked += (batch.seq - batch.acked) // batch.msgs * batch.msgs
        return 0

    # ------------------------------------------------------------------ for Python

    def start(self, bytes reply not None, uint32_t msgs, int64_t now):
        """Starts a batch, given the reply subject of its first message. Raises ValueError for any other subject."""
        cdef FastBatch batch = FastBatch()
        cdef FastSubject s
        cdef const char* p = PyBytes_AS_STRING(reply)
        if not parse_subject(p, <size_t>PyBytes_GET_SIZE(reply), &s):
            raise ValueError(f"not a reply subject of a fast batch: {reply!r}")
        batch.head = PyBytes_FromStringAndSize(p, <Py_ssize_t>s.head_len)
        batch.id = PyBytes_FromStringAndSize(p + s.id_start, <Py_ssize_t>(s.key_len - s.id_start))
        batch.flow = s.flow
        batch.gap_ok = s.gap_ok
        batch.msgs = max(<uint32_t>1, min(msgs, s.flow))
        batch.heard_ns = now
        self.add(batch, PyBytes_FromStringAndSize(p, <Py_ssize_t>s.key_len))
        self.count += 1
        self.last = batch
        return batch

    def find(self, bytes reply not None):
        """The batch of a reply subject, open or recently ended; else None."""
        cdef FastSubject s
        cdef const char* p = PyBytes_AS_STRING(reply)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(reply)
        return self.look_up(p, s.key_len) if parse_subject(p, n, &s) else None

    def received(self, FastBatch batch not None, uint64_t seq, uint64_t stream_seq=0, bint duplicate=False):
        """Advances the batch to `seq`, whose message is at `stream_seq` in the stream (0: it is not
        stored; duplicate: it was stored before)."""
        self.took(batch, seq, stream_seq, duplicate)

    def end(self, FastBatch batch not None, bytes final not None):
        """Ends the batch. Its publisher gets the ack `final`, now and in response to later pings."""
        self._close(batch)
        batch.final = final
        self.ended.append(batch)
        if len(self.ended) > ENDED_KEPT:
            self.unlink(self.ended.popleft())

    def forget(self, FastBatch batch not None):
        """Removes the batch."""
        if batch.final is not None:
            self.ended.remove(batch)
        else:
            self._close(batch)
        self.unlink(batch)

    def clear(self):
        """Removes all batches."""
        self.remove_all()
        self.due = []
        self.ended = deque()
        self.last = None
        self.count = 0

    def all(self):
        """The batches, open and ended, in the order of their starts."""
        return self.entries()

    def open_batches(self):
        """The batches that have not ended."""
        cdef FastBatch batch
        return [batch for batch in self.entries() if batch.final is None]

    def dump(self):
        """The state, for load(): the batches in the order of their starts, and the places of those that ended
        in the order of their ends."""
        cdef FastBatch batch
        cdef list batches = self.entries()
        cdef dict places = {one: number for number, one in enumerate(batches)}
        return [
            (batch.head, batch.key, batch.id, batch.flow, batch.gap_ok, batch.seq, batch.stream_seq, batch.acked,
             batch.msgs, batch.heard_ns, batch.final)
            for batch in batches
        ], [places[one] for one in self.ended]

    def load(self, list batches not None, list ended not None):
        """Takes over the state that dump() returned. Raises ValueError when it is none."""
        cdef FastBatch batch
        cdef list loaded = []
        for head, key, id, flow, gap_ok, seq, stream_seq, acked, msgs, heard_ns, final in batches:
            batch = FastBatch()
            batch.head, batch.id, batch.flow, batch.gap_ok = head, id, flow, gap_ok
            batch.seq, batch.stream_seq, batch.acked, batch.msgs = seq, stream_seq, acked, max(1, msgs)
            batch.heard_ns, batch.final = heard_ns, final
            if acked > seq or self.look_up(PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key)) is not None:
                raise ValueError(f"not the state of fast batches: {id!r}")
            self.add(batch, key)
            loaded.append(batch)
            if final is None:
                self.count += 1
                if seq - acked >= batch.msgs:
                    batch.is_due = True
                    self.due.append(batch)
        for number in ended:
            self.ended.append(loaded[number])

    @property
    def has_due(self):
        """Is a flow ack due for some batch?"""
        return len(self.due) > 0

    # ------------------------------------------------------------------ inside

    cdef int unlink(self, FastBatch batch) except -1:
        if self.last is batch:
            self.last = None
        self.remove(batch)
        return 0

    def _close(self, FastBatch batch not None):
        if batch.is_due:
            batch.is_due = False
            self.due.remove(batch)
        self.count -= 1


# --- staging

cdef class StagedTotal:
    def __cinit__(self, size_t bytes_max=<size_t>-1, StagedTotal whole=None):
        self.bytes_max = bytes_max
        self.whole = whole

    cdef int add(self, size_t n) except -1:
        self.bytes += n
        if self.whole is not None:
            self.whole.add(n)
        return 0

    cdef int remove(self, size_t n) except -1:
        assert self.bytes >= n
        self.bytes -= n
        if self.whole is not None:
            self.whole.remove(n)
        return 0

    def limit(self, size_t bytes_max):
        """Sets the limit for further messages."""
        self.bytes_max = bytes_max


cdef class StagedBatch(KeyEntry):
    def __cinit__(self, bytes id not None, StagedTotal total not None, size_t messages_max, size_t size_max):
        self.id = id
        self.total = total
        self.messages_max = messages_max
        self.size_max = size_max
        self.buf = OutBuffer()

    cdef int put(self, const PublishHead* head) except -1:
        memcpy(self.buf.reserve(head.size), head, head.size)
        self.buf.size += head.size
        self.count_in(head)
        return 0

    cdef int count_in(self, const PublishHead* head) except -1:
        """Counts the message of `head`, which was appended to `buf`."""
        self.last_at = self.buf.size - head.size
        self.total.add(head.size)
        self.size += record_size(head.subject_len, head.header_len, head.body_len)
        self.flags |= head.flags
        self.count += 1
        return 0

    def next_seq(self):
        """Advances to the next message of the batch and returns its sequence in it."""
        self.seq += 1
        return self.seq

    def append(self, bytes subject not None, bytes header not None, bytes payload not None):
        """Adds a message. Raises ValueError when it is too large for a batch of publishes."""
        cdef bytes body = header + payload
        cdef Message m
        m.subject = PyBytes_AS_STRING(subject)
        m.subject_len = <size_t>PyBytes_GET_SIZE(subject)
        m.reply_len = 0
        m.body = PyBytes_AS_STRING(body)
        m.header_len = <size_t>PyBytes_GET_SIZE(header)
        m.body_len = <size_t>PyBytes_GET_SIZE(body)
        if not fits(&m):
            raise ValueError(f"a message of {len(subject)} bytes of subject and {len(body)} of body can't be staged")
        self.count_in(put_publish(self.buf, &m))

    def replace_last_header(self, bytes header not None):
        """Replaces the header block of the last message."""
        subject, _, payload = self._message(self.last_at)
        cdef const PublishHead* head = <const PublishHead*>(self.buf.data + self.last_at)
        assert self.last_at + head.size == self.buf.size and self.count > 0
        self.total.remove(head.size)
        self.size -= record_size(head.subject_len, head.header_len, head.body_len)
        self.buf.size = self.last_at
        self.count -= 1
        self.append(subject, header, payload)

    @property
    def last_header(self):
        return self._message(self.last_at)[1]

    def messages(self):
        """[(subject, header, payload)] of all messages, in order."""
        cdef list found = []
        cdef size_t at = 0
        while at < self.buf.size:
            found.append(self._message(at))
            at += (<const PublishHead*>(self.buf.data + at)).size
        return found

    def _message(self, size_t at):
        cdef Message m
        if at >= self.buf.size:
            raise IndexError("the batch has no message")
        message_of(<const PublishHead*>(self.buf.data + at), &m)
        subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
        header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
        payload = PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len))
        return subject, header, payload


cdef class StagedBatches(KeyTable):
    def __cinit__(self):
        self.check_at = INT64_MAX

    # ------------------------------------------------------------------ for the ingest kernel

    cdef bint take(self, const PublishHead* head, int64_t now) except -1:
        cdef const char* id = <const char*>head + sizeof(PublishHead) + head.subject_len + head.reply_len
        cdef StagedBatch batch = self.last
        id += head.batch_start
        if (
            batch is None
            or <size_t>PyBytes_GET_SIZE(batch.id) != head.batch_len
            or memcmp(PyBytes_AS_STRING(batch.id), id, head.batch_len) != 0
        ):
            batch = <StagedBatch>self.look_up(id, head.batch_len)
            if batch is None:
                return False
            self.last = batch
        if (
            head.flags & PUBLISH_COMMITS
            or head.batch_seq != batch.seq + 1
            or now >= self.check_at
            or batch.count >= batch.messages_max
            or batch.size + record_size(head.subject_len, head.header_len, head.body_len) > batch.size_max
            or batch.total.bytes + head.size > batch.total.bytes_max
        ):
            return False
        batch.put(head)
        batch.seq += 1
        batch.heard_ns = now
        return True

    # ------------------------------------------------------------------ for Python

    def open(self, bytes id not None, StagedTotal total not None, size_t messages_max, size_t size_max):
        """Opens a batch with limits on messages and bytes of records, which counts in `total`. Raises
        ValueError when one with that id is open."""
        cdef StagedBatch batch = StagedBatch(id, total, messages_max, size_max)
        if self.find(id) is not None:
            raise ValueError(f"batch {id!r} is open already")
        self.add(batch, id)
        self.last = batch
        self.count += 1
        return batch

    def find(self, bytes id not None):
        """The open batch of an id, or None."""
        return self.look_up(PyBytes_AS_STRING(id), <size_t>PyBytes_GET_SIZE(id))

    def heard(self, StagedBatch batch not None, int64_t now, int64_t timeout_ns):
        """A message of the batch arrived at `now`: it times out no earlier than timeout_ns later."""
        batch.heard_ns = now
        self.check_from(min(self.check_at, now + timeout_ns))

    def check_from(self, int64_t at):
        """Sets check_at: no batch times out before."""
        self.check_at = at

    def close(self, StagedBatch batch not None):
        """Removes an open batch; its messages stay readable."""
        if self.last is batch:
            self.last = None
        self.remove(batch)
        assert self.count > 0
        batch.total.remove(batch.buf.size)
        self.count -= 1
        if self.count == 0:
            self.check_at = INT64_MAX

    def all(self):
        """The open batches, least recently used first, those of the same time by their ids: a replica that was
        restored does not know in which order they began."""
        cdef list found = self.entries()
        found.sort(key=lambda one: (one.heard_ns, one.id))
        return found


# --- atomic commits

cdef bint is_named(const PublishHead* head, bint by_id, const char* p, size_t n) noexcept nogil:
    """Are these bytes the subject of a staged message, or (by_id) its message id?"""
    cdef const char* text = <const char*>head + sizeof(PublishHead)
    if by_id:
        text += head.subject_len + head.reply_len + head.id_start
        return head.id_len == n and memcmp(text, p, n) == 0
    return head.subject_len == n and memcmp(text, p, n) == 0


cdef bint has_message(const HashTable* t, uint64_t h, bint by_id, const char* p, size_t n) noexcept nogil:
    cdef Cell* cell = table_first(t, h)
    while cell != NULL:
        if is_named(<const PublishHead*>cell.value, by_id, p, n):
            return True
        cell = table_next(t, cell)
    return False


def check_staged(StagedBatch batch not None, StreamLog log not None, PlainLimits limits not None,
                 MessageIds ids not None, int64_t now):
    """May store_staged() store the batch as it is? `now` (ns) is the end of the dedupe window."""
    cdef HashTable known, written       # messages by their ids and by their subjects; the batch outlives both
    if limits.per_message or batch.flags & PUBLISH_IS_SPECIAL or batch.count == 0:
        return False
    if limits.discard_new and (
        (limits.msgs_max > 0 and log.messages + batch.count > <uint64_t>limits.msgs_max)
        or (limits.bytes_max > 0 and log.bytes + cost_of_all(batch, log) > <uint64_t>limits.bytes_max)
    ):
        return False
    if not batch.flags & (PUBLISH_HAS_ID | PUBLISH_EXPECTS):
        return True
    memset(&known, 0, sizeof(HashTable))
    memset(&written, 0, sizeof(HashTable))
    try:
        if batch.flags & PUBLISH_HAS_ID:
            table_reserve(&known, batch.count)
        if batch.flags & PUBLISH_EXPECTS:
            table_reserve(&written, batch.count)
        return check_messages(batch, log, limits, ids, now, &known, &written)
    finally:
        table_free(&known)
        table_free(&written)


cdef uint64_t cost_of_all(StagedBatch batch, StreamLog log) noexcept:
    """The amount by which `bytes` of the log would grow."""
    cdef const PublishHead* head
    cdef size_t at = 0
    cdef uint64_t size = 0
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        size += cost_of(&log.cost, head.subject_len, head.header_len, head.body_len)
        at += head.size
    return size


cdef bint check_messages(StagedBatch batch, StreamLog log, PlainLimits limits, MessageIds ids, int64_t now,
                         HashTable* known, HashTable* written) except -1:
    cdef const PublishHead* head
    cdef Message m
    cdef size_t at = 0
    cdef uint32_t present
    cdef uint64_t h
    cdef const char* id
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        message_of(head, &m)
        if head.flags & PUBLISH_EXPECTS:
            present = present_expectations(m.body, m.header_len)
            if present & EXPECTS_LAST_ID or (present & EXPECTS_SEQ and at):
                return False
            if present & EXPECTS_SUBJECT_SEQ and has_message(
                written, xxh64(m.subject, m.subject_len, ids.seed), False, m.subject, m.subject_len
            ):
                return False
            if failed_expectations(&m, log, limits.stream, ids):
                return False
        if head.flags & PUBLISH_HAS_ID:
            id = m.body + head.id_start
            h = xxh64(id, head.id_len, ids.seed)
            if has_message(known, h, True, id, head.id_len) or ids.seq_of(id, head.id_len, <uint32_t>h, now):
                return False
            table_put(known, h, <uint64_t>head)
        if written.capacity:
            h = xxh64(m.subject, m.subject_len, ids.seed)
            if not has_message(written, h, False, m.subject, m.subject_len):
                table_put(written, h, <uint64_t>head)
        at += head.size
    return True


def store_staged(StagedBatch batch not None, StreamLog log not None, PlainLimits limits not None,
                 MessageIds ids not None, int64_t ts, Republisher republisher):
    """Stores the messages as one unit at `ts` (ns); returns the sequence of the last."""
    cdef const PublishHead* head
    cdef Message m
    cdef size_t at = 0
    cdef uint64_t seq = 0
    cdef uint32_t h
    log.begin_batch(batch.size, batch.count)
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        message_of(head, &m)
        h = ids.hash_of(m.body + head.id_start, head.id_len) if head.flags & PUBLISH_HAS_ID else 0
        seq = store_publish(log, limits, ids, head, &m, h, ts, republisher)
        at += head.size
    log.end_batch()
    return seq
