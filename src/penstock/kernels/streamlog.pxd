"""The messages of one stream: blocks of records, per-subject state, counters. No files here:
store/ gives blocks their bytes and writes what is new."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.records cimport Record
from penstock.kernels.sinks cimport Message

cdef class StreamLog:
    cdef readonly uint64_t first_seq        # of the first live message; last_seq + 1 when empty
    cdef readonly uint64_t last_seq
    cdef readonly uint64_t messages         # live
    cdef readonly uint64_t bytes            # of live records, as users see it
    cdef readonly int64_t first_ts, last_ts # ns; 0 when none
    cdef readonly uint64_t removals         # grows whenever a message goes (consumers' caches look at it)
    # Appends one message and returns its sequence (last_seq + 1). m.reply is ignored. ts is ns.
    cdef uint64_t append_message(self, const Message* m, int64_t ts) except 0
    # The live message at seq into r: 1; none there: 0. Pointers die at the next append/remove/read.
    cdef int read(self, uint64_t seq, Record* r) except -1
    # The first live sequence >= seq whose subject matches the filter (NULL/0 = all); 0 when none.
    # With a literal filter it hops along that subject's own chain; nothing is scanned.
    cdef uint64_t next_matching(self, uint64_t seq, const char* filter, size_t n) except? 0
    # last sequence of a literal subject, 0 when none
    cdef uint64_t last_of_subject(self, const char* s, size_t n) except? 0
    # Removes from the front until the limits hold (0 or negative = no limit): returns how many went.
    cdef uint64_t enforce_limits(self, int64_t msgs_max, int64_t bytes_max) except? 0
    # Keeps the newest `keep` of a subject: returns how many went.
    cdef uint64_t enforce_subject_limit(self, const char* s, size_t n, uint64_t keep) except? 0
