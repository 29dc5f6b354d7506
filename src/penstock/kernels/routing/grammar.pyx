# cython: auto_pickle=False
"""Subject grammar: what can be published to, what can be subscribed to, which subjects a filter matches.

Dots separate tokens. A token is not empty and contains no whitespace and no NUL. A filter may have `*` as a whole
token (any one token) and `>` as the whole last one (one token or more); inside a longer token both are ordinary
characters, as on the official server.

Rejected: splitting into lists of tokens first (an allocation a call; two pointers walk both at once).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint32_t
from libc.string cimport memcmp


cdef inline bint is_space_or_nul(char c) noexcept nogil:
    return c == c' ' or c == c'\t' or c == c'\r' or c == c'\n' or c == c'\f' or c == 0


cdef bint has_space(bytes subject) noexcept:
    cdef const char* s = PyBytes_AS_STRING(subject)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(subject)):
        if s[i] == c' ' or s[i] == c'\t' or s[i] == c'\r' or s[i] == c'\n':
            return True
    return False


cdef bint is_valid(const char* s, size_t n, bint wildcards) noexcept nogil:
    """Are all tokens non-empty and without whitespace, and are wildcards allowed and in a valid position?"""
    cdef size_t i
    cdef size_t token = 0           # start of the current token
    cdef char c
    cdef bint tail = False
    if n == 0:
        return False
    for i in range(n + 1):
        c = c'.' if i == n else s[i]
        if c == c'.':
            if i == token or tail:
                return False
            if i == token + 1 and (s[token] == c'*' or s[token] == c'>'):
                if not wildcards:
                    return False
                tail = s[token] == c'>'
            token = i + 1
        elif is_space_or_nul(c):
            return False
    return True


cdef bint is_literal_subject(const char* s, size_t n) noexcept nogil:
    return is_valid(s, n, False)


cdef bint is_valid_filter(const char* s, size_t n) noexcept nogil:
    return is_valid(s, n, True)


cdef bint has_wildcard(const char* s, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        if (
            (s[i] == c'*' or s[i] == c'>')
            and (i == 0 or s[i - 1] == c'.')
            and (i + 1 == n or s[i + 1] == c'.')
        ):
            return True
    return False


cdef bint filter_matches(const char* f, size_t fn, const char* s, size_t sn) noexcept nogil:
    cdef const char* f_end = f + fn
    cdef const char* s_end = s + sn
    cdef const char* ft
    cdef const char* st
    if fn == 0 or sn == 0:
        return False
    while True:
        ft = token_end(f, f_end)
        if is_token(f, ft, c'>') and ft == f_end:
            return not has_empty_token(s, <size_t>(s_end - s))
        st = token_end(s, s_end)
        if st == s:
            return False            # an empty token matches nothing
        if not is_token(f, ft, c'*') and (ft - f != st - s or memcmp(f, s, <size_t>(st - s)) != 0):
            return False
        if ft == f_end or st == s_end:
            return ft == f_end and st == s_end
        f = ft + 1
        s = st + 1


cdef bint has_empty_token(const char* s, size_t n) noexcept nogil:
    cdef size_t i
    cdef bint after_dot = True      # (tokens are short: byte by byte is faster than a search for each)
    for i in range(n):
        if s[i] == c'.':
            if after_dot:
                return True
            after_dot = True
        else:
            after_dot = False
    return after_dot


cdef bint overlap(const char* a, size_t an, const char* b, size_t bn) noexcept nogil:
    """Is there a subject that both valid filters match?"""
    cdef const char* a_end = a + an
    cdef const char* b_end = b + bn
    cdef const char* at
    cdef const char* bt
    while True:
        at = token_end(a, a_end)
        bt = token_end(b, b_end)
        if is_token(a, at, c'>') or is_token(b, bt, c'>'):
            return True
        if not is_token(a, at, c'*') and not is_token(b, bt, c'*'):
            if at - a != bt - b or memcmp(a, b, <size_t>(at - a)) != 0:
                return False
        if at == a_end or bt == b_end:
            return at == a_end and bt == b_end
        a = at + 1
        b = bt + 1


cdef bint subset(const char* a, size_t an, const char* b, size_t bn) noexcept nogil:
    """Does valid filter b match everything that valid filter a matches?"""
    cdef const char* a_end = a + an
    cdef const char* b_end = b + bn
    cdef const char* at
    cdef const char* bt
    while True:
        at = token_end(a, a_end)
        bt = token_end(b, b_end)
        if is_token(b, bt, c'>'):
            return True
        if is_token(a, at, c'>'):
            return False
        if not is_token(b, bt, c'*') and (at - a != bt - b or memcmp(a, b, <size_t>(at - a)) != 0):
            return False
        if at == a_end or bt == b_end:
            return at == a_end and bt == b_end
        a = at + 1
        b = bt + 1


# Python interface. The C functions above have the names that other kernels cimport, hence the wrappers.
def _is_literal_subject(bytes subject not None):
    """May this be published to: non-empty tokens, no wildcards, no whitespace or NUL?"""
    return is_literal_subject(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))


def _is_valid_filter(bytes f not None):
    """May this be subscribed to: like a subject, with * as a whole token and > as the whole last token?"""
    return is_valid_filter(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f))


def _has_wildcard(bytes f not None):
    """Is any token of the filter * or >?"""
    return has_wildcard(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f))


def _filter_matches(bytes f not None, bytes subject not None):
    """Does the filter match the literal subject?"""
    return filter_matches(
        PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f),
        PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject),
    )


cdef int check_filter(bytes f) except -1:
    if not is_valid_filter(PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f)):
        raise ValueError(
            f"{f!r} is no subject filter: tokens split by dots, none empty, no whitespace, > only at the end"
        )
    return 0


def filters_overlap(bytes a not None, bytes b not None):
    """Is there a subject that both filters match? Raises ValueError for an invalid filter."""
    check_filter(a)
    check_filter(b)
    return overlap(
        PyBytes_AS_STRING(a), <size_t>PyBytes_GET_SIZE(a), PyBytes_AS_STRING(b), <size_t>PyBytes_GET_SIZE(b)
    )


def overlaps_any(list filters not None, str f not None):
    """Does one of these filters overlap `f`? The caller has validated all of them."""
    cdef const char* p
    cdef const char* q
    cdef Py_ssize_t n, m
    q = PyUnicode_AsUTF8AndSize(f, &m)
    for one in filters:
        p = PyUnicode_AsUTF8AndSize(<str?>one, &n)
        if overlap(p, <size_t>n, q, <size_t>m):
            return True
    return False


def fnv1a_32(list tokens not None):
    """The 32-bit FNV-1a hash of these bytes one after the other, which partitions subjects."""
    cdef uint32_t value = 2166136261
    cdef const unsigned char* p
    cdef Py_ssize_t i
    for token in tokens:
        p = <const unsigned char*>PyBytes_AS_STRING(<bytes?>token)
        for i in range(PyBytes_GET_SIZE(token)):
            value = (value ^ p[i]) * <uint32_t>16777619
    return value


def filter_is_subset(bytes a not None, bytes b not None):
    """Does b match everything that a matches? Raises ValueError for an invalid filter."""
    check_filter(a)
    check_filter(b)
    return subset(
        PyBytes_AS_STRING(a), <size_t>PyBytes_GET_SIZE(a), PyBytes_AS_STRING(b), <size_t>PyBytes_GET_SIZE(b)
    )


globals().update(
    is_literal_subject=_is_literal_subject,
    is_valid_filter=_is_valid_filter,
    has_wildcard=_has_wildcard,
    filter_matches=_filter_matches,
)
