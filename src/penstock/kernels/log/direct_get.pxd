"""Stored messages as messages: the answers to direct gets."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.wire.dispatch cimport ServiceSink
from penstock.kernels.log.records cimport Record
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

# What a request for one message says.
cdef struct Ask:
    uint64_t seq
    const char* subject         # NULL: none
    size_t subject_len
    bint last                   # the last one of the subject; else the next one

# Makes answers. The text of a time is made anew for its part below a second only, while that lasts.
cdef class Answers:
    cdef OutBuffer out
    cdef int64_t second
    cdef char second_text[19]
    cdef char* put_time(self, char* d, int64_t ts) noexcept
    # A record as an answer into `out`; its header block's size. `pending` and `previous` with batched ones.
    cdef size_t put(self, const Record* r, const char* name, size_t name_len, bint batched, uint64_t pending,
                    uint64_t previous, bint bare) except? 0
    cdef int send(self, SubscriptionIndex index, const Message* asked, size_t header_len) except -1

cdef class DirectGets(ServiceSink):
    cdef object engine
    cdef SubscriptionIndex index
    cdef bytes not_found
    cdef Answers answers
    cdef bint answering         # a reply led back here
    cdef int try_answer(self, const char* p, size_t n, const Message* m) except -1
    cdef int answer(self, const char* p, size_t n, const Message* m) except -1
