"""Republishing: each message a stream stored goes out again, with headers that say what it was.

Invariants: a message enters once it was stored, in the order of sequences, and leaves only by route(), which
the engine calls after the write; nothing of a batch that could not be written leaves.

Rejected: reading the messages back from the log when they leave (a limit may have removed them by then);
a Python object a message.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.kernels.wire.buffers cimport OutBuffer, put_uint
from penstock.kernels.wire.dispatch cimport SubjectMapper, route
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

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
        """From now on; what waits stays as it is."""
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
            d = put_text(d, m.body, m.header_len - 2)      # without its empty line
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
        """Sends what waits on its way; returns how many found a taker."""
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
        """Drops what waits."""
        self.buf.clear()
        self.count = 0
