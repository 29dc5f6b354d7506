"""Who is told at once of messages that come and go: consumers with filters, each of its own."""
from libc.stdint cimport uint16_t, uint64_t
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.log.subject_state cimport Subject

# Hears of the messages that one of its filters matches, once each.
cdef class Follower:
    cdef uint64_t came, went            # the last sequences it was told of
    cdef int on_append(self, uint64_t seq) except -1
    cdef int on_remove(self, uint64_t seq) except -1
    # Messages went without being told one by one: all of them, or one whose subject the disk lost.
    cdef int on_loss(self) except -1

cdef class Following(SinkSubscription):
    cdef Follower follower

cdef class LogWatch:
    cdef uint16_t epoch                 # a subject marked with it interests nobody; never 0
    cdef dict followers                 # {Follower: [Following]}
    cdef list filters                   # of all: [Following]
    cdef SubscriptionIndex index        # of the same, once they are many
    cdef Sink nobody
    cdef int add(self, Follower follower, list filters) except -1
    cdef int drop(self, Follower follower) except -1
    cdef bint is_empty(self)
    # A message came, or went (`gone`). Not to be called for a subject whose mark is the epoch.
    cdef int tell(self, uint64_t seq, Subject* s, const char* text, size_t n, bint gone) except -1
    cdef int lost(self) except -1
