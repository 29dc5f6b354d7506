"""Chains of subjects in a log: counting along them, and merging those of a block's index."""
from libc.stdint cimport uint32_t, uint64_t

from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.message_block cimport MessageBlock
from penstock.kernels.log.subject_state cimport Subject


# Live messages of a subject from a sequence on.
cdef uint64_t count_from(LogCore log, Subject* s, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
# The same of many subjects (their ids, each once).
cdef uint64_t count_many(LogCore log, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF
# Live messages of them all.
cdef uint64_t sum_counts(const Subject* items, const uint32_t* ids, size_t n) noexcept


# Adds the rows a block was read with, and forgets them. Raises ValueError when they contradict the block.
cdef int merge_rows(LogCore log, MessageBlock block) except -1
# Adds messages of a subject, all of them behind what the log knows of it.
cdef int merge_subject(LogCore log, const char* text, size_t n, uint64_t first, uint64_t last, uint64_t count) except -1
