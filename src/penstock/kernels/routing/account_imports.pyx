# cython: auto_pickle=False
"""Messages across accounts.

A *service* import is a ServiceImportSink in the importing account's index. It rewrites the subject to that of the
exporting account, adds a header that identifies the requester, and routes there. When the request has a reply
subject, a ReplySink forwards the replies: the service replies to a subject generated for this request, which only
the exporting account's ReplyTable knows, and the sink routes them to the reply subject in the importing account.

A *stream* import is a StreamImportSink in the exporting account's index for each matching subscription of the
importing account. So queue groups span both accounts, and a consumer sees its receivers, as on the official server.

A request stays open until its reply arrives, its threshold passes, or the last subscription to its reply subject
ends.

Invariants: a message that arrived through a service import reaches no stream import (as on the official server). A
sink never re-enters its own pass_on(), so cycles end. Reply subjects are in no index: an insert would invalidate
cached lookups for every request.

Rejected: ServiceSinks in Python (a request would create about ten objects; here it creates the ReplySink, its
subscription and two subjects); one sink for a whole stream import that routes again in the importing account
(queue groups would not span accounts, and consumers would not see which receiver is slow).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from penstock.kernels.base.memory cimport array_new
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.dispatch cimport ClientSink, SubjectMapper, Views, route_remote
from penstock.kernels.ingest.batches cimport FastSubject, parse_subject
from penstock.kernels.routing.grammar cimport filter_matches, has_wildcard, starts_with, token_end
from penstock.kernels.wire.sinks cimport SUBSCRIPTION_CLOSED, Message, Sink, SinkSubscription, is_closed
from penstock.kernels.routing.subscription_index cimport AwaitedReplies, MatchResult, SubscriptionIndex

from penstock.faults import note

cdef enum:
    TEXT = -1               # a part that is text
    TAIL = -2               # a part that is the rest of the source
    ID_LEN = 6

cdef bytes INFO_NAME = b"Nats-Request-Info:"
cdef bytes INFO_HEADER = INFO_NAME + b" "
cdef bytes VERSION_LINE = b"NATS/1.0\r\n"
cdef bytes LINE_END = b"\r\n"
cdef bytes DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
cdef MatchResult NO_RECEIVERS = SubscriptionIndex().match(b"_")


cdef class Rewriter:
    """Rewrites subjects that match a source filter.

    Args: source, destination: the tokens of two filters; equal numbers stand for the same `*`.
    """

    def __cinit__(self, source, destination):
        cdef size_t i
        places = {token: k for k, token in enumerate(source) if isinstance(token, int)}
        self.out = OutBuffer()
        self.texts = []
        self.count = <size_t>len(destination)
        self.wanted = <size_t>len(source)
        self.tail = self.wanted - 1
        self.tokens = <Py_ssize_t*>array_new(self.count + 1, sizeof(Py_ssize_t), b"tokens of subjects")
        self.starts = <const char**>array_new(self.wanted + 1, sizeof(const char*), b"tokens of subjects")
        for i in range(self.count):
            token = destination[i]
            self.texts.append(None)
            if isinstance(token, int):
                self.tokens[i] = places[token]
            elif token == ">" and source[self.tail] == ">":
                self.tokens[i] = TAIL
            else:
                self.tokens[i] = TEXT
                self.texts[i] = token.encode()

    def __dealloc__(self):
        free(self.tokens)
        free(self.starts)

    def apply(self, bytes subject not None):
        """Rewrites a subject, or a filter that the source covers."""
        self.rewrite(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))
        return PyBytes_FromStringAndSize(self.out.data, <Py_ssize_t>self.out.size)

    cdef int rewrite(self, const char* subject, size_t n) except -1:
        """Writes the rewritten subject to `out`."""
        cdef const char* end = subject + n
        cdef const char* p = subject
        cdef const char* stop
        cdef size_t found = 0, i
        cdef bytes text
        while found < self.wanted:
            self.starts[found] = p
            found += 1
            p = token_end(p, end)
            if p == end:
                break
            p += 1
        self.out.clear()
        for i in range(self.count):
            if i:
                self.out.append(".", 1)
            if self.tokens[i] == TEXT:
                text = <bytes>self.texts[i]
                self.out.append(PyBytes_AS_STRING(text), <size_t>PyBytes_GET_SIZE(text))
            elif self.tokens[i] == TAIL:
                if self.tail < found:
                    self.out.append(self.starts[self.tail], <size_t>(end - self.starts[self.tail]))
            elif <size_t>self.tokens[i] < found:
                p = self.starts[self.tokens[i]]
                stop = token_end(p, end)
                self.out.append(p, <size_t>(stop - p))
        return 0


# --- routing of imported messages

cdef int hand_over(
    SinkSubscription sub, const Message* shown, const Message* inner, Sink origin
) except -1:
    """Delivers to one subscription of the other account."""
    if is_closed(sub) or isinstance(sub.sink, StreamImportSink):
        return 0
    if isinstance(sub.sink, ServiceImportSink):
        return (<ServiceImportSink>sub.sink).pass_on(sub, inner, origin, True)
    return sub.sink.deliver(sub, shown if sub.sink.shows_stored else inner, origin)


cdef int route_imported(
    SubscriptionIndex index, const Message* shown, const Message* inner, Sink origin
) except -1:
    """Delivers to the receivers of inner.subject, except stream imports; returns how many accepted it.

    shown -- the message for receivers that see the subject a message was stored with.
    """
    cdef MatchResult result = index.lookup(inner.subject, inner.subject_len)
    cdef list plain = result.plain
    cdef list groups = result.groups if result.remote is None else result.remote.local_groups
    cdef list group
    cdef Py_ssize_t i
    cdef size_t n, first, k
    cdef Views views
    cdef int taken = 0
    for i in range(len(plain)):
        taken += hand_over(<SinkSubscription>plain[i], shown, inner, origin)
    for i in range(len(groups)):
        group = <list>groups[i]
        n = <size_t>len(group)
        first = <size_t>(index.random() % n) if n > 1 else 0
        for k in range(n):
            if hand_over(<SinkSubscription>group[(first + k) % n], shown, inner, origin):
                taken += 1
                break
    if result.remote is not None:
        views.near = views.far = inner
        views.shown = shown
        taken += route_remote(index, result.remote, &views, origin)
    return taken


cdef inline bint is_ack(const char* s, size_t n) noexcept nogil:
    return n > 8 and memcmp(s, b"$JS.ACK.", 8) == 0


# --- services

cdef class RouteHook:
    """Replaces the routing step of a service import. The base class routes nowhere."""

    cdef int route(self, ServiceImportSink sink, const Message* m, Sink origin) except -1:
        return 0


cdef class ServiceImportSink(Sink):
    """Requests to a service of another account.

    Args:
        index, home: of the exporting and of the importing account; both have a ReplyTable.
        rewriter: from the importing account's subjects to the exporting one's; None = the same.
        mapper: mappings of the exporting account, or None.
        share: send the requester's details to the service?
        streamed: may a request have several replies?
        threshold_ns: how long to wait for a reply.
        describe: callable(origin, share) -> JSON of the header that identifies the requester, b"" for none.
        chain: callable(header block, origin, share) -> the same for a request that was imported before.
        measure: None, or callable(origin, header block, has a reply) -> None or a measurement, which has
            answered(origin) and ended(ReplyEnd).
        allow_trace: do traces of messages go on in the exporting account?
    """

    def __cinit__(
        self, SubscriptionIndex index not None, SubscriptionIndex home not None, *, Rewriter rewriter,
        SubjectMapper mapper, bint share, bint streamed, int64_t threshold_ns, describe, chain, measure=None,
        bint allow_trace=False,
    ):
        self.index = index
        self.home = home
        self.replies = <ReplyTable?>index.replies
        self.home_replies = <ReplyTable?>home.replies
        self.rewriter = rewriter
        self.mapper = mapper
        self.share = share
        self.streamed = streamed
        self.threshold_ns = threshold_ns
        self.describe = describe
        self.chain = chain
        self.measure = measure
        self.allow_trace = allow_trace
        self.body = OutBuffer()
        self.for_clients = True

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        try:
            return self.pass_on(sub, m, origin, False)
        except Exception as error:
            note(f"import of {ascii(sub.subject)}", error)
            return 0

    cdef int pass_on(self, SinkSubscription sub, const Message* m, Sink origin, bint chained) except -1:
        """chained: the message arrived through another import."""
        cdef Message out = m[0]
        cdef ReplySink reply = None
        cdef FastSubject fast
        cdef bytes mapped, to
        cdef int taken
        if self.busy or is_closed(sub):
            return 0
        self.busy = True
        try:
            sub.entry.delivered += 1
            if self.rewriter is not None:
                self.rewriter.rewrite(m.subject, m.subject_len)
                out.subject, out.subject_len = self.rewriter.out.data, self.rewriter.out.size
            if self.mapper is not None:
                mapped = self.mapper.map(PyBytes_FromStringAndSize(out.subject, <Py_ssize_t>out.subject_len))
                out.subject, out.subject_len = PyBytes_AS_STRING(mapped), <size_t>PyBytes_GET_SIZE(mapped)
            measurement = None
            if self.measure is not None:
                header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
                measurement = self.measure(origin, header, m.reply_len != 0)
            if m.reply_len and parse_subject(m.reply, m.reply_len, &fast):
                to = PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len)
                reply = self.replies.open_family(
                    self.home, self.home_replies, to, &fast, self.threshold_ns, measurement
                )
                to = reply.subscription.subject + to[fast.id_start - 1:]
                out.reply, out.reply_len = PyBytes_AS_STRING(to), <size_t>PyBytes_GET_SIZE(to)
            elif m.reply_len and not is_ack(m.reply, m.reply_len):
                reply = self.replies.open(
                    self.home, self.home_replies, PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len),
                    self.streamed, self.threshold_ns, measurement,
                )
                out.reply = PyBytes_AS_STRING(reply.subscription.subject)
                out.reply_len = <size_t>PyBytes_GET_SIZE(reply.subscription.subject)
            self.add_info(&out, origin, chained)
            if self.hook is None:
                taken = route_imported(self.index, &out, &out, origin)
            else:
                taken = self.hook.route(self, &out, origin)
            if reply is not None and (taken == 0 or (self.hook is not None and self.hook.only)):
                self.replies.close(reply, REPLY_UNDELIVERED if taken == 0 else REPLY_DONE)
            return taken
        finally:
            self.busy = False

    cdef bytes info(self, Sink origin):
        """The client info that the service receives, cached in the client's sink."""
        cdef ClientSink client
        if not isinstance(origin, ClientSink):
            return <bytes?>self.describe(origin, self.share)
        client = <ClientSink>origin
        if self.share:
            if client.detail is None:
                client.detail = self.describe(origin, True)
            return client.detail
        if client.brief is None:
            client.brief = self.describe(origin, False)
        return client.brief

    cdef int add_info(self, Message* m, Sink origin, bint chained) except -1:
        """Sets the header that identifies the requester. A header of that name from the client is replaced, so that
        no client can impersonate another one."""
        cdef bytes header, info
        if m.header_len == 0:
            info = self.info(origin)
            if info:
                self.put_body(m, PyBytes_AS_STRING(VERSION_LINE), <size_t>PyBytes_GET_SIZE(VERSION_LINE), info)
            return 0
        header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len)
        if not header.endswith(LINE_END):
            header = VERSION_LINE + LINE_END        # not a valid header block
        if INFO_NAME not in header:
            info = self.info(origin)
        else:
            info = <bytes?>self.chain(header, origin, self.share) if chained else self.info(origin)
            header = without_info(header)
        if info:
            self.put_body(m, PyBytes_AS_STRING(header), <size_t>PyBytes_GET_SIZE(header) - 2, info)
        return 0

    cdef int put_body(self, Message* m, const char* header, size_t header_len, bytes info) except -1:
        """header: without the empty line at its end."""
        cdef size_t payload_len = m.body_len - m.header_len
        cdef OutBuffer body = self.body
        body.clear()
        body.append(header, header_len)
        body.append(PyBytes_AS_STRING(INFO_HEADER), <size_t>PyBytes_GET_SIZE(INFO_HEADER))
        body.append(PyBytes_AS_STRING(info), <size_t>PyBytes_GET_SIZE(info))
        body.append("\r\n\r\n", 4)
        header_len = body.size
        body.append(m.body + m.header_len, payload_len)
        m.body, m.body_len, m.header_len = body.data, body.size, header_len
        return 0


