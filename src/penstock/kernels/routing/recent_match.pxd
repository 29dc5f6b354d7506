"""Caches of one entry each: the last lookup of a subject that exactly one wildcard filter matched, and the last one
that exactly one literal filter matched.

Publishers repeat a subject, and the replies to one requester (`_INBOX.<id>.<n>`) differ only in their last token.
So the index keeps the last such result. It is valid for the same subject, and for every subject that differs only in
the last token if the walk compared that token with no literal token.

The literal one, `RecentLiteral`, is the entry of the filter's only subscription: the entry contains the subject, so
nothing is copied. A hit saves hash, table and walk: a fifth of a publish to one subscriber.

Invariant: the entry is valid for the index's generation at which it was stored. `Recent` does not cover literal
filters: a caller of differs_in_last_token() has checked that the subject has none.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from penstock.kernels.wire.sinks cimport SubscriptionEntry, entry_words

cdef enum:
    RECENT_MAX = 104                # bytes of a subject that is cached

cdef struct Recent:
    uint64_t generation
    void* state                     # the FilterState that matched, borrowed
    uint32_t n                      # of the subject; 0 = the cache is empty
    uint32_t shared                 # bytes up to its last token; 0: the result depends on the last token
    char subject[RECENT_MAX]

cdef struct RecentLiteral:
    uint64_t generation
    SubscriptionEntry* entry        # borrowed; NULL = the cache is empty


cdef inline bint is_recent_literal(
    const RecentLiteral* recent, const char* subject, size_t n, uint64_t generation
) noexcept nogil:
    """Is it the subject of the entry? Compares the last bytes first: subjects that follow each other often have a
    common start."""
    cdef const SubscriptionEntry* entry = recent.entry
    cdef const char* words
    if recent.generation != generation or entry == NULL or entry.subject_len != n:
        return False
    words = entry_words(entry)
    return words[n - 1] == subject[n - 1] and memcmp(words, subject, n) == 0


cdef inline bint is_recent(const Recent* recent, const char* subject, size_t n, uint64_t generation) noexcept nogil:
    """Is it the same subject?"""
    return recent.n == n and recent.generation == generation and memcmp(recent.subject, subject, n) == 0


cdef inline bint differs_in_last_token(
    const Recent* recent, const char* subject, size_t n, uint64_t generation
) noexcept nogil:
    """Does it differ only in the last token, on which the result does not depend?"""
    cdef size_t shared = recent.shared
    return (
        shared != 0 and n > shared and recent.generation == generation
        and memcmp(recent.subject, subject, shared) == 0
        and memchr(subject + shared, c'.', n - shared) == NULL
    )


cdef inline void keep_recent(
    Recent* recent, const char* subject, size_t n, uint64_t generation, void* state, bint tests_last_token,
) noexcept nogil:
    """`tests_last_token`: did the walk compare the last token with literal tokens?"""
    if n > RECENT_MAX:
        return
    memcpy(recent.subject, subject, n)
    recent.n = <uint32_t>n
    recent.generation = generation
    recent.state = state
    recent.shared = 0
    if not tests_last_token:
        while n and subject[n - 1] != c'.':
            n -= 1
        recent.shared = <uint32_t>n
