"""What leaves an interest or work-queue stream: messages that no consumer needs any more.

A consumer needs a message that passes its filters and that it has not settled: not delivered yet, delivered
and not acked, or given up at max_deliver and not acked after all. Both retentions remove a message when an
ack leaves nobody who needs it; they differ in what nobody ever asked for: an interest stream doesn't even
store it, a work queue keeps it for the consumer to come.

Acks are gathered by the consumers' AckStates, as runs of sequences; settle() takes them once a tick. Looking
at one costs a look at each other consumer's window, and at the message's subject only where a filter
decides. Nothing is scanned: review(), which does, runs where a whole consumer's needs went at once (it was
deleted, its filters changed; in parts, jetstream/reviews.py) and after a restart, when an ack may have been
written and the removal not.

Invariant: removing what nobody needs may be repeated and be put off, its result is the same; so the ack
may be written before the removal, or after it, and a crash may come between.
Rejected: counting the consumers that still need each message (a counter a message and consumer to keep in
step with filters, purges and deletions); asking Python for each ack.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX

from penstock.kernels.routing.grammar cimport filter_matches
from penstock.kernels.consumer.pump cimport Pump
from penstock.kernels.log.records cimport Record
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

cdef enum:                      # of a review, in the units of jetstream/slices.py
    MESSAGE_WORK = 48           # a message is looked at
    PUMP_WORK = 3               # and a consumer asked for it, beside a unit for each of its filters


cdef bint passes(Pump pump, const Record* r) except -1:
    """Does the message pass the consumer's filters?"""
    cdef bytes f
    if pump.filter_count == 0:
        return True
    for f in pump.filters:
        if filter_matches(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f), r.subject, r.subject_len):
            return True
    return False


cdef bint will_skip(Pump pump, uint64_t seq) noexcept:
    """Deliver last per subject: is seq one of the messages it passes over?"""
    cdef size_t low = pump.skip_at, high = pump.skip_count, middle
    if low >= high or seq > pump.skip_resume:
        return False
    while low < high:
        middle = (low + high) // 2
        if pump.skip[middle] < seq:
            low = middle + 1
        else:
            high = middle
    return low == pump.skip_count or pump.skip[low] != seq


cdef class InterestState:
    def __cinit__(self, StreamLog log not None, *, bint work_queue=False):
        self.log = log
        self.work_queue = work_queue
        self.pumps = []
        self.since = {}
        self.subscriptions = {}
        self.index = SubscriptionIndex()
        self.sink = Sink()

    def add(self, Pump pump not None, uint64_t since=0):
        """A consumer: from now on its AckState gathers what it settles."""
        pump.state.collecting = True
        self.pumps.append(pump)
        self.since[pump] = since
        self.watch(pump)

    def remove(self, Pump pump not None):
        """The consumer is gone, and its needs with it; the messages stay until review()."""
        if pump not in self.since:
            return
        pump.state.collecting = False
        self.unwatch(pump)
        self.pumps.remove(pump)
        del self.since[pump]

    def refilter(self, Pump pump not None, uint64_t since):
        """Its filters changed."""
        if pump in self.since:
            self.since[pump] = since
            self.unwatch(pump)
            self.watch(pump)

    def watch(self, Pump pump):
        # Known before the index can refuse one: unwatch() then takes back what was inserted.
        subscriptions = self.subscriptions[pump] = [SinkSubscription(self.sink, f) for f in pump.filters]
        for subscription in subscriptions:
            self.index.insert(subscription)
        if not subscriptions:
            self.unfiltered += 1

    def unwatch(self, Pump pump):
        subscriptions = self.subscriptions.pop(pump)
        for subscription in subscriptions:
            self.index.remove(subscription)
        if not subscriptions:
            self.unfiltered -= 1

    cdef bint is_wanted(self, const char* subject, size_t n) except -1:
        if self.unfiltered or self.held:
            return True
        return len(self.pumps) != 0 and len(self.index.lookup(subject, n).plain) != 0

    def wants(self, bytes subject not None):
        """`is_wanted` for Python callers."""
        return self.is_wanted(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))

    cdef bint is_needed(self, uint64_t seq, Pump but) except -1:
        """Does any consumer but that one need the message at seq?"""
        cdef Record r
        cdef bint known = False
        cdef Pump pump
        for pump in self.pumps:
            if pump is but or not pump.state.interest_state(seq) or will_skip(pump, seq):
                continue
            if pump.filter_count == 0:
                return True
            if not known:
                if not self.log.read(seq, &r):
                    return False
                known = True
            if passes(pump, &r):
                return True
        return False

    cdef bint was_acked(self, uint64_t seq, const Record* r) except -1:
        """Has a consumer that takes the message settled it?"""
        cdef Pump pump
        for pump in self.pumps:
            if seq >= <uint64_t>self.since[pump] and seq <= pump.state.delivered_stream and passes(pump, r):
                return True
        return False

    def settle(self, Pump pump not None):
        """Removes what `pump`'s consumer settled since the last time and nobody else needs; returns how many
        went."""
        cdef size_t i, gone = 0
        cdef uint64_t seq, last
        cdef bint alone = len(self.pumps) == 1
        for i in range(pump.state.settled_count):
            if self.held:
                break
            seq = pump.state.settled[2 * i]
            last = pump.state.settled[2 * i + 1]
            while seq <= last:
                if alone or not self.is_needed(seq, pump):
                    gone += <size_t>self.log.retire(seq)
                seq += 1
        pump.state.settled_count = 0
        self.retired += gone
        return gone

    def review(self, uint64_t from_seq=0):
        """Looks at every message from from_seq on; removes those that nobody needs (of a work queue: and
        somebody acked); returns how many went."""
        return self.review_part(from_seq, INT64_MAX)[0]

    def review_part(self, uint64_t from_seq, int64_t work):
        """The same until it has done so much work; see the .pyi."""
        cdef uint64_t seq
        cdef size_t gone = 0
        cdef int64_t each = MESSAGE_WORK
        cdef Record r
        cdef Pump pump
        if self.held:
            return 0, 0
        if not self.pumps:
            return 0 if self.work_queue else self.log.purge(), 0
        for pump in self.pumps:
            each += PUMP_WORK + <int64_t>pump.filter_count
        seq = self.log.next_matching(from_seq, NULL, 0)
        while seq and work > 0:
            work -= each
            if not self.is_needed(seq, None) and (
                not self.work_queue or (self.log.read(seq, &r) and self.was_acked(seq, &r))
            ):
                gone += <size_t>self.log.retire(seq)
            seq = self.log.next_matching(seq + 1, NULL, 0)
        self.retired += gone
        return gone, seq
