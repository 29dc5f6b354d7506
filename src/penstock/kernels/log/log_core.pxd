"""The messages of one stream: the hot paths, as the base class of StreamLog (stream_log.pxd)."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.log.subject_state cimport Follower, LogWatch, Subject, SubjectState
from penstock.kernels.log.message_block cimport Entry, MessageBlock
from penstock.kernels.log.records cimport MessageCost, Record
from penstock.kernels.wire.sinks cimport Message

cdef enum:
    BLOCK_SIZE_DEFAULT = 8388608

# The last position in a subject's chain, so that the next walk needn't start at its first message.
cdef struct Hint:
    uint64_t seq
    uint32_t subject            # id + 1, 0 = unused

cdef enum:
    HINTS = 64

cdef class LogCore:
    cdef readonly uint64_t first_seq        # of the first live message; last_seq + 1 when empty
    cdef readonly uint64_t last_seq
    cdef readonly uint64_t messages         # live
    cdef readonly uint64_t bytes            # sum of cost_of() of the live messages, as reported to users
    cdef MessageCost cost                   # parameters of cost_of()
    cdef readonly int64_t first_ts, last_ts  # ns; 0 when none
    cdef uint64_t front_removals            # of `removals`, those of the first message
    cdef uint64_t skipped                   # sequences that never had a message
    cdef readonly uint64_t removals         # grows at each removal except retire(); invalidates consumers' caches
    # Appends one message and returns its sequence (last_seq + 1). m.reply is ignored. ts is ns.
    cdef uint64_t append_message(self, const Message* m, int64_t ts) except 0
    # Reads the live message at seq into r: 1, or 0 when there is none. Pointers are valid until the next
    # append/remove/read.
    cdef int read(self, uint64_t seq, Record* r) except -1
    # Whether the message at seq may have a header longer than `least`. Its hash is not checked: before the header is
    # used, read() is to.
    cdef bint may_have_header(self, uint64_t seq, size_t least) except -1
    # The first live sequence >= seq whose subject matches the filter (NULL/0 = all); 0 when none.
    # With a literal filter it hops along that subject's own chain; nothing is scanned.
    cdef uint64_t next_matching(self, uint64_t seq, const char* filter, size_t n) except? 0
    # last sequence of a literal subject, 0 when none
    cdef uint64_t last_of_subject(self, const char* s, size_t n) except? 0
    # Removes messages from the front until the log is within the limits (0 or negative = no limit), or until it has
    # removed `most` messages and `size` bytes; returns how many.
    cdef uint64_t enforce_limits(self, int64_t msgs_max, int64_t bytes_max, uint64_t most, uint64_t size) except? 0
    # Retains the newest `keep` of a subject, or removes its `most` oldest; returns how many it removed.
    cdef uint64_t enforce_subject_limit(self, const char* s, size_t n, uint64_t keep, uint64_t most) except? 0

    cdef readonly size_t block_size         # a block is closed before it would grow beyond this
    cdef readonly bint durable              # removals are recorded in the blocks
    cdef bint has_files                     # a store writes closed blocks, and may load them again
    cdef readonly uint64_t lost             # messages whose records were damaged
    cdef list blocks                        # MessageBlock, in order of sequence
    cdef MessageBlock tail                  # the open block; None before the first
    cdef MessageBlock read_block            # the block of the last read
    cdef MessageBlock chain_block           # the block of the last _entry()
    cdef SubjectState state
    cdef LogWatch watch                     # None until the first follower
    cdef object load_block                  # callable(number, size) -> bytes-like; None: all blocks stay in memory
    cdef object read_ranges                 # callable([(number, ranges)]) -> object with take(), or None; or None
    cdef object on_lost                     # callable(number, [(offset, seq, why)]), or None
    cdef list warm, loaded                  # closed blocks with bytes: with an own copy; loaded from the store
    cdef size_t loaded_bytes
    cdef list _closed, _dropped, _patches
    cdef readonly unsigned int storing      # > 0: removals make room for a message that is being stored
    cdef uint64_t written_seq               # the last sequence when everything was written
    cdef set _superseded                    # dropped blocks with messages whose successors aren't written yet
    cdef list sparse                        # closed blocks that may need a rewrite (compaction)
    cdef readonly uint64_t rewrites         # blocks rewritten or dropped
    cdef uint64_t tombstones_checked_at          # `rewrites` at the last check of tombstones
    cdef uint64_t next_number
    cdef uint64_t recorded_floor
    cdef uint64_t written_floor             # the first sequence when everything was written
    cdef uint64_t* ranges                   # removed ranges without a tombstone yet: pairs of first, last
    cdef size_t range_count, range_capacity
    cdef bint in_batch                      # between begin_batch() and end_batch(): appends stay in one block
    cdef size_t batch_at                    # offset of its head in the open block
    cdef uint64_t batch_first               # its first sequence
    cdef Hint hints[HINTS]

    # Uses up the next sequence at ts (ns) without storing a message; returns it.
    cdef uint64_t skip_message(self, int64_t ts) except 0
    # The same for all sequences up to seq at once.
    cpdef int skip_to(self, uint64_t seq, int64_t ts) except -1
    # Removes a message that no consumer will read again: 1, or 0 when there is none. It does not count as a
    # removal: it was pending for no consumer, so their counts stay right.
    cdef int retire(self, uint64_t seq) except -1

    # Notifies a follower of every appended and removed message that one of the filters matches; and stops it.
    cdef int follow(self, Follower follower, list filters) except -1
    cdef int unfollow(self, Follower follower) except -1

    cdef int _roll(self) except -1
    cdef size_t _block_from(self, uint64_t seq) noexcept
    cdef MessageBlock _seek(self, uint64_t seq)
    cdef int _load(self, MessageBlock block) except -1
    cdef int _unload(self, MessageBlock block) except -1
    cdef int _lose(self, MessageBlock block, size_t at, int status) except -1
    cdef int _count_lost(self, MessageBlock block, size_t at, int status) except -1
    cdef int _decode(self, MessageBlock block, size_t at, Record* r) except -1
    cdef Entry* _entry(self, uint64_t seq) noexcept
    cdef int _link(self, uint64_t from_seq, uint64_t to_seq) noexcept
    cdef uint64_t _next_live(self, uint64_t seq) noexcept
    cdef uint64_t _scan(self, uint64_t seq, const char* filter, size_t n, uint64_t most) except? 0
    cdef uint64_t _next_wild(self, uint64_t seq, const char* filter, size_t n) except? 0
    cdef uint64_t _along(self, Subject* s, uint64_t seq) except? 0
    cdef uint64_t _last_live(self, Subject* s, uint64_t gone) except? 0
    cdef uint64_t _beyond(self, uint64_t seq, size_t count) noexcept
    cdef int _pass_lost(self, Subject* s) except -1
    cdef void _forget_hint(self, Subject* s) noexcept
    cdef int _discard(self, size_t i) except -1
    cdef int _detach(self, MessageBlock block) except -1
    cdef int _queue_if_sparse(self, MessageBlock block) except -1
    cdef int _remove(self, uint64_t seq, bint recorded, bint secure) except -1
    cdef int _overwrite(self, MessageBlock block, size_t at, const Record* r) except -1
    cdef int _advance_first(self) except -1
    cdef int _drop_heads(self) except -1
    cdef int _record_range(self, uint64_t seq) except -1
