# cython: auto_pickle=False
"""Who is told at once of messages that come and go: consumers with filters, each of its own.

With it a consumer at the end of its stream knows its next messages and how many there are without looking at
what isn't its: what a message costs doesn't depend on how many consumers have filters that don't match it.

A subject that interests nobody is marked with the present epoch, so that its next message costs a comparison.
A new filter begins a new epoch: each subject is looked up once more.

Invariant: a follower hears of each message that any of its filters matches once, whatever the number of
filters that do. Rejected: each consumer looking at what is new (a thousand filters are a thousand looks at
every message); remembering who wants each subject (it has to be forgotten with every consumer that goes).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from penstock.kernels.routing.grammar cimport filter_matches
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.log.subject_state cimport Subject

cdef enum:
    FEW = 16                # up to so many filters are compared one by one: an index takes 100 KiB


cdef class Follower:
    """Base of what follows a log. On its own it doesn't listen."""

    cdef int on_append(self, uint64_t seq) except -1:
        return 0

    cdef int on_remove(self, uint64_t seq) except -1:
        return 0

    cdef int on_loss(self) except -1:
        return 0


cdef class Following(SinkSubscription):
    """One filter of a follower."""


cdef class LogWatch:
    def __cinit__(self):
        self.epoch = 1
        self.followers = {}
        self.filters = []
        self.nobody = Sink()

    cdef int add(self, Follower follower, list filters) except -1:
        """Tells `follower` from now on what its filters match. It must not be told already. 1: epochs begin anew,
        the marks of the first ones would count again."""
        cdef Following following
        cdef list followings = []
        for f in filters:
            following = Following(self.nobody, f)
            following.follower = follower
            followings.append(following)
        self.followers[follower] = followings
        self.filters.extend(followings)
        if self.index is not None:
            for following in followings:
                self.index.insert(following)
        elif len(self.filters) > FEW:
            self.index = SubscriptionIndex()
            for following in self.filters:
                self.index.insert(following)
        self.epoch += 1
        if self.epoch == 0:
            self.epoch = 1
            return 1
        return 0

    cdef int drop(self, Follower follower) except -1:
        cdef list followings = self.followers.pop(follower, [])
        cdef set gone = set(followings)
        if self.index is not None:
            for following in followings:
                self.index.remove(following)
        self.filters = [following for following in self.filters if following not in gone]
        return 0

    cdef bint is_empty(self):
        return not self.followers

    cdef int tell(self, uint64_t seq, Subject* s, const char* text, size_t n, bint gone) except -1:
        cdef Following following
        cdef bint wanted = False
        for following in self.index.lookup(text, n).plain if self.index is not None else self.filters:
            if self.index is None and not filter_matches(
                PyBytes_AS_STRING(following.subject), <size_t>PyBytes_GET_SIZE(following.subject), text, n
            ):
                continue
            wanted = True
            if gone:
                if following.follower.went != seq:
                    following.follower.went = seq
                    following.follower.on_remove(seq)
            elif following.follower.came != seq:
                following.follower.came = seq
                following.follower.on_append(seq)
        if not wanted:
            s.mark = self.epoch
        return 0

    cdef int lost(self) except -1:
        cdef Follower follower
        for follower in self.followers:
            follower.on_loss()
        return 0