cdef bytes without_info(bytes header):
    """A header block without its Nats-Request-Info lines."""
    lines = header.split(LINE_END)
    return LINE_END.join([line for line in lines if not line.startswith(INFO_NAME)])


cdef class ReplySink(Sink):
    """Forwards the replies to one request; created by a ReplyTable."""

    def __cinit__(self):
        self.shows_stored = True

    cdef bint has_interest(self) except -1:
        cdef MatchResult result = self.index.lookup(PyBytes_AS_STRING(self.to), <size_t>PyBytes_GET_SIZE(self.to))
        return len(result.plain) != 0 or len(result.groups) != 0 or result.remote is not None

    cdef SinkSubscription beyond(self, SinkSubscription sub):
        cdef MatchResult result = self.index.lookup(PyBytes_AS_STRING(self.to), <size_t>PyBytes_GET_SIZE(self.to))
        cdef SinkSubscription far
        if not result.plain:
            return None
        far = <SinkSubscription>result.plain[0]
        return far.sink.beyond(far)

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef Message shown = m[0]
        cdef Message inner
        cdef ReplySink back = None
        cdef bytes own = self.subscription.subject
        cdef bytes to = self.to         # keeps what inner.subject points at
        cdef int taken
        cdef size_t own_len
        cdef bint is_own
        if is_closed(sub):
            return 0
        sub.entry.delivered += 1
        if m.reply_len and not is_ack(m.reply, m.reply_len):
            back = self.asking.open(
                self.table.index, self.table, PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len),
                self.streamed, self.threshold_ns, None,
            )
            shown.reply = PyBytes_AS_STRING(back.subscription.subject)
            shown.reply_len = <size_t>PyBytes_GET_SIZE(back.subscription.subject)
        inner = shown
        own_len = <size_t>PyBytes_GET_SIZE(own)
        is_own = m.subject_len >= own_len and memcmp(m.subject, PyBytes_AS_STRING(own), own_len) == 0
        if self.family is None:
            is_own = is_own and m.subject_len == own_len
        elif is_own:
            # A reply to one message of the batch: everything after the prefix is copied.
            to = self.family[:self.prefix_len] + m.subject[own_len:m.subject_len]
        inner.subject, inner.subject_len = PyBytes_AS_STRING(to), <size_t>PyBytes_GET_SIZE(to)
        if is_own:
            shown.subject, shown.subject_len = inner.subject, inner.subject_len
        if self.measurement is not None:
            measurement, self.measurement = self.measurement, None
            try:
                measurement.answered(origin)
            except Exception as error:
                note("measurement of a service", error)
        taken = route_imported(self.index, &shown, &inner, origin)
        if taken == 0 and back is not None:
            self.asking.close(back, REPLY_UNDELIVERED)
        if taken == 0:
            self.table.close(self, REPLY_UNDELIVERED)
        elif not self.streamed or m.body_len == 0:
            self.table.close(self, REPLY_DONE)
        else:
            self.at = <int64_t>self.table.clock()
        return taken


