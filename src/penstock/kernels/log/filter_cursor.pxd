"""The next messages of a consumer's filters."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.log.message_block cimport Entry
from penstock.kernels.log.records cimport Record
from penstock.kernels.log.stream_log cimport StreamLog

# The next message of a subject that was not returned yet.
cdef struct Head:
    uint64_t seq
    uint32_t subject                # its id in the log's subject state

cdef class FilterCursor:
    cdef StreamLog log
    cdef readonly list filters
    cdef size_t filter_count
    cdef size_t* prefixes           # of each filter: bytes before its first wildcard
    cdef bint literal               # none of them has one
    cdef uint64_t* run              # sequences found, ascending
    cdef size_t run_at, run_count, run_capacity
    cdef uint64_t upto              # all matches up to this sequence are in the run, or were
    cdef uint64_t removals          # the log's, when the run was filled
    cdef readonly bint following    # the run has all matches to the end of the log; appended() maintains that
    cdef bint attached              # the owner calls appended()
    cdef readonly bint searching    # next() found nothing yet, and its search is not finished
    cdef Head* heads                # a heap by seq
    cdef size_t head_count
    cdef size_t heads_size          # its allocated bytes
    cdef uint64_t heads_upto        # it covers all messages up to this sequence
    cdef int64_t debt               # messages examined without a match, less LOOKS_PER_MATCH for each match
    cdef size_t run_max, run_fill, look_once, heaps_max     # see the constants; smaller in tests
    cdef int64_t patience
    cdef uint64_t look_until        # too many subjects match: look until this sequence before the next heap

    # The first live match >= position, which never decreases; 0 when there is none (yet: `searching`).
    cdef uint64_t next(self, uint64_t position) except? 0
    # Notes that the log has a new last message, which matches.
    cdef int appended(self, uint64_t seq) except -1
    cdef int attach(self, bint attached) except -1
    # Live matches from a sequence on.
    cdef uint64_t count(self, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF

    cdef int _refill(self, uint64_t position, size_t* looked) except -1
    cdef int _look(self, uint64_t seq, size_t* looked) except -1
    cdef int _merge(self, uint64_t seq) except -1
    cdef int _build(self, uint64_t seq) except -1
    cdef int _put(self, uint64_t seq) except -1
    cdef bint _matches(self, const Record* r) noexcept
    cdef bint _takes(self, uint32_t subject) noexcept
    cdef bint _is_live(self, uint64_t seq) noexcept
    cdef uint64_t _hop(self, uint32_t subject, uint64_t seq, const Entry* entry) except? 0
    cdef void _sink(self, size_t at) noexcept
    cdef void _drop_heads(self) noexcept
    cdef uint32_t* _subjects(self, size_t* count, bint* own) except? NULL
