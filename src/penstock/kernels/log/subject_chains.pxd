"""Walking the chain of one subject: how many messages it has from a sequence on."""
from libc.stdint cimport uint32_t, uint64_t
from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.subject_state cimport Subject

# Live messages of a subject from a sequence on.
cdef uint64_t count_from(LogCore log, Subject* s, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
# The same of many subjects (their ids, each once).
cdef uint64_t count_many(LogCore log, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
# Live messages of them all.
cdef uint64_t sum_counts(const Subject* items, const uint32_t* ids, size_t n) noexcept