cdef class ReplyTable(AwaitedReplies):
    """The open requests to an account's services.

    Args: index: of the account; clock: ns since 1970; seed: 64 bits, for unpredictable subjects.
    """

    def __cinit__(self, SubscriptionIndex index not None, clock, uint64_t seed):
        self.index = index
        self.clock = clock
        self.waiting = {}
        self.families = {}
        self.asked = {}
        self.random_state = seed or 1
        self.prefix = b"_R_."
        self.prefix = self.new_subject() + b"."

    def __len__(self):
        return len(self.waiting)

    def sinks(self):
        """All open requests, oldest first."""
        return list(self.waiting.values())

    cdef bytes new_subject(self):
        cdef char text[ID_LEN]
        cdef uint64_t x = self.random_state
        cdef int i
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self.random_state = x
        x = x * <uint64_t>0x2545F4914F6CDD1D >> 16
        for i in range(ID_LEN):
            text[i] = PyBytes_AS_STRING(DIGITS)[x % 62]
            x //= 62
        return self.prefix + PyBytes_FromStringAndSize(text, ID_LEN)

    cdef ReplySink open(
        self, SubscriptionIndex index, ReplyTable asking, bytes to, bint streamed, int64_t threshold_ns,
        object measurement,
    ):
        """Opens a request whose replies go to `to` in the account of `index`, whose table is `asking`."""
        cdef ReplySink sink = ReplySink.__new__(ReplySink)
        cdef bytes subject = self.new_subject()
        while subject in self.waiting:
            subject = self.new_subject()
        sink.index = index
        sink.asking = asking
        sink.table = self
        sink.to = to
        sink.streamed = streamed
        sink.threshold_ns = threshold_ns
        sink.measurement = measurement
        sink.at = <int64_t>self.clock()
        sink.subscription = SinkSubscription(sink, subject)
        sink.match = MatchResult.__new__(MatchResult)
        sink.match.plain = [sink.subscription]
        sink.match.groups = []
        self.waiting[subject] = sink
        asking.note_asked(sink)
        if len(self.waiting) == 1 and self.on_first is not None:
            self.on_first()
        return sink

    cdef ReplySink open_family(
        self, SubscriptionIndex index, ReplyTable asking, bytes to, const FastSubject* fast,
        int64_t threshold_ns, object measurement,
    ):
        """Opens the request of the fast batch that `to` belongs to. All messages of a batch share one sink, so that
        the stream sees one prefix for the batch."""
        cdef bytes family = to[:fast.key_len]
        cdef ReplySink sink = self.families.get((index, family))
        if sink is not None:
            sink.at = <int64_t>self.clock()
            return sink
        sink = self.open(index, asking, to, True, threshold_ns, measurement)
        sink.family = family
        sink.prefix_len = fast.id_start - 1
        self.families[(index, family)] = sink
        return sink

    cpdef int close(self, ReplySink sink, int why) except -1:
        """Closes a request: later replies are dropped. why: a ReplyEnd."""
        if is_closed(sink.subscription):
            return 0
        sink.subscription.mark(SUBSCRIPTION_CLOSED, True)
        self.waiting.pop(sink.subscription.subject, None)
        if sink.family is not None:
            self.families.pop((sink.index, sink.family), None)
        sink.asking.forget_asked(sink)
        sink.match = NO_RECEIVERS
        if sink.measurement is not None:
            measurement, sink.measurement = sink.measurement, None
            measurement.ended(why)
        return 0

    def expire(self, int64_t now):
        """Closes requests past their threshold; returns how many stay open."""
        cdef ReplySink sink
        for sink in list(self.waiting.values()):
            if now - sink.at >= sink.threshold_ns:
                self.close(sink, REPLY_EXPIRED)
        return len(self.waiting)

    cdef int note_asked(self, ReplySink sink) except -1:
        known = self.asked.get(sink.to)
        if known is None:
            self.asked[sink.to] = sink
        elif isinstance(known, dict):
            known[sink] = None
        else:
            self.asked[sink.to] = {known: None, sink: None}
        return 0

    cdef int forget_asked(self, ReplySink sink) except -1:
        known = self.asked.get(sink.to)
        if known is sink:
            del self.asked[sink.to]
        elif isinstance(known, dict):
            del known[sink]
            if not known:
                del self.asked[sink.to]
        return 0

    cdef int unsubscribed(self, const char* f, size_t n) except -1:
        cdef bytes to
        if not self.asked:
            return 0
        if not has_wildcard(f, n):
            to = PyBytes_FromStringAndSize(f, <Py_ssize_t>n)
            return self.end_unwanted(to) if to in self.asked else 0
        for to in list(self.asked):
            if filter_matches(f, n, PyBytes_AS_STRING(to), <size_t>PyBytes_GET_SIZE(to)):
                self.end_unwanted(to)
        return 0

    cdef int end_unwanted(self, bytes to) except -1:
        """Closes the requests with this reply subject, unless another subscription still matches it."""
        cdef MatchResult result = self.index.lookup(PyBytes_AS_STRING(to), <size_t>PyBytes_GET_SIZE(to))
        cdef ReplySink sink
        if result.plain or result.groups or result.remote is not None:
            return 0
        known = self.asked.get(to)
        for sink in list(known) if isinstance(known, dict) else [known]:
            sink.table.close(sink, REPLY_UNWANTED)
        return 0

    cdef MatchResult find(self, const char* subject, size_t n):
        cdef ReplySink sink = self._waiting_for(subject, n)
        return None if sink is None else sink.match

    cdef MatchResult find_wanted(self, const char* subject, size_t n):
        cdef ReplySink sink
        if not starts_with(subject, n, PyBytes_AS_STRING(self.prefix), <size_t>PyBytes_GET_SIZE(self.prefix)):
            return None
        sink = self._waiting_for(subject, n)
        if sink is None or not sink.has_interest():
            return NO_RECEIVERS
        return sink.match

    cdef ReplySink _waiting_for(self, const char* subject, size_t n):
        cdef FastSubject fast
        sink = self.waiting.get(PyBytes_FromStringAndSize(subject, <Py_ssize_t>n))
        if sink is None and parse_subject(subject, n, &fast):
            sink = self.waiting.get(PyBytes_FromStringAndSize(subject, <Py_ssize_t>(fast.id_start - 1)))
        return sink


