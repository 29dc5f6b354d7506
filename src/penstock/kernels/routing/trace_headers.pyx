# cython: auto_pickle=False
"""Does a publish ask to be traced? Looked at for every message with headers, so it only finds lines.

What the values mean, and whether the trace happens, is decided in Python (server/monitoring/message_trace.py).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

from penstock.kernels.wire.sinks cimport Message

cdef enum:
    DEST_LEN = 16
    PARENT_LEN = 12


cdef inline bint is_parent(const char* p) noexcept nogil:
    """`traceparent:`, in letters of any size."""
    cdef const char* name = b"traceparent:"
    cdef int i
    for i in range(PARENT_LEN):
        if (p[i] | 0x20 if c'A' <= p[i] <= c'Z' else p[i]) != name[i]:
            return False
    return True


cdef bint asks_for_trace(const Message* m, bint parent) noexcept nogil:
    cdef const char* p = m.body
    cdef const char* end = m.body + m.header_len
    cdef const char* newline
    while True:
        newline = <const char*>memchr(p, c'\n', <size_t>(end - p))
        if newline == NULL:
            return False
        p = newline + 1
        if end - p >= DEST_LEN and p[0] == c'N' and memcmp(p, b"Nats-Trace-Dest:", DEST_LEN) == 0:
            return True
        if parent and end - p >= PARENT_LEN and is_parent(p):
            return True


def asks(bytes header not None, bint parent):
    cdef Message m
    m.body, m.header_len = PyBytes_AS_STRING(header), <size_t>PyBytes_GET_SIZE(header)
    return asks_for_trace(&m, parent)
