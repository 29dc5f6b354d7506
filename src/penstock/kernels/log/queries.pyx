# cython: auto_pickle=False
"""Queries of a log for the JetStream API: direct gets, and the counts of subjects.

Direct gets: this kernel answers plain ones, and builds the messages of batches.

The common requests (a sequence, the next or the last message of a literal subject) are parsed and answered
without Python. Every other request, and every error except a missing message,
is left to the service's callback, which implements the complete API: the responses of this sink equal its.

Invariants: no pointer into the log exists while a response is routed (its receiver may change the log); all
earlier publishes are applied before a response is built.
Rejected: a JSON parser (requests that this kernel doesn't parse go to one); a cache of streams by name (it would have
to be invalidated when a stream is deleted or changed).

SubjectCounts: a snapshot of the subjects that a filter matches, with their counts.

A stream has millions of subjects, and a response that lists some in order has to sort all matches: a tenth of
a second for 300,000. So the list is copied first (10 ms for as many), and sorted in slices in later
iterations of the event loop, while the log may change.

Theory of operation. A bottom-up merge sort: runs of RUN subjects are sorted one by one, then pairs of
runs are merged into runs of twice the length, until one is left. A merge can stop and continue anywhere.

Invariant: `order` has each index once. Its runs of `width` are in order; from `at` on, a pair of them is being
merged into `merged`, which becomes `order` after its last pair.

Rejected: qsort of everything (it can't be interrupted); an ordered index of subjects (a cost for each new subject).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from penstock.kernels.base.memory cimport array_new
from penstock.kernels.log.records cimport Record
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.log.subject_state cimport Subject, SubjectState
from penstock.kernels.routing.grammar cimport has_wildcard, token_end
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.wire.dispatch cimport ServiceSink, note_call, route
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription, is_closed

from penstock.faults import note


# --- direct get

cdef enum:
    VERB_SIZE = 11                  # "DIRECT.GET."
    ADDED_MAX = 220                 # bytes of added names and numbers, without subject and stream
    DIGITS_MAX = 18                 # a sequence of this server never has more


cdef inline char* put_text(char* d, const char* s, size_t n) noexcept nogil:
    memcpy(d, s, n)
    return d + n


cdef inline char* put_padded(char* d, int64_t v, int digits) noexcept nogil:
    cdef int i
    for i in range(digits):
        d[digits - 1 - i] = <char>(c'0' + <int>(v % 10))
        v = v // 10
    return d + digits


cdef void put_second(char* d, int64_t second) noexcept:
    """Writes 2026-01-02T03:04:05 for seconds since 1970; the year has four digits within 64 bits of nanoseconds."""
    cdef int64_t days = second // 86400
    cdef int64_t left = second - days * 86400
    cdef int64_t z = days + 719468                              # days since 0000-03-01
    cdef int64_t era = z // 146097
    cdef int64_t of_era = z - era * 146097
    cdef int64_t year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef int64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef int64_t shifted = (5 * of_year + 2) // 153             # months since March
    cdef int64_t day = of_year - (153 * shifted + 2) // 5 + 1
    cdef int64_t month = shifted + 3 if shifted < 10 else shifted - 9
    d = put_padded(d, year + era * 400 + (month <= 2), 4)
    d[0] = c"-"
    d = put_padded(d + 1, month, 2)
    d[0] = c"-"
    d = put_padded(d + 1, day, 2)
    d[0] = c"T"
    d = put_padded(d + 1, left // 3600, 2)
    d[0] = c":"
    d = put_padded(d + 1, left // 60 % 60, 2)
    d[0] = c":"
    put_padded(d + 1, left % 60, 2)


cdef class Answers:
    def __cinit__(self):
        self.out = OutBuffer()
        put_second(self.second_text, 0)

    cdef char* put_time(self, char* d, int64_t ts) noexcept:
        cdef int64_t second = ts // 1000000000
        cdef int64_t fraction = ts - second * 1000000000
        if second != self.second:
            put_second(self.second_text, second)
            self.second = second
        d = put_text(d, self.second_text, 19)
        if fraction:
            d[0] = c"."
            d = put_padded(d + 1, fraction, 9)
            while (d - 1)[0] == c"0":
                d -= 1
        d[0] = c"Z"
        return d + 1

    cdef size_t put(self, const Record* r, const char* name, size_t name_len, bint batched, uint64_t pending,
                    uint64_t previous, bint bare) except? 0:
        cdef size_t payload_len = r.body_len - r.header_len
        cdef size_t header_len
        cdef char* start
        cdef char* d
        self.out.clear()
        start = self.out.reserve(r.body_len + r.subject_len + name_len + ADDED_MAX)
        d = start
        if not bare:
            # A stored header block without its final CRLF is invalid and left out.
            if r.header_len >= 4 and memcmp(r.body + r.header_len - 4, b"\r\n\r\n", 4) == 0:
                d = put_text(d, r.body, r.header_len - 2)
            else:
                d = put_text(d, b"NATS/1.0\r\n", 10)
            d = put_text(d, b"Nats-Stream: ", 13)
            d = put_text(d, name, name_len)
            d = put_text(d, b"\r\nNats-Subject: ", 16)
            d = put_text(d, r.subject, r.subject_len)
            d = put_text(d, b"\r\nNats-Sequence: ", 17)
            d += put_uint(d, r.seq)
            d = put_text(d, b"\r\nNats-Time-Stamp: ", 19)
            d = self.put_time(d, r.ts)
            if batched:
                d = put_text(d, b"\r\nNats-Num-Pending: ", 20)
                d += put_uint(d, pending)
                d = put_text(d, b"\r\nNats-Last-Sequence: ", 22)
                d += put_uint(d, previous)
            d = put_text(d, b"\r\n\r\n", 4)
        header_len = <size_t>(d - start)
        d = put_text(d, r.body + r.header_len, payload_len)
        self.out.size = <size_t>(d - start)
        return header_len

    cdef int send(self, SubscriptionIndex index, const Message* asked, size_t header_len) except -1:
        cdef Message m
        m.subject, m.subject_len = asked.reply, asked.reply_len
        m.reply, m.reply_len = NULL, 0
        m.body, m.body_len, m.header_len = self.out.data, self.out.size, header_len
        return route(index, &m, None)


cdef inline const char* skip_space(const char* p, const char* end) noexcept nogil:
    while p < end and (p[0] == c" " or p[0] == c"\t" or p[0] == c"\r" or p[0] == c"\n"):
        p += 1
    return p


cdef const char* text_end(const char* p, const char* end) noexcept nogil:
    """The closing quote of a string that begins at p; NULL when it isn't plain printable ASCII."""
    while p < end and p[0] != c'"':
        if p[0] <= c" " or p[0] > c"~" or p[0] == c"\\":
            return NULL
        p += 1
    return p if p < end else NULL


