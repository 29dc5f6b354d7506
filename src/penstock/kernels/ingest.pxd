"""From the router into a stream: a batch of publishes waiting for the stream's apply()."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.buffers cimport OutBuffer
from penstock.kernels.sinks cimport DirtyList, Message, Sink, Subscription

# A run of publishes, copied once from the read buffer. This is also what a replicated log carries.
cdef class IngestBatch:
    cdef OutBuffer buf
    cdef readonly size_t count

# The sink of a stream's subjects: collects publishes and marks the stream dirty.
cdef class StreamSink(Sink):
    cdef readonly IngestBatch batch
    cdef DirtyList dirty_list
    cdef object stream
    cdef public bint is_dirty
