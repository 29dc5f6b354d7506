"""Payloads of plain WebSocket frames."""
from libc.stdint cimport uint64_t

cdef class FrameReader:
    cdef bint masked
    cdef bint in_message            # in fragments, and not at its end
    cdef uint64_t left              # bytes of the plain frame that were not copied yet
    cdef uint64_t copied            # bytes of it that were
    cdef uint64_t mask
    cdef uint64_t other_left        # bytes of another frame that were not passed on yet
