"""Header blocks of publishes: what they ask of a stream, told without Python for those that come often.

Message ids, expectations and places in atomic batches (`Nats-Msg-Id`, `Nats-Expected-...`, `Nats-Batch-...`)
are told apart here; a block with any other `Nats-` name, or in any other form, is left to Python as it is.

Invariants: a value is the one Python finds (protocol/headers.py: the first of its name, without the space
around it); where the two could differ, the block is special. Rejected: parsing every header of a block (a
publish has tens of bytes of them, and nearly all are the application's).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.message_ids cimport MessageIds
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog

cdef enum:
    HEADER_MAX = 0xffff             # larger ones are refused by Python with error 10097
    STATUS_LINE_SIZE = 10           # "NATS/1.0\r\n"
    DIGITS_MAX = 20                 # of a sequence
    BATCH_DIGITS_MAX = 9            # of one within an atomic batch
    HAS_BATCH_SEQ = 1               # beside PUBLISH_IS_BATCHED and PUBLISH_COMMITS: which names came


cdef inline bint is_name(const char* line, size_t n, const char* name, size_t size) noexcept nogil:
    return n >= size and memcmp(line, name, size) == 0


cdef uint32_t expectation(const char* line, size_t n, size_t* name_size) noexcept nogil:
    """Which expectation a header line holds, and the bytes of its name and colon; 0: none."""
    if not is_name(line, n, b"Nats-Expected-", 14):
        return 0
    if is_name(line, n, b"Nats-Expected-Last-Subject-Sequence:", 36):
        name_size[0] = 36
        return EXPECTS_SUBJECT_SEQ
    if is_name(line, n, b"Nats-Expected-Last-Sequence:", 28):
        name_size[0] = 28
        return EXPECTS_SEQ
    if is_name(line, n, b"Nats-Expected-Stream:", 21):
        name_size[0] = 21
        return EXPECTS_STREAM
    if is_name(line, n, b"Nats-Expected-Last-Msg-Id:", 26):
        name_size[0] = 26
        return EXPECTS_LAST_ID
    return 0


cdef const char* trim(const char* value, const char* end, size_t* size) noexcept nogil:
    while value < end and (value[0] == c" " or value[0] == c"\t"):
        value += 1
    while end > value and ((end - 1)[0] == c" " or (end - 1)[0] == c"\t"):
        end -= 1
    size[0] = <size_t>(end - value)
    return value


cdef bint batch_line(const char* p, const char* line, size_t n, PublishHead* head, uint32_t* names) noexcept nogil:
    """One `Nats-Batch-...` line of n bytes (without its end) into head; False: Python has to look at it."""
    cdef const char* value
    cdef size_t size = 0, i
    cdef uint32_t name = 0, seq = 0
    if is_name(line, n, b"Nats-Batch-Id:", 14):
        name = PUBLISH_IS_BATCHED
        value = trim(line + 14, line + n, &size)
        head.batch_start = <uint16_t>(value - p)
        head.batch_len = <uint16_t>size
    elif is_name(line, n, b"Nats-Batch-Sequence:", 20):
        name = HAS_BATCH_SEQ
        value = trim(line + 20, line + n, &size)
        if size > BATCH_DIGITS_MAX:
            return False
        for i in range(size):
            if value[i] < c"0" or value[i] > c"9":
                return False
            seq = seq * 10 + <uint32_t>(value[i] - c"0")
        head.batch_seq = seq
    elif is_name(line, n, b"Nats-Batch-Commit:", 18):
        name = PUBLISH_COMMITS
        size = 1
    if name == 0 or size == 0 or names[0] & name:
        return False
    names[0] |= name
    return True


cdef void classify_header(const char* p, PublishHead* head) noexcept nogil:
    cdef size_t n = head.header_len
    cdef const char* end = p + n
    cdef const char* line
    cdef const char* value
    cdef const char* stop
    cdef uint32_t flags = 0, expected = 0, kind, batch_names = 0
    cdef bint has_id = False
    cdef size_t size = 0
    head.flags = PUBLISH_IS_SPECIAL
    if n < STATUS_LINE_SIZE or n > HEADER_MAX or memcmp(p, b"NATS/1.0\r\n", STATUS_LINE_SIZE) != 0:
        return
    line = p + STATUS_LINE_SIZE
    while end - line >= 5:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop != NULL and (stop - 1)[0] != c"\r":
            return                          # Python knows no other line ends: let it look
        if memcmp(line, b"Nats-", 5) == 0:
            if stop == NULL:
                return
            if is_name(line, stop - line, b"Nats-Msg-Id:", ID_NAME_SIZE):
                if has_id:
                    return
                has_id = True
                value = trim(line + ID_NAME_SIZE, stop - 1, &size)
                if size:                # an empty id is none
                    head.id_start = <uint16_t>(value - p)
                    head.id_len = <uint16_t>size
                    flags |= PUBLISH_HAS_ID
            elif is_name(line, stop - line, b"Nats-Batch-", 11):
                if not batch_line(p, line, stop - 1 - line, head, &batch_names):
                    return
            else:
                kind = expectation(line, stop - line, &size)
                if kind == 0 or expected & kind:
                    return
                expected |= kind
                flags |= PUBLISH_EXPECTS
        if stop == NULL:
            break
        line = stop + 1
    if batch_names:
        if ~batch_names & (PUBLISH_IS_BATCHED | HAS_BATCH_SEQ):
            return                      # an id without a place, or a place without an id
        flags |= PUBLISH_IS_BATCHED | (batch_names & PUBLISH_COMMITS)
    head.flags = <uint16_t>flags


cdef bint fits(const Message* m) noexcept nogil:
    return m.subject_len <= SUBJECT_MAX and m.reply_len <= SUBJECT_MAX and m.body_len <= BODY_MAX


cdef PublishHead* put_publish(OutBuffer buf, const Message* m) except NULL:
    cdef size_t size = sizeof(PublishHead) + m.subject_len + m.reply_len + m.body_len
    cdef size_t padded = (size + 7) & ~<size_t>7
    cdef PublishHead* head = <PublishHead*>buf.reserve(padded)
    cdef char* d = <char*>head + sizeof(PublishHead)
    head.size = <uint32_t>padded
    head.flags = 0
    head.subject_len = <uint16_t>m.subject_len
    head.reply_len = <uint16_t>m.reply_len
    head.header_len = <uint32_t>m.header_len
    head.body_len = <uint32_t>m.body_len
    head.id_start = head.id_len = 0
    if m.header_len:
        classify_header(m.body, head)
    memcpy(d, m.subject, m.subject_len)
    d += m.subject_len
    if m.reply_len:
        head.flags |= PUBLISH_HAS_REPLY
        memcpy(d, m.reply, m.reply_len)
        d += m.reply_len
    if m.body_len:
        memcpy(d, m.body, m.body_len)
    memset(d + m.body_len, 0, padded - size)
    buf.size += padded
    return head


cdef void message_of(const PublishHead* head, Message* m) noexcept nogil:
    m.subject = <const char*>head + sizeof(PublishHead)
    m.subject_len = head.subject_len
    m.reply = m.subject + head.subject_len
    m.reply_len = head.reply_len
    m.body = m.reply + head.reply_len
    m.header_len = head.header_len
    m.body_len = head.body_len


cdef uint32_t present_expectations(const char* p, size_t n) noexcept nogil:
    cdef const char* line = p + STATUS_LINE_SIZE
    cdef const char* end = p + n
    cdef const char* stop
    cdef size_t size = 0
    cdef uint32_t kind, present = 0
    while True:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop == NULL:
            return present
        kind = expectation(line, stop - line, &size)
        if kind:
            trim(line + size, stop - 1, &size)
            if size:
                present |= kind
        line = stop + 1


cdef bint is_seq(const char* digits, size_t n, uint64_t seq) noexcept nogil:
    """Are these the digits of the sequence? (Leading zeros are allowed.)"""
    cdef uint64_t value = 0
    cdef size_t i
    if n == 0 or n > DIGITS_MAX:
        return False
    for i in range(n):
        if digits[i] < c"0" or digits[i] > c"9" or value >> 59:
            return False
        value = value * 10 + <uint64_t>(digits[i] - c"0")
    return value == seq


cdef uint32_t failed_expectations(const Message* m, StreamLog log, bytes stream, MessageIds ids) except? 0xFFFFFFFF:
    cdef const char* line = m.body + STATUS_LINE_SIZE
    cdef const char* end = m.body + m.header_len
    cdef const char* stop
    cdef const char* value
    cdef size_t size = 0
    cdef uint32_t kind, failed = 0
    cdef bint holds
    while True:
        stop = <const char*>memchr(line, c"\n", end - line)
        if stop == NULL:
            return failed
        kind = expectation(line, stop - line, &size)
        if kind:
            value = trim(line + size, stop - 1, &size)
            if size == 0:
                holds = True
            elif kind == EXPECTS_STREAM:
                holds = size == <size_t>PyBytes_GET_SIZE(stream) and memcmp(value, PyBytes_AS_STRING(stream), size) == 0
            elif kind == EXPECTS_SEQ:
                holds = is_seq(value, size, log.last_seq)
            elif kind == EXPECTS_SUBJECT_SEQ:
                holds = is_seq(value, size, log.last_of_subject(m.subject, m.subject_len))
            else:
                holds = ids.is_last(value, size)
            if not holds:
                failed |= kind
        line = stop + 1
