"""Storing one publish: interest, limits and republishing."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.kernels.consumer.pump cimport Pump
from penstock.kernels.ingest.publish_headers cimport MessageIds, PublishHead
from penstock.kernels.log.records cimport Record
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.wire.sinks cimport Message, Sink


# Runs of sequences of messages that consumers settled: a command of their stream.
cdef class SettledRuns:
    cdef uint64_t* runs                     # pairs of first and last
    cdef readonly size_t count
    cdef size_t capacity
    cdef int add(self, uint64_t first, uint64_t last) except -1


cdef class InterestState:
    cdef readonly StreamLog log
    cdef readonly bint work_queue           # unacked messages stay, even without an interested consumer
    cdef readonly bint held                   # a consumer is missing: remove nothing
    cdef list pumps
    cdef dict since                         # pump -> its acks count from this sequence on
    cdef dict subscriptions                 # pump, or name of a consumer elsewhere -> [Subscription] of its filters
    cdef size_t unfiltered                  # those without filters
    cdef SubscriptionIndex index            # the filters of the others
    cdef Sink sink
    # Would a consumer receive a message of this subject? Checked before it is stored.
    cdef bint is_wanted(self, const char* subject, size_t n) except -1
    cdef int watch(self, object consumer, list filters) except -1
    cdef int unwatch(self, object consumer) except -1
    cdef bint is_needed(self, uint64_t seq, Pump but) except -1
    cdef bint was_acked(self, uint64_t seq, const Record* r) except -1


cdef class Republisher:
    cdef OutBuffer buf
    cdef readonly size_t count      # waiting messages
    cdef SubjectMapper mapper       # the subject to publish under; b"": skip this message. None: skip all
    cdef bint headers_only
    cdef bytes stream               # the header line with the stream's name and the name of the next one
    cdef object format_time
    cdef bytes time_text            # of time_ts
    cdef int64_t time_ts
    cdef bytes destination          # of the message between before() and after()
    cdef uint64_t previous_seq
    # Called before and after a message is stored: before() reads the state it replaces, after() adds the message.
    cdef int before(self, const Message* m, StreamLog log) except -1
    cdef int after(self, const Message* m, uint64_t seq, int64_t ts) except -1

# The limits of a stream which the compiled run enforces itself.
cdef class PlainLimits:
    cdef readonly int64_t msgs_max, bytes_max, msg_size_max     # negative: no limit
    cdef readonly uint64_t per_subject_max                      # 0: no limit
    cdef readonly bint discard_new, per_message, no_ack
    cdef readonly InterestState interest_state      # of an interest stream, which stores no unwanted message; else None
    cdef readonly bytes stream                                  # its name

# Enforces the limits after a message was stored; while the log exceeds lowered limits, only partially.
cdef int enforce(StreamLog log, PlainLimits limits, const Message* m) except -1

# Stores the publish, or uses up a sequence for one that no consumer wants, adds its message id and enforces the
# limits; returns its sequence. id_hash: of the id (MessageIds.hash_of), any number for a publish without one.
cdef uint64_t store_publish(
    StreamLog log, PlainLimits limits, MessageIds ids, const PublishHead* head, const Message* m, uint32_t id_hash,
    int64_t ts, Republisher republisher,
) except 0
