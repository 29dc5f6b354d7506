"""The commit of an atomic batch, for batches whose headers ask for nothing unusual.

check_staged() is the answer "all of it may be stored" to the checks of jetstream/stream/staged.py, for what
the ingest kernel understands (message ids, expectations, limits that refuse); store_staged() then stores the
messages in one run. Where the answer is no, Python checks message by message, and names what is wrong.

Invariant: check_staged() never says yes to what staged.py refuses; it changes nothing.
Rejected: sets of Python objects for ids and subjects (0.3 us a message).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from penstock.kernels.ingest.ingest cimport PlainLimits, store_publish
from penstock.kernels.log.message_ids cimport MessageIds
from penstock.kernels.ingest.publish_headers cimport (
    EXPECTS_LAST_ID, EXPECTS_SEQ, EXPECTS_SUBJECT_SEQ, PUBLISH_EXPECTS, PUBLISH_HAS_ID, PUBLISH_IS_SPECIAL,
    PublishHead, failed_expectations, message_of, present_expectations,
)
from penstock.kernels.log.records cimport cost_of, xxh64
from penstock.kernels.ingest.republish cimport Republisher
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.ingest.staging cimport StagedBatch
from penstock.kernels.log.stream_log cimport StreamLog

cdef struct Span:
    const char* p                   # NULL: an empty place
    size_t n
    uint64_t hash


# Byte strings of one batch, which outlive it.
cdef struct Spans:
    Span* table
    size_t mask


cdef int spans_open(Spans* spans, size_t count) except -1:
    cdef size_t size = 16
    while size < 2 * count:
        size *= 2
    spans.table = <Span*>calloc(size, sizeof(Span))
    spans.mask = size - 1
    if spans.table == NULL:
        raise MemoryError()
    return 0


cdef Span* spans_place(Spans* spans, const char* p, size_t n, uint64_t h) noexcept nogil:
    """Where the bytes are, or would go."""
    cdef size_t at = h & spans.mask
    cdef Span* span = &spans.table[at]
    while span.p != NULL and not (span.hash == h and span.n == n and memcmp(span.p, p, n) == 0):
        at = (at + 1) & spans.mask
        span = &spans.table[at]
    return span


cdef bint spans_add(Spans* spans, const char* p, size_t n, uint64_t seed) noexcept nogil:
    """False: they were there before."""
    cdef uint64_t h = xxh64(p, n, seed)
    cdef Span* span = spans_place(spans, p, n, h)
    if span.p != NULL:
        return False
    span.p = p
    span.n = n
    span.hash = h
    return True


cdef bint spans_has(Spans* spans, const char* p, size_t n, uint64_t seed) noexcept nogil:
    return spans_place(spans, p, n, xxh64(p, n, seed)).p != NULL


def check_staged(StagedBatch batch not None, StreamLog log not None, PlainLimits limits not None,
                 MessageIds ids not None, int64_t now):
    """May store_staged() store the batch as it is? `now` (ns) is what the dedupe window ends at."""
    cdef Spans known, written
    if limits.per_message or batch.flags & PUBLISH_IS_SPECIAL or batch.count == 0:
        return False
    if limits.discard_new and (
        (limits.msgs_max > 0 and log.messages + batch.count > <uint64_t>limits.msgs_max)
        or (limits.bytes_max > 0 and log.bytes + cost_of_all(batch, log) > <uint64_t>limits.bytes_max)
    ):
        return False
    if not batch.flags & (PUBLISH_HAS_ID | PUBLISH_EXPECTS):
        return True
    known.table = written.table = NULL
    known.mask = written.mask = 0
    try:
        if batch.flags & PUBLISH_HAS_ID:
            spans_open(&known, batch.count)
        if batch.flags & PUBLISH_EXPECTS:
            spans_open(&written, batch.count)
        return check_messages(batch, log, limits, ids, now, &known, &written)
    finally:
        free(known.table)
        free(written.table)


cdef uint64_t cost_of_all(StagedBatch batch, StreamLog log) noexcept:
    """What `bytes` of the log would grow by."""
    cdef const PublishHead* head
    cdef size_t at = 0
    cdef uint64_t size = 0
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        size += cost_of(&log.cost, head.subject_len, head.header_len, head.body_len)
        at += head.size
    return size


cdef bint check_messages(StagedBatch batch, StreamLog log, PlainLimits limits, MessageIds ids, int64_t now,
                         Spans* known, Spans* written) except -1:
    cdef const PublishHead* head
    cdef Message m
    cdef size_t at = 0
    cdef uint32_t present
    cdef const char* id
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        message_of(head, &m)
        if head.flags & PUBLISH_EXPECTS:
            present = present_expectations(m.body, m.header_len)
            if present & EXPECTS_LAST_ID or (present & EXPECTS_SEQ and at):
                return False
            if present & EXPECTS_SUBJECT_SEQ and spans_has(written, m.subject, m.subject_len, ids.seed):
                return False
            if failed_expectations(&m, log, limits.stream, ids):
                return False
        if head.flags & PUBLISH_HAS_ID:
            id = m.body + head.id_start
            if not spans_add(known, id, head.id_len, ids.seed) or ids.seq_of(id, head.id_len, now):
                return False
        if written.table != NULL:
            spans_add(written, m.subject, m.subject_len, ids.seed)
        at += head.size
    return True


def store_staged(StagedBatch batch not None, StreamLog log not None, PlainLimits limits not None,
                 MessageIds ids not None, int64_t ts, Republisher republisher):
    """Stores the messages as one unit at `ts` (ns): returns the sequence of the last."""
    cdef const PublishHead* head
    cdef Message m
    cdef size_t at = 0
    cdef uint64_t seq = 0
    log.begin_batch(batch.size, batch.count)
    while at < batch.buf.size:
        head = <const PublishHead*>(batch.buf.data + at)
        message_of(head, &m)
        seq = store_publish(log, limits, ids, head, &m, ts, republisher)
        at += head.size
    log.end_batch()
    return seq
