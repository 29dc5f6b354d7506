"""The delivered and acked messages of one consumer: a dense window above the ack floor.

Invariants: ack_floor_stream < every pending stream sequence <= delivered_stream; the window is ordered
by stream sequence.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.consumer.ack_encoding cimport Journal, Record
from penstock.kernels.consumer.ack_window cimport Entry, Queue, Window
from penstock.kernels.consumer.key_order cimport KeyOrder

cpdef enum AckPolicy:
    ACK_NONE = 0
    ACK_ALL = 1
    ACK_EXPLICIT = 2

cdef class AckState:
    cdef readonly uint64_t delivered_consumer, delivered_stream
    cdef readonly uint64_t ack_floor_consumer, ack_floor_stream
    cdef readonly uint64_t resets           # how many there were
    cdef readonly uint64_t since            # the first sequence that the position covers since the last one; 0: none
    cdef readonly uint64_t start_seq        # the position stays at or after it when the stream loses its end
    cdef readonly size_t num_pending        # delivered, not acked
    cdef readonly size_t num_parked         # passed over, not delivered yet
    cdef public KeyOrder keys               # notified of settled messages; None without key-shared delivery
    cdef readonly size_t num_queued         # pending messages that wait for redelivery
    cdef readonly int policy                # AckPolicy
    cdef readonly bint journaling
    # First or repeated delivery of stream_seq at ts (ns); returns the new consumer sequence.
    cdef uint64_t deliver(self, uint64_t stream_seq, int64_t ts) except 0
    # 1 when it was pending and is now acked, else 0.
    cdef int ack(self, uint64_t stream_seq, uint64_t consumer_seq) except -1
    # Acks everything up to and including stream_seq (policy all); returns how many were pending.
    cdef size_t ack_all(self, uint64_t stream_seq, uint64_t consumer_seq) except? 0
    # The next sequence whose redelivery is due, 0 when none; it stays queued until it is delivered or settled.
    cdef uint64_t next_queued(self) except? 0
    cpdef int park(self, uint64_t stream_seq) except -1
    cdef bint is_parked(self, uint64_t stream_seq) noexcept
    cdef uint32_t deliveries_of(self, uint64_t stream_seq) noexcept

    cdef Window window
    cdef size_t redelivered                 # pending entries delivered more than once
    cdef dict dead                          # stream seq -> deliveries: given up at max_deliver and not acked
    cdef Queue queue                        # may contain stale items of settled entries
    cdef Journal journal
    cdef int64_t* waits                     # ack wait (ns) by number of deliveries - 1; the last one repeats
    cdef size_t waits_count

    cdef void settle(self, Entry* e) noexcept
    cdef void move_floor(self) noexcept
    cdef void shrink(self) noexcept
    cdef int enqueue(self, Entry* e) except -1
    cdef void unqueue(self, Entry* e) noexcept
    cdef void recount(self) noexcept
    cdef int64_t wait_of(self, Entry* e) noexcept
    cdef int replay_record(self, const Record* record) except -1

    # Only while `collecting`: the settled stream sequences, as pairs of first and last.
    cdef public bint collecting
    cdef uint64_t* settled
    cdef size_t settled_count, settled_capacity
    cdef int note_settled(self, uint64_t seq) except -1
    # Does the consumer still have to deliver the message at seq, which passes its filters, or to get its ack?
    cdef bint is_message_needed(self, uint64_t seq) except -1
