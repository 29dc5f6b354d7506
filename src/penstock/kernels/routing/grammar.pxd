"""Subject grammar: literal subjects, filters, and how they relate."""
from libc.string cimport memchr, memcmp

# A publish subject: non-empty tokens, no wildcard tokens, no whitespace or NUL.
cdef bint is_literal_subject(const char* s, size_t n) noexcept nogil
# A subscription filter: like a subject, `*` as a whole token, `>` as the whole last token.
cdef bint is_valid_filter(const char* s, size_t n) noexcept nogil
cdef bint has_wildcard(const char* s, size_t n) noexcept nogil
# Does filter `f` match literal subject `s`?
cdef bint filter_matches(const char* f, size_t fn, const char* s, size_t sn) noexcept nogil
cdef bint has_empty_token(const char* s, size_t n) noexcept nogil
# Does it contain whitespace or NUL, which would corrupt a protocol line?
cdef bint has_space(bytes subject) noexcept
# Raises ValueError for an invalid filter.
cdef int check_filter(bytes f) except -1

# The dot that ends the token at p, or `end`.
cdef inline const char* token_end(const char* p, const char* end) noexcept nogil:
    cdef const char* dot = <const char*>memchr(p, c'.', <size_t>(end - p))
    return end if dot == NULL else dot

cdef inline bint is_token(const char* p, const char* end, char c) noexcept nogil:
    return end - p == 1 and p[0] == c

cdef inline bint starts_with(const char* s, size_t n, const char* prefix, size_t k) noexcept nogil:
    return n > k and memcmp(s, prefix, k) == 0

# Do the first two bytes allow that a subject or reply is reserved? Inboxes (`_INBOX.`) are not.
cdef inline bint may_be_reserved(const char* s, size_t n) noexcept nogil:
    if n < 2:
        return False
    if s[0] == c'$':
        return s[1] == c'N' or s[1] == c'G' or s[1] == c'J'
    return s[0] == c'_' and (s[1] == c'G' or s[1] == c'R')

# Subjects between servers; clients may not publish there.
cdef inline bint is_reserved_subject(const char* s, size_t n) noexcept nogil:
    if not may_be_reserved(s, n):
        return False
    return (
        starts_with(s, n, b"$NRG.", 5) or starts_with(s, n, b"_GR_.", 5) or starts_with(s, n, b"$GR.", 4)
    )

# Replies that only servers may name: service imports, consumer acks, gateways.
cdef inline bint is_reserved_reply(const char* s, size_t n) noexcept nogil:
    if not may_be_reserved(s, n):
        return False
    return (
        starts_with(s, n, b"_R_.", 4) or starts_with(s, n, b"$JS.ACK.", 8)
        or starts_with(s, n, b"_GR_.", 5) or starts_with(s, n, b"$GR.", 4)
    )
