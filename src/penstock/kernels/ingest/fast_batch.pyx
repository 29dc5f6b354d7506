"""Fast batches of a stream (ADR-50): the grammar of their reply subjects, and how far each one is.

A message of a fast batch says what it is in its reply subject,
`<prefix>.<id>.<flow>.<ok|fail>.<seq>.<op>.$FI`, read from the right: a prefix may have dots. The ingest
kernel asks next_append() about each publish of such a reply, stores the next message of an open batch by
itself, and says so with took(); whatever else may happen to a batch is decided in Python
(jetstream/stream/fast_batches.py).

Invariants: `acked <= seq`; a batch is in a bucket from its start until it is forgotten, and open until it has
a final answer; `due` holds exactly the open batches with `seq >= acked + msgs`. A batch is known by prefix and
id together, so that nobody gets into another one's by its id alone. Of ended batches the last ENDED_KEPT stay
known: a ping gets the final answer once more, and of what else their publishers had on its way, one message a
tick is refused and the rest is dropped.

Rejected: a Python dict (with several publishers, a key object for every message); keeping the reply subject
of the last message for the ack (it can be written again from the head and a sequence).
"""
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.key_table cimport KeyEntry, KeyTable

cdef enum:
    SUFFIX_SIZE = 4                 # ".$FI"
    BUCKETS = 1024
    ENDED_KEPT = 64
    FLOW_DEFAULT = 10               # of a flow that is none
    FLOW_MAX = 65535

cdef uint64_t SEQ_END = <uint64_t>-1    # no sequence: the one behind it could not be counted


cdef bint is_fast(const char* reply, size_t n) noexcept nogil:
    return n > SUFFIX_SIZE and memcmp(reply + n - SUFFIX_SIZE, b".$FI", SUFFIX_SIZE) == 0


cdef inline size_t token_start(const char* p, size_t end) noexcept nogil:
    """Where the token that ends before `end` begins; 0: there is no dot before it."""
    while end > 0 and p[end - 1] != c".":
        end -= 1
    return end


cdef bint read_seq(const char* p, size_t n, uint64_t* value) noexcept nogil:
    """A batch sequence in decimal: neither 0 nor the largest number."""
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
    """The flow a client asks for; 10 for what is none, as with the official server."""
    cdef uint64_t v = 0
    cdef size_t i
    for i in range(n):
        if p[i] < c"0" or p[i] > c"9":
            return FLOW_DEFAULT
        v = min(v * 10 + <uint64_t>(p[i] - c"0"), <uint64_t>FLOW_MAX)
    return <uint32_t>v if v else <uint32_t>FLOW_DEFAULT


cdef bint parse_end(const char* p, size_t head_len, size_t n, FastSubject* s) noexcept nogil:
    """`<seq>.<op>.$FI`, behind a head of head_len bytes."""
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
    """One batch; FastBatches makes and changes it."""


cdef class FastBatches(KeyTable):
    def __cinit__(self):
        self.scratch = OutBuffer()
        self.clear()

    # ------------------------------------------------------------------ for the ingest kernel

    cdef FastBatch next_append(self, const char* reply, size_t n, int64_t now, int* verdict):
        """The batch whose next message this is (FAST_STORE); else None and another verdict."""
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
                # Some clients say the flow they were given from then on.
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
        """To the latest multiple of its messages per ack; these then double or halve towards `limit`."""
        batch.is_due = False
        batch.acked += (batch.seq - batch.acked) // batch.msgs * batch.msgs
        limit = max(<uint32_t>1, min(limit, batch.flow))
        if batch.msgs < limit:
            batch.msgs = min(batch.msgs * 2, limit)
        elif batch.msgs > limit:
            batch.msgs = max(batch.msgs // 2, limit)
            # A publisher that waits for the rest under the smaller number would wait for ever.
            batch.acked += (batch.seq - batch.acked) // batch.msgs * batch.msgs
        return 0

    # ------------------------------------------------------------------ for Python

    def start(self, bytes reply not None, uint32_t msgs, int64_t now):
        """A new batch, of the reply subject of its first message. Raises ValueError for no such subject."""
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
        """The batch of a reply subject, open or ended lately; else None."""
        cdef FastSubject s
        cdef const char* p = PyBytes_AS_STRING(reply)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(reply)
        return self.look_up(p, s.key_len) if parse_subject(p, n, &s) else None

    def received(self, FastBatch batch not None, uint64_t seq, uint64_t stream_seq=0, bint duplicate=False):
        """The batch has come as far as `seq`, whose message is at `stream_seq` in the stream (0: it is not
        stored; duplicate: it was stored before)."""
        self.took(batch, seq, stream_seq, duplicate)

    def end(self, FastBatch batch not None, bytes final not None):
        """The batch is over; `final` is what its publisher is told, now and when it asks again."""
        self._close(batch)
        batch.final = final
        self.ended.append(batch)
        if len(self.ended) > ENDED_KEPT:
            self.unlink(self.ended.popleft())

    def forget(self, FastBatch batch not None):
        """Nothing of the batch is known from now on."""
        if batch.final is not None:
            self.ended.remove(batch)
        else:
            self._close(batch)
        self.unlink(batch)

    def clear(self):
        """Forgets every batch."""
        self.make(BUCKETS)
        self.due = []
        self.ended = deque()
        self.last = None
        self.count = 0

    def open_batches(self):
        """The batches that have not ended."""
        cdef FastBatch batch
        return [batch for batch in self.entries() if batch.final is None]

    @property
    def has_due(self):
        """Is there a batch that a flow ack is due to?"""
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
