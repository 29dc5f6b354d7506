"""Staging of atomic batches (ADR-50): where their messages wait for the commit.

A message that is simply the next one of an open batch is copied behind the others by take(), with what is
known of its headers, and no Python object is made. Everything else that can happen to a batch (its first
message, its commit, a gap, a header that asks for more) is decided in Python
(jetstream/stream/atomic_batches.py), which works on the same batches.

Invariants: `count` messages lie in `buf`, in their order, and `size` is what their records will take; the
total of the server holds exactly the bytes of all open batches. No message is taken at or after `check_at`,
so that none gets into a batch that time has ended.

Rejected: a Python tuple per message (3 us); leaving the messages in the streams' batches until the commit
(those are reused every tick).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcmp, memcpy

from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.key_table cimport KeyEntry, KeyTable
from penstock.kernels.ingest.publish_headers cimport PUBLISH_COMMITS, PublishHead, fits, message_of, put_publish
from penstock.kernels.log.records cimport record_size
from penstock.kernels.wire.sinks cimport Message


cdef enum:
    BUCKETS = 256


cdef class StagedTotal:
    def __cinit__(self, size_t bytes_max=<size_t>-1):
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

    cdef void count_in(self, const PublishHead* head) noexcept:
        """The message of `head` is the last one in `buf`."""
        self.last_at = self.buf.size - head.size
        self.total.bytes += head.size
        self.size += record_size(head.subject_len, head.header_len, head.body_len)
        self.flags |= head.flags
        self.count += 1

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


cdef class StagedBatches(KeyTable):
    def __cinit__(self):
        self.make(BUCKETS)
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
        """A new batch, of at most so many messages and bytes of records, that counts in `total`. Raises
        ValueError when one of that id is open."""
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

    def close(self, StagedBatch batch not None):
        """Forgets an open batch; what it holds stays readable."""
        if self.last is batch:
            self.last = None
        self.remove(batch)
        batch.total.bytes -= batch.buf.size
        self.count -= 1
        if self.count == 0:
            self.check_at = INT64_MAX

    def all(self):
        """The open batches, the one heard of longest ago first."""
        cdef list found = self.entries()
        found.sort(key=lambda one: one.heard_ns)
        return found
