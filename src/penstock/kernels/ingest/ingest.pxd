"""From the router into a stream: a batch of publishes waiting for the stream's apply()."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.base.duration_histogram cimport DurationHistogram
from penstock.kernels.wire.output cimport OutBuffer, RunBuffer
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.ingest.publish_headers cimport MessageIds
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink, SinkSubscription
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

# A run of publishes, copied once from the read buffer. encode() makes a command's body of it.
cdef class IngestBatch(RunBuffer):
    cdef readonly uint64_t since        # monotonic ns, when its first publish arrived; 0 = unknown
    cdef int put(self, const Message* m) except -1

# The sink of a stream's subjects: collects publishes and marks the stream dirty.
cdef class StreamSink(Sink):
    cdef readonly IngestBatch batch
    cdef IngestBatch spare
    cdef DirtyList dirty_list
    cdef readonly object stream
    cdef readonly size_t msgs_max         # publishes that may wait; 0 = no limit on number and bytes
    cdef readonly size_t bytes_max        # their bytes
    cdef size_t waiting_bytes           # counted while msgs_max is set
    cdef DirtyList full_list            # gets `stream` when a publish is rejected
    cdef readonly list rejected           # reply subjects of rejected publishes, b"" for none
    cdef readonly SubjectMapper mapper    # None, or changes subjects first
    cdef public bint is_dirty
    cdef bint admits(self, const Message* m) except -1

# Pub acks waiting until their records are written: (reply, text) pairs.
cdef class AckBatch:
    cdef OutBuffer buf
    cdef readonly size_t count
    cdef readonly uint64_t since    # monotonic ns, when the first of their publishes arrived; 0 = unknown
    cdef bytes prefix               # of the ack of a stored message, up to its sequence
    cdef int put_ack(self, const char* reply, size_t reply_len, uint64_t seq, bint duplicate) except -1
    cdef int put_text(self, const char* reply, size_t reply_len, const char* text, size_t n) except -1