# --- streams

cdef bint is_renamed(StreamImportSink stream_import, SinkSubscription sub, const Message* m) noexcept:
    # A message from a consumer keeps the subject it was stored with, which the import's filter does not match.
    return stream_import.rewriter is not None and filter_matches(
        PyBytes_AS_STRING(sub.subject), <size_t>PyBytes_GET_SIZE(sub.subject), m.subject, m.subject_len
    )


cdef bytes local_name(StreamImportSink stream_import, SinkSubscription sub, const Message* m):
    if not is_renamed(stream_import, sub, m):
        return PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
    stream_import.rewriter.rewrite(m.subject, m.subject_len)
    return PyBytes_FromStringAndSize(stream_import.rewriter.out.data, <Py_ssize_t>stream_import.rewriter.out.size)


cdef class StreamImportSink(Sink):
    """Delivers messages of this account to a subscription of another account.

    Args: target: the subscription; rewriter: from this account's subjects to the other's, None = the same;
        allow_trace: do traces of messages go on in the other account?
    """

    def __cinit__(self, SinkSubscription target not None, Rewriter rewriter, bint allow_trace=False):
        self.target = target
        self.allow_trace = allow_trace
        self.rewriter = rewriter
        self.shows_stored = target.sink.shows_stored

    cdef SinkSubscription beyond(self, SinkSubscription sub):
        return self.target.sink.beyond(self.target)

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef Message local
        cdef SinkSubscription target = self.target
        if is_closed(sub) or is_closed(target):
            return 0
        if not is_renamed(self, sub, m):
            return target.sink.deliver(target, m, origin)
        local = m[0]
        self.rewriter.rewrite(m.subject, m.subject_len)
        local.subject, local.subject_len = self.rewriter.out.data, self.rewriter.out.size
        return target.sink.deliver(target, &local, origin)
