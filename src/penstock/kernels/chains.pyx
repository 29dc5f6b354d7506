# cython: auto_pickle=False
"""Walking the chain of one subject: how many messages it has from a sequence on.

A chain is walked from the subject's first message to the sequence, or from there to its last one, whichever
is nearer; inside a block that costs a load an entry, no search. Where the disk lost a part of the chain, the
log's own search takes over.
"""
from libc.stdint cimport uint32_t, uint64_t

from penstock.kernels.logcore cimport LogCore
from penstock.kernels.msgblock cimport ENTRY_DEAD, NEXT_FAR, Entry, MessageBlock
from penstock.kernels.subjectstate cimport Subject

cdef enum:
    BROKEN = -1
    WHOLE = 0


cdef int walk(LogCore log, uint64_t at, uint64_t end, uint64_t* count) except? -2:
    """Counts the live messages of the chain that begins at `at` and are below `end`."""
    cdef Entry* entry
    cdef MessageBlock block
    cdef uint64_t first, last
    count[0] = 0
    while at < end:
        entry = log._entry(at)
        if entry == NULL:
            return BROKEN
        block = log.chain
        first, last = block.first_seq, block.last_seq
        while True:
            count[0] += not entry.offset & <uint32_t>ENTRY_DEAD
            if entry.next_delta == 0:
                return WHOLE
            if entry.next_delta == <uint32_t>NEXT_FAR:
                return BROKEN
            at += entry.next_delta
            if at >= end or at > last or block.seqs != NULL:
                break
            entry = &block.entries[at - first]
    return WHOLE


cdef uint64_t count_from(LogCore log, Subject* s, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t count = 0, at
    if seq <= s.first:
        return s.count
    if seq > s.last:
        return 0
    if seq - s.first < s.last - seq and walk(log, s.first, seq, &count) == WHOLE:
        return s.count - count
    at = log._along(s, seq)
    if at == 0 or walk(log, at, s.last + 1, &count) == WHOLE:
        return count if at else 0
    count = 0
    while at:
        count += 1
        at = 0 if at >= s.last else log._along(s, at + 1)
    return count