cdef bint read_ask(const char* p, size_t n, Ask* ask) noexcept nogil:
    """Parses a request's body; False for anything unusual."""
    cdef const char* end = p + n
    cdef const char* name
    cdef const char* value
    cdef size_t size
    ask.seq = 0
    ask.subject = NULL
    ask.subject_len = 0
    ask.last = False
    p = skip_space(p, end)
    if p == end or p[0] != c"{":
        return False
    while True:
        p = skip_space(p + 1, end)
        if p == end or p[0] != c'"':
            return False
        name = p + 1
        p = text_end(name, end)
        if p == NULL:
            return False
        size = <size_t>(p - name)
        p = skip_space(p + 1, end)
        if p == end or p[0] != c":":
            return False
        p = skip_space(p + 1, end)
        if size == 3 and memcmp(name, b"seq", 3) == 0:
            if ask.seq:
                return False
            value = p
            while p < end and c"0" <= p[0] <= c"9":
                ask.seq = ask.seq * 10 + <uint64_t>(p[0] - c"0")
                p += 1
            if ask.seq == 0 or value[0] == c"0" or p - value > DIGITS_MAX:
                return False
        elif size == 12 and (memcmp(name, b"last_by_subj", 12) == 0 or memcmp(name, b"next_by_subj", 12) == 0):
            if ask.subject != NULL or p == end or p[0] != c'"':
                return False
            ask.subject = p + 1
            ask.last = name[0] == c"l"
            p = text_end(ask.subject, end)
            if p == NULL or p == ask.subject:
                return False
            ask.subject_len = <size_t>(p - ask.subject)
            p += 1
        else:
            return False
        p = skip_space(p, end)
        if p == end:
            return False
        if p[0] == c"}":
            return skip_space(p + 1, end) == end and (ask.seq or ask.subject != NULL) and not (ask.seq and ask.last)
        if p[0] != c",":
            return False


