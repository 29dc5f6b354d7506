# cython: auto_pickle=False
"""Encoders of NATS protocol frames: what the server sends to clients, and clients to it.

A frame is put into an OutBuffer in one go, into room reserved for all of it. Subjects, sids and headers are
written as they are: whoever calls has checked them.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from penstock.kernels.wire.buffers cimport OutBuffer, put_uint

cdef enum:
    FRAME_SLACK = 64    # verb, blanks, two sizes of up to 20 digits, two CRLF


cdef inline char* put(char* d, const char* p, size_t n) noexcept nogil:
    memcpy(d, p, n)
    return d + n


cdef inline char* put_word(char* d, const char* p, size_t n) noexcept nogil:
    """The word and the blank behind it."""
    memcpy(d, p, n)
    d[n] = c' '
    return d + n + 1


cdef inline char* put_crlf(char* d) noexcept nogil:
    d[0] = c'\r'
    d[1] = c'\n'
    return d + 2


cdef inline char* put_sizes(char* d, size_t header_len, size_t body_len) noexcept nogil:
    if header_len:
        d += put_uint(d, header_len)
        d[0] = c' '
        d += 1
    d += put_uint(d, body_len)
    return put_crlf(d)


cdef inline char* put_verb(char* d, size_t header_len) noexcept nogil:
    return put(d, b"HMSG ", 5) if header_len else put(d, b"MSG ", 4)


cdef inline void put_rest(
    OutBuffer out, char* d, const char* reply, size_t reply_len, const char* body, size_t header_len, size_t body_len,
) noexcept:
    """What comes after the sid, at d, which has room for it."""
    if reply_len:
        d = put_word(d, reply, reply_len)
    d = put_sizes(d, header_len, body_len)
    d = put(d, body, body_len)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)


cdef int put_msg(
    OutBuffer out, const char* subject, size_t subject_len, const char* sid, size_t sid_len,
    const char* reply, size_t reply_len, const char* body, size_t header_len, size_t body_len,
) except -1:
    cdef char* d = put_verb(out.reserve(subject_len + sid_len + reply_len + body_len + FRAME_SLACK), header_len)
    d = put_word(put_word(d, subject, subject_len), sid, sid_len)
    put_rest(out, d, reply, reply_len, body, header_len, body_len)
    return 0


cdef int put_msg_behind(
    OutBuffer out, const char* words, size_t words_len, const char* reply, size_t reply_len,
    const char* body, size_t header_len, size_t body_len,
) except -1:
    cdef char* d = put_verb(out.reserve(words_len + reply_len + body_len + FRAME_SLACK), header_len)
    put_rest(out, put(d, words, words_len), reply, reply_len, body, header_len, body_len)
    return 0


cdef class _View:
    """A contiguous buffer for the time of one call."""
    cdef Py_buffer view
    cdef const char* p
    cdef size_t n
    cdef bint held

    def __cinit__(self, data):
        if data is None:
            self.p, self.n = NULL, 0
        elif PyBytes_CheckExact(data):
            self.p, self.n = PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)
        else:
            PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.p, self.n = <const char*>self.view.buf, <size_t>self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef inline const char* text_of(bytes data) noexcept:
    return NULL if data is None else PyBytes_AS_STRING(data)


cdef inline size_t size_of(bytes data) noexcept:
    return 0 if data is None else <size_t>PyBytes_GET_SIZE(data)


cdef int put_body(OutBuffer out, char* d, bytes header, const char* payload, size_t payload_len) except -1:
    """Sizes, header, payload and CRLF at d, which has room for them."""
    cdef size_t header_len = size_of(header)
    d = put_sizes(d, header_len, header_len + payload_len)
    if header_len:
        d = put(d, text_of(header), header_len)
    d = put(d, payload, payload_len)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)
    return 0


def encode_pub(OutBuffer out not None, bytes subject not None, bytes reply, bytes header, payload not None):
    """PUB, or HPUB when there is a header block (its CRLF CRLF included). The caller checked the subjects."""
    cdef _View view = None
    cdef const char* p
    cdef size_t n
    cdef char* d
    if PyBytes_CheckExact(payload):
        p, n = PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload)
    else:
        view = _View(payload)
        p, n = view.p, view.n
    d = out.reserve(size_of(subject) + size_of(reply) + size_of(header) + n + FRAME_SLACK)
    if size_of(header):
        d = put(d, b"HPUB ", 5)
    else:
        d = put(d, b"PUB ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    if size_of(reply):
        d = put_word(d, text_of(reply), size_of(reply))
    put_body(out, d, header, p, n)


def encode_msg(
    OutBuffer out not None, bytes subject not None, bytes sid not None, bytes reply, bytes header,
    payload not None,
):
    """MSG, or HMSG when there is a header block."""
    cdef _View view = _View(payload)
    cdef char* d = out.reserve(
        size_of(subject) + size_of(sid) + size_of(reply) + size_of(header) + view.n + FRAME_SLACK
    )
    if size_of(header):
        d = put(d, b"HMSG ", 5)
    else:
        d = put(d, b"MSG ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    d = put_word(d, text_of(sid), size_of(sid))
    if size_of(reply):
        d = put_word(d, text_of(reply), size_of(reply))
    put_body(out, d, header, view.p, view.n)


def encode_sub(OutBuffer out not None, bytes subject not None, bytes queue, bytes sid not None):
    """SUB subject [queue] sid."""
    cdef char* d = out.reserve(size_of(subject) + size_of(queue) + size_of(sid) + FRAME_SLACK)
    d = put(d, b"SUB ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    if size_of(queue):
        d = put_word(d, text_of(queue), size_of(queue))
    d = put(d, text_of(sid), size_of(sid))
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)


def encode_unsub(OutBuffer out not None, bytes sid not None, uint64_t max_msgs=0):
    """UNSUB sid [max_msgs]; 0 = now."""
    cdef char* d = out.reserve(size_of(sid) + FRAME_SLACK)
    d = put(d, b"UNSUB ", 6)
    d = put(d, text_of(sid), size_of(sid))
    if max_msgs:
        d[0] = c' '
        d += 1 + put_uint(d + 1, max_msgs)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)
