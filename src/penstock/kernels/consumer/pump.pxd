"""Delivery of a consumer's messages to its receivers."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.consumer.ack_state cimport AckState
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.log.filter_cursor cimport FilterCursor
from penstock.kernels.log.record_reads cimport BlockReads
from penstock.kernels.consumer.key_order cimport KeyOrder
from penstock.kernels.log.subject_state cimport Follower
from penstock.kernels.log.records cimport Record
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.consumer.endpoints cimport Rotation

cpdef enum RunEnd:
    RUN_EMPTY = 0           # nothing left to deliver
    RUN_NO_TARGET = 1       # no target left
    RUN_ACKS_FULL = 2       # max_ack_pending reached
    RUN_BLOCKED = 3         # every receiver has too many unsent bytes
    RUN_BUDGET = 4          # the requested number was delivered
    RUN_STALLED = 5         # flow control: the window is used up
    RUN_STANDBY = 6         # there is a next message, but no target is eligible in its priority group
    RUN_KEYS_FULL = 8       # too many messages wait for their key
    RUN_WAIT = 7            # not before `wait_until`: original replay policy, or rate limit

cdef enum:
    RUN_PICKED = -2         # none of these: there is a message to deliver

# The next message to deliver.
cdef struct Pick:
    uint64_t seq
    uint64_t deliveries     # including the next one
    bint again              # a redelivery
    bint unparked           # was parked, and its key is free

cdef class Pump(Follower):
    cdef readonly StreamLog log
    cdef readonly AckState state
    cdef readonly Rotation rotation     # selects the next target
    cdef bytes ack_prefix
    cdef list filters
    cdef size_t filter_count
    cdef list ready_list                # the pump appends itself when a new message passes the filters; or None
    cdef bint is_listed                 # it is in ready_list
    cdef readonly FilterCursor cursor   # finds messages that pass the filters; None without filters
    cdef readonly BlockReads reads      # prefetched records, when matching messages are sparse
    cdef readonly uint64_t position     # next stream sequence to examine
    cdef uint64_t* skip                 # deliver last per subject: the initial sequences
    cdef size_t skip_count, skip_at
    cdef uint64_t skip_resume
    cdef readonly bint headers_only
    cdef readonly int64_t max_ack_pending   # 0 or negative = no limit
    cdef readonly uint32_t max_deliver  # 0 = no limit
    cdef readonly list given_up         # [(stream seq, deliveries)] that reached max_deliver
    cdef readonly int64_t flow_window   # bytes; 0 = no flow control
    cdef int64_t flow_bytes             # delivered since the last answered flow control request
    cdef int64_t flow_size              # of those, the bytes before the outstanding request
    cdef readonly bint flow_open        # a request is outstanding
    cdef object send_flow_request       # callable()
    cdef KeyOrder keys                  # key-shared delivery; None without
    cdef public size_t parked_max       # messages that may be passed over
    cdef readonly bint replaying        # replay policy original, until the end of the stream is reached
    cdef int64_t replayed_ts, replayed_at   # of the last message: stored at, delivered at
    cdef int64_t rate, rate_burst       # bytes per second, 0 = no limit; bytes of a burst
    cdef double rate_tokens
    cdef int64_t rate_at                # when the tokens were counted
    cdef readonly int64_t wait_until    # ns; after RUN_WAIT
    cdef readonly uint64_t sent         # messages of the last run
    cdef readonly uint64_t total_sent
    cdef uint64_t pending, pending_upto, pending_removals, pending_front, pending_skipped, pending_at
    cdef bint pending_known
    cdef OutBuffer scratch, pin_scratch
    cdef char* reply
    cdef size_t reply_prefix

    cdef uint64_t next_unparked(self) except? 0
    cdef int passed_over(self, const Record* r) except -1
    cdef uint64_t find_next(self) except? 0
    cdef int passed(self, uint64_t seq) except -1
    cdef int read_next(self, uint64_t seq, Record* r) except -1
    cdef uint64_t count_pending(self) except? 0
    cdef int refresh_pending(self) except -1
    cdef uint64_t first_beyond(self) noexcept
    cdef size_t build_reply(
        self, uint64_t deliveries, uint64_t seq, uint64_t cseq, int64_t ts, uint64_t pending
    ) noexcept
    cdef int strip_payload(self, Message* m) except -1
    cdef int add_pin(self, const Message* m, Message* pinned) except -1
    cdef int64_t pause_ns(self, int64_t ts, size_t size, int64_t now) noexcept
    cdef int pick(self, Pick* picked, Record* record) except -1
    cdef int note_sent(self, const Pick* picked, const Record* record, size_t size, int64_t now) except -1
    cpdef int flow_requested(self) except -1
    cdef int account(self, size_t size) except -1
