"""Growable output buffers, and the encoders of protocol frames that write into them."""
from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #ifdef _WIN32
    static long long send_at_once(int fd, const char* p, size_t n) { return -1; }
    #else
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    static long long send_at_once(int fd, const char* p, size_t n) {
        return send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    #endif
    """
    # What a socket takes without waiting, in bytes; -1 = nothing, or an error, which the next write meets as well.
    long long send_at_once(int fd, const char* p, size_t n) noexcept nogil

# Writes v in decimal at d and returns the number of digits (1..20).
cdef size_t put_uint(char* d, uint64_t v) noexcept nogil

cdef class OutBuffer:
    cdef char* data
    cdef readonly size_t size        # bytes written and not yet taken
    cdef size_t capacity
    # Makes room for n more bytes and returns a pointer to it. The caller adds to `size` what it wrote.
    # Pointers into the buffer are valid until the next reserve().
    cdef char* reserve(self, size_t n) except NULL
    cdef int append(self, const char* p, size_t n) except -1
    cpdef int write(self, const unsigned char[:] data) except -1
    cpdef bytes take(self)           # everything written so far; empties the buffer
    cpdef clear(self)
    cdef int grow(self, size_t n) except -1

# A run of variable-size items in one buffer, taken from the front.
cdef class RunBuffer:
    cdef OutBuffer buf
    cdef readonly size_t count
    cdef readonly size_t position   # offset of the first one not yet taken
    cdef unsigned int small_runs    # consecutive runs that used little of the memory
    cpdef clear(self)


# MSG, or HMSG when there is a header. reply may be NULL when reply_len is 0; body is header and payload.
cdef int put_msg(OutBuffer out, const char* subject, size_t subject_len, const char* sid, size_t sid_len,
                 const char* reply, size_t reply_len,
                 const char* body, size_t header_len, size_t body_len) except -1
# The same with subject, blank, sid, blank as one string.
cdef int put_msg_behind(OutBuffer out, const char* words, size_t words_len, const char* reply, size_t reply_len,
                        const char* body, size_t header_len, size_t body_len) except -1
