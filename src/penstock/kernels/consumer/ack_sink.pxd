"""Acks on their way in to consumers."""
from libc.stdint cimport uint32_t, uint64_t
from penstock.kernels.consumer.ack_state cimport AckState
from penstock.kernels.wire.sinks cimport DirtyList, Sink

cdef struct PlainAck:
    uint64_t stream_seq
    uint64_t consumer_seq

# The acks of one consumer since the last apply.
cdef class AckQueue:
    cdef readonly object owner          # what is marked dirty: the consumer
    cdef DirtyList dirty_list
    cdef readonly bint is_dirty
    cdef PlainAck* items
    cdef readonly size_t count
    cdef size_t capacity, applied
    cdef list special
    cdef public uint32_t sample_percent  # of the acks, 0 = none
    cdef uint32_t sample_due
    cdef public list samples
    cdef int push(self, uint64_t stream_seq, uint64_t consumer_seq) except -1
    cpdef int sample(self, AckState state, uint64_t stream_seq) except -1
    cpdef int mark(self) except -1

# The sink of `$JS.ACK.<stream>.>`: one a stream, whatever the number of its consumers.
cdef class AckSink(Sink):
    cdef dict queues
    cdef bytes last_name
    cdef AckQueue last
