"""The lookup of a subject that one wildcard filter alone matched, remembered for those that come right after it.

Publishers repeat a subject, and the replies of one requester (`_INBOX.<id>.<n>`) differ in their last token alone.
So the index keeps the last such answer: it holds for the same subject, and for every one that differs in the
last token, where no filter told last tokens apart on the way.

Invariant: what is remembered holds for the index's generation of that moment. Literal filters are not looked at:
who asks by the last token has found that the subject has none.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    RECENT_MAX = 104                # bytes of a subject worth remembering

cdef struct Recent:
    uint64_t generation
    void* state                     # the FilterState that matched, borrowed
    uint32_t n                      # of the subject; 0 = nothing is remembered
    uint32_t shared                 # bytes up to its last token; 0: another last token may be another answer
    char subject[RECENT_MAX]


cdef inline bint is_recent(const Recent* recent, const char* subject, size_t n, uint64_t generation) noexcept nogil:
    """Is it the same subject?"""
    return recent.n == n and recent.generation == generation and memcmp(recent.subject, subject, n) == 0


cdef inline bint is_akin(const Recent* recent, const char* subject, size_t n, uint64_t generation) noexcept nogil:
    """Does it differ in the last token alone, and that doesn't matter?"""
    cdef size_t shared = recent.shared
    return (
        shared != 0 and n > shared and recent.generation == generation
        and memcmp(recent.subject, subject, shared) == 0
        and memchr(subject + shared, c'.', n - shared) == NULL
    )


cdef inline void keep_recent(
    Recent* recent, const char* subject, size_t n, uint64_t generation, void* state, bint told_apart,
) noexcept nogil:
    """`told_apart`: did a filter look at the last token?"""
    if n > RECENT_MAX:
        return
    memcpy(recent.subject, subject, n)
    recent.n = <uint32_t>n
    recent.generation = generation
    recent.state = state
    recent.shared = 0
    if not told_apart:
        while n and subject[n - 1] != c'.':
            n -= 1
        recent.shared = <uint32_t>n