cdef inline size_t after_api(SinkSubscription sub) noexcept:
    """The bytes of a subject before the verb, for a subscription to `$JS.API.>` or below it."""
    return <size_t>PyBytes_GET_SIZE(sub.subject) - 1


cdef inline bint is_direct_get(const Message* m, size_t prefix) noexcept nogil:
    return m.subject_len > prefix + VERB_SIZE and memcmp(m.subject + prefix, b"DIRECT.GET.", VERB_SIZE) == 0


cdef class DirectGets(ServiceSink):
    def __init__(
        self, callback, before, engine, SubscriptionIndex index not None, bytes not_found not None, size_t prefix=0
    ):
        super().__init__(callback, before)
        self.prefix = prefix
        self.engine = engine
        self.index = index
        self.not_found = not_found
        self.answers = Answers()
        self.dirty_streams = engine.dirty_streams
        self.dirty_consumers = engine.dirty_consumers
        self.commit = engine.commit
        self.deferrals = engine.deferrals
        self.pending = engine.pending
        self.routing = engine.pending.routing

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef size_t prefix = self.prefix if self.prefix else after_api(sub)
        if (
            is_direct_get(m, prefix) and m.reply_len and not m.header_len and not is_closed(sub)
            and not self.answering
            and self.try_answer(m.subject + prefix + VERB_SIZE, m.subject_len - prefix - VERB_SIZE, m)
        ):
            sub.entry.delivered += 1
            note_call(origin)
            return 1
        return ServiceSink.deliver(self, sub, m, origin)

    cdef int try_answer(self, const char* p, size_t n, const Message* m) except -1:
        """answer(), which must not raise: 0 after an exception, and the callback then reports the error."""
        try:
            return self.answer(p, n, m)
        except Exception as error:
            note("direct get", error)
            return 0

    cdef bint may_answer(self) except -1:
        if (
            len(self.dirty_streams.items) == 0 and len(self.dirty_consumers.items) == 0
            and not self.routing.is_active and not self.commit.in_flight
            and not self.pending.deferred and not self.deferrals.ready
        ):
            return True
        return self.engine.may_answer()

    cdef int answer(self, const char* p, size_t n, const Message* m) except -1:
        """Answers a request to `<stream>` or `<stream>.<subject>`: 1, or 0 when it is left to the callback."""
        cdef const char* end = p + n
        cdef const char* name_end = token_end(p, end)
        cdef size_t name_len = <size_t>(name_end - p)
        cdef StreamLog log
        cdef Ask ask
        cdef Record r
        cdef uint64_t seq
        cdef size_t header_len
        if name_end < end:
            ask.subject = name_end + 1
            ask.subject_len = <size_t>(end - ask.subject)
            ask.last = True
            if m.body_len:
                return 0
        elif not read_ask(m.body, m.body_len, &ask):
            return 0
        if ask.subject != NULL and ask.last and has_wildcard(ask.subject, ask.subject_len):
            return 0
        if not self.may_answer():
            return 0
        stream = self.engine.streams.get(PyUnicode_DecodeUTF8(p, <Py_ssize_t>name_len, b"surrogateescape"))
        if stream is None or not stream.config.allow_direct:
            return 0
        log = stream.log
        if ask.subject == NULL:
            seq = ask.seq
        elif ask.last:
            seq = log.last_of_subject(ask.subject, ask.subject_len)
        else:
            seq = log.next_matching(ask.seq if ask.seq else 1, ask.subject, ask.subject_len)
        if seq and log.read_single(seq, &r):
            header_len = self.answers.put(&r, p, name_len, False, 0, 0, False)
        else:
            header_len = <size_t>PyBytes_GET_SIZE(self.not_found)
            self.answers.out.clear()
            self.answers.out.append(PyBytes_AS_STRING(self.not_found), header_len)
        self.answering = True
        try:
            self.answers.send(self.index, m, header_len)
        finally:
            self.answering = False
        return 1


