"""What one consumer has delivered and what is acked: a dense window above the ack floor.

Invariants: ack_floor_stream < every pending stream sequence <= delivered_stream; the window is ordered
by stream sequence.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef class AckState:
    cdef readonly uint64_t delivered_consumer, delivered_stream
    cdef readonly uint64_t ack_floor_consumer, ack_floor_stream
    cdef readonly size_t num_pending        # delivered, not acked
    # First or repeated delivery of stream_seq at ts (ns); returns the new consumer sequence.
    cdef uint64_t deliver(self, uint64_t stream_seq, int64_t ts) except 0
    # 1 when it was pending and now is acked, else 0.
    cdef int ack(self, uint64_t stream_seq, uint64_t consumer_seq) except -1
