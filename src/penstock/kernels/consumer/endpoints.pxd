"""A consumer's delivery targets, and the sink of its acks."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.kernels.consumer.ack_state cimport AckState
from penstock.kernels.routing.subscription_index cimport MatchResult, SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink


cpdef enum TargetEnd:
    END_FULL = 0            # its batch is complete
    END_BYTES_LEFT = 1      # complete, with bytes left of its max_bytes
    END_TOO_LARGE = 2       # the next message is larger than the bytes left
    END_NO_INTEREST = 3     # its subject has no subscription any more
    END_WRONG_PIN = 4       # it names a pin other than the current one

cdef class Target:
    cdef readonly bytes subject
    cdef public int64_t batch           # messages left; negative = no bound
    cdef public int64_t bytes_left      # 0 = no bound
    cdef public uint64_t delivered
    cdef public int priority            # 0 first; used when the rotation is prioritized
    cdef public int64_t min_pending, min_ack_pending    # overflow: eligible when one is reached; 0 = unset
    cdef public bytes pin               # pinned client: the pin it names or was assigned, b"" for none
    cdef MatchResult match
    cdef uint64_t generation
    cdef bint known
    cdef bint awaited                   # its subject is a reply to another account, which has the interest
    cdef int refresh(self, SubscriptionIndex index) except -1
    cdef bint has_interest(self) noexcept

# Copies of messages that were given to their targets, and leave later.
cdef class HeldDeliveries:
    cdef OutBuffer buf
    cdef list targets
    cdef int add(self, Target target, const Message* m) except -1

cdef class Rotation:
    cdef HeldDeliveries held            # takes the messages instead of their targets; or None
    cdef SubscriptionIndex index
    cdef AckState state
    cdef public size_t backlog_max      # unsent bytes at which a receiver gets no more
    cdef readonly bint prioritized      # targets are ordered by priority, and stay so
    cdef object on_end                  # callable(target, TargetEnd); immediately, so that its status is in order
    cdef object new_pin                 # callable() that returns a new pin; None: no client is pinned
    cdef bytes pin                      # the current pin, b"" for none
    cdef bytes pin_header
    cdef uint32_t next_member           # round robin over the members of queue groups
    cdef OutBuffer far_reply            # the reply of the current message for other servers
    # When choose() returns None: how many targets were full, and how many are not eligible in their priority group.
    cdef size_t blocked, standby

    # The target of the next message, of `size` bytes, or None. pending: number of messages after it.
    cdef Target choose(self, list targets, size_t size, uint64_t pending)
    cdef int send(self, Target target, const Message* m) except -1
    cdef int deliver(self, Target target, const Message* m) except -1
    # Notes that the target accepted a message of `size` bytes.
    cdef int took(self, list targets, Target target, size_t size) except -1
    cdef int end(self, list targets, Target target, int why) except -1
    cpdef int unpin(self) except -1
    cdef int assign_pin(self, Target target) except -1
    cdef bint is_turn(self, list targets, Target target, uint64_t pending) except -1
    cdef int requeue(self, list targets, Target target) except -1


cdef struct PlainAck:
    uint64_t stream_seq
    uint64_t consumer_seq

# The acks of one consumer since the last apply.
cdef class AckQueue:
    cdef readonly object owner          # the consumer, which is marked dirty
    cdef DirtyList dirty_list
    cdef readonly bint is_dirty
    cdef PlainAck* items
    cdef readonly size_t count
    cdef size_t capacity, applied
    cdef list special
    cdef uint32_t sample_percent        # of the acks, 0 = none
    cdef uint32_t sample_due
    cdef readonly list samples
    cdef int push(self, uint64_t stream_seq, uint64_t consumer_seq) except -1
    cpdef int sample(self, AckState state, uint64_t stream_seq) except -1
    cpdef int mark(self) except -1

# The sink of `$JS.ACK.<stream>.>`: one per stream, for all of its consumers.
cdef class AckSink(Sink):
    cdef dict queues
    cdef bytes last_name
    cdef AckQueue last
