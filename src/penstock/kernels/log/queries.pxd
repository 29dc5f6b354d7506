"""Queries of a log: direct gets, and the counts of subjects."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.kernels.log.records cimport Record
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.dispatch cimport ServiceSink
from penstock.kernels.wire.sinks cimport DirtyList, Message, RoutingGuard


# A parsed request for one message.
cdef struct Ask:
    uint64_t seq
    const char* subject         # NULL: none
    size_t subject_len
    bint last                   # the last one of the subject; else the next one

# Builds responses. Within a second, only the fraction of the time's text is formatted again.
cdef class Answers:
    cdef OutBuffer out
    cdef int64_t second
    cdef char second_text[19]
    cdef char* put_time(self, char* d, int64_t ts) noexcept
    # Writes a record as a response to `out`; returns its header block's size. `pending` and `previous`: for batches.
    cdef size_t put(self, const Record* r, const char* name, size_t name_len, bint batched, uint64_t pending,
                    uint64_t previous, bint bare) except? 0
    cdef int send(self, SubscriptionIndex index, const Message* asked, size_t header_len) except -1

cdef class DirectGets(ServiceSink):
    cdef object engine
    cdef SubscriptionIndex index
    cdef bytes not_found
    cdef size_t prefix          # bytes of the subject before the verb; 0 = as in the subscription, which ends there
    cdef Answers answers
    cdef bint answering         # to detect a reply subject that leads back to this sink
    cdef DirtyList dirty_streams, dirty_consumers
    cdef RoutingGuard routing
    cdef object commit, deferrals, pending
    # Whether every earlier publish is applied, or can be now.
    cdef bint may_answer(self) except -1
    cdef int try_answer(self, const char* p, size_t n, const Message* m) except -1
    cdef int answer(self, const char* p, size_t n, const Message* m) except -1

cdef class RequestsButDirectGets(ServiceSink):
    cdef dict answered


cdef struct SubjectCount:
    uint64_t count
    size_t text                 # offset of its text
    uint32_t text_len

cdef class SubjectCounts:
    cdef SubjectCount* items
    cdef size_t total
    cdef char* texts
    cdef uint32_t* order        # indexes of items: runs of `width` of them are in order
    cdef uint32_t* merged       # the same with runs twice as long, up to `left`
    cdef size_t width           # 0 = runs of the initial length are being sorted
    cdef size_t at              # start of the pair of runs that is being merged
    cdef size_t left, right     # positions in its two runs
    cdef bint in_pair
    cdef bint _is_before(self, uint32_t one, uint32_t other) noexcept nogil
    cdef size_t _sort_run(self) noexcept
    cdef size_t _merge(self, size_t most) noexcept
