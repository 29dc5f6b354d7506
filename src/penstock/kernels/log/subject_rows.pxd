"""The subjects of a block, as its index keeps them, on their way into the log's subject state."""
from libc.stdint cimport uint64_t
from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.message_block cimport MessageBlock

# Adds the rows a block was read with, and forgets them. Raises ValueError when they contradict the block.
cdef int merge_rows(LogCore log, MessageBlock block) except -1
# Adds messages of a subject, all of them behind what the log knows of it.
cdef int merge_subject(LogCore log, const char* text, size_t n, uint64_t first, uint64_t last, uint64_t count) except -1