cdef class RequestsButDirectGets(ServiceSink):
    def __init__(self, callback, before, dict answered not None):
        super().__init__(callback, before)
        self.answered = answered

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef size_t prefix = after_api(sub)
        cdef const char* name
        cdef size_t name_len
        if is_direct_get(m, prefix):
            name = m.subject + prefix + VERB_SIZE
            name_len = <size_t>(token_end(name, m.subject + m.subject_len) - name)
            if PyUnicode_DecodeUTF8(name, <Py_ssize_t>name_len, b"surrogateescape") in self.answered:
                return 1
        return ServiceSink.deliver(self, sub, m, origin)


def send_run(
    SubscriptionIndex index not None, bytes reply not None, bytes name not None, StreamLog log not None, *,
    bytes filter not None, uint64_t seq, uint64_t pending, uint64_t most, int64_t room, bint bare,
):
    """Sends messages in order of sequence; see the .pyi."""
    cdef Answers answers = Answers()
    cdef Message asked
    cdef Record r
    cdef uint64_t sent = 0, previous = 0
    cdef size_t header_len
    set_reply(&asked, reply)
    while True:
        seq = log.next_matching(seq, PyBytes_AS_STRING(filter), <size_t>PyBytes_GET_SIZE(filter))
        if seq == 0:
            break
        if not log.read(seq, &r):
            seq += 1                # damaged on disk
            continue
        if pending:
            pending -= 1
        room -= r.subject_len + r.body_len
        header_len = answers.put(&r, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name), True, pending,
                                 previous, bare)
        answers.send(index, &asked, header_len)
        previous = seq
        seq += 1
        sent += 1
        if room <= 0 or sent == most:
            break
    return sent, previous, pending


def send_these(
    SubscriptionIndex index not None, bytes reply not None, bytes name not None, StreamLog log not None, *,
    list seqs not None, uint64_t most, int64_t room,
):
    """Sends the messages of these sequences; see the .pyi."""
    cdef Answers answers = Answers()
    cdef Message asked
    cdef Record r
    cdef uint64_t sent = 0, previous = 0, pending = <uint64_t>len(seqs), seq
    cdef size_t header_len
    set_reply(&asked, reply)
    for seq in seqs:
        pending -= 1
        if not log.read(seq, &r):
            continue
        room -= r.subject_len + r.body_len
        header_len = answers.put(&r, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name), True, pending,
                                 previous, False)
        answers.send(index, &asked, header_len)
        previous = seq
        sent += 1
        if room <= 0 or sent == most:
            break
    return sent, previous, pending


cdef void set_reply(Message* asked, bytes reply) noexcept:
    asked.reply = PyBytes_AS_STRING(reply)
    asked.reply_len = <size_t>PyBytes_GET_SIZE(reply)


# --- subject counts

cdef enum:
    RUN = 16                    # sorted by insertion
    RUN_WORK = 64               # comparisons to sort a run


