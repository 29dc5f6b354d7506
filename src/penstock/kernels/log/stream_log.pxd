"""The messages of one stream: blocks of records, per-subject state, counters. It does no file IO:
store/ loads and writes the bytes of blocks. The hot paths are in log_core.pxd:
append_message, read, next_matching, last_of_subject, enforce_limits, enforce_subject_limit."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.log.log_core cimport BLOCK_SIZE_DEFAULT, LogCore
from penstock.kernels.log.message_block cimport MessageBlock
from penstock.kernels.log.record_reads cimport BlockReads
from penstock.kernels.log.records cimport Record

cdef class StoredRecord:
    cdef readonly uint64_t seq
    cdef readonly int64_t ts
    cdef readonly bytes subject, header, payload

cdef class StreamLog(LogCore):
    cdef readonly list incomplete_batches   # (block number, first, last) of batches that restore() removed
    cdef readonly BlockReads single         # the record that read_single() read last; None: it has read none
    cdef uint64_t _previous_live(self, uint64_t seq) noexcept
    cdef uint64_t _count_all_from(self, uint64_t seq) noexcept
    cdef uint64_t _count_subjects(self, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t _count_others(self, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t _last_upto(self, uint32_t sid, uint64_t upto_seq) except? 0
    cdef uint64_t _seq_at_time_in(self, MessageBlock block, int64_t ts) except? 0
    cdef void _join_ranges(self) noexcept
    cdef int _drop_incomplete(self, list blocks, uint64_t floor) except -1
    cdef bint _is_recorded(self, list blocks, uint64_t floor, uint64_t seq)
    cdef int _merge(self, MessageBlock block) except -1
    cdef StoredRecord _stored(self, uint64_t seq)
    # read() for a caller that may not want the messages around this one, such as a direct get. `r` stays valid until
    # the next call, or until read() invalidates it.
    cdef int read_single(self, uint64_t seq, Record* r) except -1
