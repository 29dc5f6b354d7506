"""Record layout of message blocks, and the 8-byte hash.

record = length u32 | sequence u64 | timestamp i64 (ns) | subject_len u16 | subject
         | [header_len u32 | header] | payload | hash u64            (little endian)
The top bit of `length` says that a header is there. `length` counts the whole record.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    RECORD_OVERHEAD = 30            # 4 + 8 + 8 + 2 + 8
    RECORD_HEADER_OVERHEAD = 4
    RECORD_HAS_HEADER = 0x80000000

cdef uint64_t xxh64(const char* p, size_t n, uint64_t seed) noexcept nogil

cdef struct Record:
    uint64_t seq
    int64_t ts
    const char* subject
    size_t subject_len
    const char* body                # header followed by payload
    size_t header_len
    size_t body_len
    size_t size                     # bytes the record takes in the block