cdef class SubjectCounts:
    def __cinit__(self, StreamLog log not None, bytes filter not None):
        cdef SubjectState state = log.state
        cdef size_t i, size = 0, n = state.match(<const char*>filter, len(filter))
        cdef const Subject* s
        for i in range(n):
            size += state.items[state.matched[i]].text_len
        self.items = <SubjectCount*>array_new(n, sizeof(SubjectCount), b"subjects")
        self.texts = <char*>array_new(size, 1, b"bytes of subjects")
        self.order = <uint32_t*>array_new(n, sizeof(uint32_t), b"subjects")
        self.merged = <uint32_t*>array_new(n, sizeof(uint32_t), b"subjects")
        size = 0
        for i in range(n):
            s = &state.items[state.matched[i]]
            self.items[i].count = s.count
            self.items[i].text = size
            self.items[i].text_len = s.text_len
            memcpy(self.texts + size, state.arena + s.text, s.text_len)
            size += s.text_len
            self.order[i] = <uint32_t>i
        self.total = n

    def __dealloc__(self):
        free(self.items)
        free(self.texts)
        free(self.order)
        free(self.merged)

    def __len__(self):
        return self.total

    cdef bint _is_before(self, uint32_t one, uint32_t other) noexcept nogil:
        cdef const SubjectCount* a = &self.items[one]
        cdef const SubjectCount* b = &self.items[other]
        cdef uint32_t n = a.text_len if a.text_len < b.text_len else b.text_len
        cdef int found = memcmp(self.texts + a.text, self.texts + b.text, n)
        return found < 0 or (found == 0 and a.text_len < b.text_len)

    cdef size_t _sort_run(self) noexcept:
        """Sorts the next run of the initial length; returns the work."""
        cdef size_t end = self.at + RUN if self.at + RUN < self.total else self.total
        cdef size_t i, hole
        cdef uint32_t item
        for i in range(self.at + 1, end):
            item = self.order[i]
            hole = i
            while hole > self.at and self._is_before(item, self.order[hole - 1]):
                self.order[hole] = self.order[hole - 1]
                hole -= 1
            self.order[hole] = item
        self.at = end
        return RUN_WORK

    cdef size_t _merge(self, size_t most) noexcept:
        """Continues to merge a pair of runs, up to `most` subjects; returns how many it merged."""
        cdef size_t middle = self.at + self.width, end = middle + self.width
        cdef size_t out, done = 0
        if middle > self.total:
            middle = self.total
        if end > self.total:
            end = self.total
        if not self.in_pair:
            self.left = self.at
            self.right = middle
            self.in_pair = True
        out = self.left + (self.right - middle)
        while done < most and (self.left < middle or self.right < end):
            if self.right == end or (
                self.left < middle and not self._is_before(self.order[self.right], self.order[self.left])
            ):
                self.merged[out] = self.order[self.left]
                self.left += 1
            else:
                self.merged[out] = self.order[self.right]
                self.right += 1
            out += 1
            done += 1
        if self.left == middle and self.right == end:
            self.at = end
            self.in_pair = False
        return done

    def sort(self, size_t work):
        cdef size_t done
        while work and (self.width == 0 or self.width < self.total):
            if self.at == self.total:       # all runs of this length are complete
                if self.width == 0:
                    self.width = RUN
                else:
                    self.order, self.merged = self.merged, self.order
                    self.width *= 2
                self.at = 0
                continue
            done = self._sort_run() if self.width == 0 else self._merge(work)
            work -= done if done < work else work
        return work

    def rows(self, size_t start, size_t stop):
        cdef size_t i
        cdef const SubjectCount* item
        cdef list found = []
        for i in range(start, stop if stop < self.total else self.total):
            item = &self.items[self.order[i]]
            found.append((PyBytes_FromStringAndSize(self.texts + item.text, item.text_len), item.count))
        return found
