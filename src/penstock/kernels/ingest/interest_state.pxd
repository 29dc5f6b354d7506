"""Which messages of a stream some consumer still needs: what leaves interest and work-queue streams, and when."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.consumer.pump cimport Pump
from penstock.kernels.log.records cimport Record
from penstock.kernels.wire.sinks cimport Sink
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

cdef class InterestState:
    cdef readonly StreamLog log
    cdef readonly bint work_queue           # what nobody acked yet stays, though nobody asks for it
    cdef public bint held                   # a consumer is missing: everything stays
    cdef readonly uint64_t retired          # messages that went
    cdef list pumps
    cdef dict since                         # pump -> no ack of its below this sequence says anything
    cdef dict subscriptions                 # pump -> [Subscription] of its filters
    cdef size_t unfiltered                  # pumps that take every subject
    cdef SubscriptionIndex index            # the others' filters
    cdef Sink sink
    # Would any consumer take a message of this subject? Asked before it is stored.
    cdef bint is_wanted(self, const char* subject, size_t n) except -1
    cdef bint is_needed(self, uint64_t seq, Pump but) except -1
    cdef bint was_acked(self, uint64_t seq, const Record* r) except -1
