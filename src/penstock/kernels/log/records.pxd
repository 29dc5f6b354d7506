"""Record layout of message blocks, and the 8-byte hash.

record = length u32 | sequence u64 | timestamp i64 (ns) | subject_len u16 | subject
         | [header_len u32 | header] | payload | hash u64            (little endian)
The top bit of `length` marks a record with a header. `length` counts the whole record.
The hash (XXH64, seed 0) covers every byte of the record before it.

Sequences stay below 2**48; the bits above them are the record's kind:
- a message (0);
- KIND_REMOVED: the messages `sequence`..`timestamp` (both inclusive) were removed;
- KIND_FLOOR: everything below `sequence` was removed and the log's last sequence is at least `timestamp`;
- KIND_REPLACES: this block replaces the blocks numbered `sequence`..`timestamp`;
- KIND_BATCH: the messages `sequence`..`timestamp` are in the following bytes, whose number is the payload (a u64):
  all of them count, or, if the block ends earlier, none.
A stream never uses the sequence of a removed message again, so these tombstones are valid in any order.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    RECORD_OVERHEAD = 30            # 4 + 8 + 8 + 2 + 8
    RECORD_HEADER_OVERHEAD = 4
    RECORD_HAS_HEADER = 0x80000000
    RECORD_SUBJECT_AT = 22          # where the subject begins
    RECORD_SIZE_MAX = 0x7FFFFFFF
    RECORD_SUBJECT_MAX = 0xFFFF
    SEQ_BITS = 48

cdef enum RecordKind:
    KIND_MESSAGE = 0
    KIND_REMOVED = 1
    KIND_FLOOR = 2
    KIND_REPLACES = 3
    KIND_BATCH = 4

# Result of decode_record().
cdef enum RecordStatus:
    RECORD_OK = 0
    RECORD_END = 1                  # nothing left
    RECORD_SHORT = 2                # the bytes end inside the record
    RECORD_BAD_LENGTH = 3           # impossible lengths
    RECORD_BAD_KIND = 4             # unknown bits above the sequence
    RECORD_BAD_HASH = 5
    RECORD_TORN_BATCH = 6           # an incomplete batch

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

# Bytes a message takes; 0 when it is too large for a record.
cdef inline size_t record_size(size_t subject_len, size_t header_len, size_t body_len) noexcept nogil:
    if subject_len > RECORD_SUBJECT_MAX or body_len > RECORD_SIZE_MAX or header_len > body_len:
        return 0
    cdef size_t size = RECORD_OVERHEAD + subject_len + body_len
    if header_len:
        size += RECORD_HEADER_OVERHEAD
    return size if size <= RECORD_SIZE_MAX else 0

# The cost of a message in `bytes`, in addition to its subject, header block and payload. File storage counts the whole
# record; memory storage counts 16 bytes for sequence and time, as on the official server.
cdef struct MessageCost:
    size_t fixed
    size_t header                   # more with a header block

cdef inline size_t cost_of(
    const MessageCost* cost, size_t subject_len, size_t header_len, size_t body_len
) noexcept nogil:
    return cost.fixed + subject_len + body_len + (cost.header if header_len else 0)

# Writes a record of record_size(...) bytes at d. `body` is header followed by payload.
cdef void encode_record(char* d, size_t size, int kind, uint64_t seq, int64_t ts, const char* subject,
                        size_t subject_len, const char* body, size_t header_len, size_t body_len) noexcept nogil
# The same with zeros instead of the hash, for records that never leave memory.
cdef void encode_unhashed(char* d, size_t size, int kind, uint64_t seq, int64_t ts, const char* subject,
                          size_t subject_len, const char* body, size_t header_len, size_t body_len) noexcept nogil

# Reads the record at p, with n bytes available, into r and its kind into *kind. Returns a RecordStatus.
cdef int decode_record(const char* p, size_t n, Record* r, int* kind, bint verify) noexcept nogil
