"""Staging of atomic batches (ADR-50): where their messages wait for the commit.

A message that is simply the next one of an open batch is copied behind the others by take(), with what is
known of its headers, and no Python object is made. Everything else that can happen to a batch (its first
message, its commit, a gap, a header that asks for more) is decided in Python
(jetstream/stream/atomic.py), which works on the same batches.

Invariants: `count` messages lie in `buf`, in their order, and `size` is what their records will take; the
total of the server holds exactly the bytes of all open batches. No message is taken at or after `check_at`,
so that none gets into a batch that time has ended.

Rejected: a Python tuple per message (3 us); leaving the messages in the streams' batches until the commit
(those are reused every tick).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from penstock.kernels.buffers cimport OutBuffer
from penstock.kernels.publishheaders cimport PUBLISH_COMMITS, PublishHead, classify_header, message_of
from penstock.kernels.records cimport record_size, xxh64
from penstock.kernels.sinks cimport Message

cdef enum:
    BUCKETS = 256                   # a power of two
    LENGTH_MAX = 0xFFFF             # of a subject
    BODY_MAX = 0x7FFF0000


cdef class StagedTotal:
    def __cinit__(self, size_t bytes_max=<size_t>-1):
        self.bytes_max = bytes_max


cdef class StagedBatch:
    def __cinit__(self, bytes id not None, StagedTotal total not None, size_t messages_max, size_t size_max):
        self.id = id
        self.total = total
        self.messages_max = messages_max
        self.size_max = size_max
        self.buf = OutBuffer()

    cdef int put(self, const PublishHead* head) except -1:
        memcpy(self.buf.reserve(head.size), head, head.size)
        self.last_at = self.buf.size
        self.buf.size += head.size
        self.total.bytes += head.size
        self.size += record_size(head.subject_len, head.header_len, head.body_len)
        self.flags |= head.flags
        self.count += 1
        return 0

    def append(self, bytes subject not None, bytes header not None, bytes payload not None):
        """Adds a message. Raises ValueError when it is too large for a batch of publishes."""
        cdef size_t subject_len = <size_t>PyBytes_GET_SIZE(subject)
        cdef size_t header_len = <size_t>PyBytes_GET_SIZE(header)
        cdef size_t payload_len = <size_t>PyBytes_GET_SIZE(payload)
        cdef size_t size = sizeof(PublishHead) + subject_len + header_len + payload_len
        cdef size_t padded = (size + 7) & ~<size_t>7
        cdef PublishHead* head
        cdef char* d
        if subject_len > LENGTH_MAX or header_len + payload_len > BODY_MAX:
            raise ValueError(f"a message of {size} bytes can't be staged")
        head = <PublishHead*>self.buf.reserve(padded)
        memset(head, 0, sizeof(PublishHead))
        head.size = <uint32_t>padded
        head.header_len = <uint32_t>header_len
        head.body_len = <uint32_t>(header_len + payload_len)
        head.subject_len = <uint16_t>subject_len
        if header_len:
            classify_header(PyBytes_AS_STRING(header), head)
        d = <char*>head + sizeof(PublishHead)
        memcpy(d, PyBytes_AS_STRING(subject), subject_len)
        memcpy(d + subject_len, PyBytes_AS_STRING(header), header_len)
        memcpy(d + subject_len + header_len, PyBytes_AS_STRING(payload), payload_len)
        memset(<char*>head + size, 0, padded - size)
        self.last_at = self.buf.size
        self.buf.size += padded
        self.total.bytes += padded
        self.size += record_size(subject_len, header_len, header_len + payload_len)
        self.flags |= head.flags
        self.count += 1

    def replace_last_header(self, bytes header not None):
        """The last message gets another header block."""
        subject, _, payload = self._message(self.last_at)
        cdef const PublishHead* head = <const PublishHead*>(self.buf.data + self.last_at)
        self.total.bytes -= head.size
        self.size -= record_size(head.subject_len, head.header_len, head.body_len)
        self.buf.size = self.last_at
        self.count -= 1
        self.append(subject, header, payload)

    @property
    def last_header(self):
        return self._message(self.last_at)[1]

    def messages(self):
        """[(subject, header, payload)] of all, in their order."""
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


cdef class StagedBatches:
    def __cinit__(self):
        # Python's hash is seeded per process, so that nobody can prepare ids that collide.
        self.seed = <uint64_t>hash(b"penstock.staging")
        self.buckets = [None] * BUCKETS
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
            batch = self.lookup(id, head.batch_len, xxh64(id, head.batch_len, self.seed))
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
        """A new batch, of at most so many messages and bytes of records, that counts in `total`. Raises
        ValueError when one of that id is open."""
        cdef StagedBatch batch = StagedBatch(id, total, messages_max, size_max)
        cdef size_t bucket
        batch.hash = xxh64(PyBytes_AS_STRING(id), <size_t>PyBytes_GET_SIZE(id), self.seed)
        if self.lookup(PyBytes_AS_STRING(id), <size_t>PyBytes_GET_SIZE(id), batch.hash) is not None:
            raise ValueError(f"batch {id!r} is open already")
        bucket = batch.hash & (BUCKETS - 1)
        batch.next = self.buckets[bucket]
        self.buckets[bucket] = batch
        self.last = batch
        self.count += 1
        return batch

    def find(self, bytes id not None):
        """The open batch of an id, or None."""
        cdef const char* p = PyBytes_AS_STRING(id)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(id)
        return self.lookup(p, n, xxh64(p, n, self.seed))

    def close(self, StagedBatch batch not None):
        """Forgets an open batch; what it holds stays readable."""
        cdef size_t bucket = batch.hash & (BUCKETS - 1)
        cdef StagedBatch before = <StagedBatch>self.buckets[bucket]
        if self.last is batch:
            self.last = None
        if before is batch:
            self.buckets[bucket] = batch.next
        else:
            while before.next is not batch:
                before = before.next
            before.next = batch.next
        batch.next = None
        batch.total.bytes -= batch.buf.size
        self.count -= 1
        if self.count == 0:
            self.check_at = INT64_MAX

    def all(self):
        """The open batches, the one heard of longest ago first."""
        cdef list found = []
        cdef StagedBatch batch
        for batch in self.buckets:
            while batch is not None:
                found.append(batch)
                batch = batch.next
        found.sort(key=lambda one: one.heard_ns)
        return found

    # ------------------------------------------------------------------ inside

    cdef StagedBatch lookup(self, const char* id, size_t n, uint64_t h):
        cdef StagedBatch batch = <StagedBatch>self.buckets[<size_t>(h & (BUCKETS - 1))]
        while batch is not None:
            if (
                batch.hash == h
                and <size_t>PyBytes_GET_SIZE(batch.id) == n
                and memcmp(PyBytes_AS_STRING(batch.id), id, n) == 0
            ):
                return batch
            batch = batch.next
        return None
