"""Encoders of NATS protocol frames."""
from penstock.kernels.wire.buffers cimport OutBuffer

# MSG, or HMSG when there is a header. reply may be NULL when reply_len is 0; body is header and payload.
cdef int put_msg(OutBuffer out, const char* subject, size_t subject_len, const char* sid, size_t sid_len,
                 const char* reply, size_t reply_len,
                 const char* body, size_t header_len, size_t body_len) except -1
# The same with subject, blank, sid, blank in one piece.
cdef int put_msg_behind(OutBuffer out, const char* words, size_t words_len, const char* reply, size_t reply_len,
                        const char* body, size_t header_len, size_t body_len) except -1
