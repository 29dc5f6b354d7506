"""What a stream stored, published again under another subject."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog

cdef class Republisher:
    cdef OutBuffer buf
    cdef readonly size_t count      # messages that wait
    cdef SubjectMapper mapper       # the subject to publish under; b"": not this message. None: no message
    cdef bint headers_only
    cdef bytes stream               # the header line with the stream's name and the name of the next one
    cdef object format_time
    cdef bytes time_text            # of time_ts
    cdef int64_t time_ts
    cdef bytes destination          # of the message between before() and after()
    cdef uint64_t previous_seq
    # The two halves of storing a message: what must be known before, and entering it once it has a sequence.
    cdef int before(self, const Message* m, StreamLog log) except -1
    cdef int after(self, const Message* m, uint64_t seq, int64_t ts) except -1
