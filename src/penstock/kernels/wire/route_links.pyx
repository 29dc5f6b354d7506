# cython: auto_pickle=False
"""Messages and interest between servers: the compiled half of a route.

A route carries messages of accounts in both directions, and the interest that draws them: each server announces the
subscriptions of its own clients and leaf nodes, and only those. A message that came over a route goes to local
receivers and leaf nodes, never to another server of the cluster, so that no message travels in a circle and none
arrives twice (one hop). Where a message goes from any other server is in `takes_from` of the receiver.

Out: RouteTarget is the sink of the remote subscriptions of one account of one server. Routing sends it each message
once, with the queue groups it chose there (dispatch.route_remote), and RouteTarget encodes the message into the
connection's buffer. In: RouteIngress takes messages to local receivers, and interest to the account's index, without
a Python object for a message.

Bounds: a server that reads slowly must cost neither memory without end nor other connections. Publishers are paused
while its backlog is large, as for a slow client, but never for long; above `pending_max` its messages are dropped and
counted. Interest is never dropped: a server with wrong interest would lose messages for ever. When there is no room
for it, the connection ends, and the next one announces all interest again.

Invariant: RouteTarget.subs are in the index of the account.

Rejected: Python callables for every line of interest (a server with 100,000 subscriptions that joins would stop all
others for as long as they take).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.routing.subscription_index cimport MatchResult, SharedGroup, SubscriptionIndex
from penstock.kernels.wire.dispatch cimport ClientSink, Views, choose_member, route_to_member
from penstock.kernels.wire.frames cimport OP_NEED_MORE, FrameParser, Span
from penstock.kernels.wire.ingress cimport Ingress, asks_for_trace
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.wire.route_frames cimport (
    ROUTE_ACCOUNT, ROUTE_MSG, ROUTE_SUB, ROUTE_UNSUB, RouteFrame, RouteParser,
)
from penstock.kernels.wire.sinks cimport (
    PEER_GATEWAY, PEER_LEAF, PEER_ROUTE, SUBSCRIPTION_CLOSED, SUBSCRIPTION_PRIVATE, SUBSCRIPTION_REMOTE, DirtyList,
    Message, PeerSink, RemoteSubscription, Sink, SinkSubscription, SubscriptionEntry, is_closed,
)

from penstock.faults import note as note_fault

cdef enum:
    LINE_SLACK = 64             # verb, blanks, sizes, line ends of a frame
    CLOCK_CHECK_MESSAGES = 32   # messages and lines of interest between two reads of the clock
    INTEREST_FACTOR = 2         # interest may exceed pending_max this many times before the connection ends

cdef bytes NO_WORD = b""
cdef bytes NAMELESS = b"_"      # the origin of leaf nodes without a cluster


# --- out

cdef class RouteSink(ClientSink):
    """The output half of a route. pending_max -- bytes in `out` above which messages are dropped; 0 = no bound."""

    def __cinit__(self, DirtyList dirty_list not None, owner=None):
        self.targets = {}
        self.peer = PEER_ROUTE
        self.cluster = b""

    def __init__(self, dirty_list, owner=None):
        self.headers = True

    def report_drops(self, on_dropped):
        """Calls on_dropped() at the first message that is dropped, and again after take_dropped()."""
        self.on_dropped = on_dropped

    def accept_headers(self, bint headers):
        """Does the server take headers? They are cut off otherwise."""
        self.headers = headers

    def accept_origins(self, bint names_origins):
        """Does the server take the origin of messages and interest of leaf nodes?"""
        self.names_origins = names_origins

    def accept_traces(self, bint traces):
        """Does the server report the steps of messages that ask for it?"""
        self.traces = traces

    def take_dropped(self):
        """(messages, bytes) dropped so far; on_dropped() is called again for the next one."""
        self.has_reported = False
        return self.dropped_msgs, self.dropped_bytes

    cdef bint has_room(self, size_t n, Sink origin) except -1:
        """Is there room for a message of n bytes? Counts one that is dropped."""
        if not self.pending_max or self.out.size + n <= self.pending_max or not self.out.size:
            return True
        self.dropped_msgs += 1
        self.dropped_bytes += n
        if isinstance(origin, ClientSink):
            (<ClientSink>origin).fed_slow = True
        if not self.has_reported and self.on_dropped is not None:
            self.has_reported = True
            try:
                self.on_dropped()
            except Exception as error:
                note_fault("report of dropped messages of a route", error)
        return False

    cdef int sent(self, size_t body_len, Sink origin) except -1:
        self.out_msgs += 1
        self.out_bytes += body_len
        if not self.is_dirty:
            self.mark_dirty()
        if self.out.size > self.stall_threshold and isinstance(origin, ClientSink):
            (<ClientSink>origin).fed_slow = True
        return 0

    cdef int put_line(self, const char* verb, bytes word, bytes key, uint64_t weight) except -1:
        """A line of interest; verb: four bytes with their blank; weight 0 = none."""
        cdef size_t word_len = <size_t>PyBytes_GET_SIZE(word)
        cdef size_t key_len = <size_t>PyBytes_GET_SIZE(key)
        cdef char* d
        if self.closed:
            return 0
        d = self.out.reserve(word_len + key_len + LINE_SLACK)
        memcpy(d, verb, 4)
        d += 4
        memcpy(d, PyBytes_AS_STRING(word), word_len)
        d += word_len
        memcpy(d, PyBytes_AS_STRING(key), key_len)
        d += key_len
        if weight:
            d[0] = c' '
            d += 1
            d += put_uint(d, weight)
        memcpy(d, b"\r\n", 2)
        self.out.size = <size_t>(d + 2 - self.out.data)
        if self.pending_max and self.out.size > self.pending_max * INTEREST_FACTOR:
            self.closed = self.overflowed = True
        if not self.is_dirty:
            self.mark_dirty()
        return 0

    cdef RouteTarget target_of(self, bytes account, SubscriptionIndex index, bytes word):
        cdef RouteTarget target = self.targets.get(account)
        if target is not None and target.index is index:
            return target
        if target is not None:
            target.clear()              # the account was removed and made again
        target = self.new_target()
        target.link = self
        target.account = account
        target.word = word
        target.index = index
        target.queues = OutBuffer()
        target.subs = {}
        self.targets[account] = target
        return target

    cdef RouteTarget new_target(self):
        return RouteTarget.__new__(RouteTarget)

    def move_interest(self, bytes account not None, SubscriptionIndex index not None):
        """Keeps the server's interest in this account in another index from now on."""
        cdef RouteTarget target = self.targets.get(account)
        if target is not None:
            target.move(index)

    def forget(self, bytes account not None):
        """Removes the server's interest in this account."""
        cdef RouteTarget target = self.targets.pop(account, None)
        if target is not None:
            target.clear()

    def forget_all(self):
        """Removes the server's interest in all accounts."""
        for account in list(self.targets):
            self.forget(account)

    def keep(self, may_export):
        """Removes the server's interest in subjects that may_export() refuses."""
        cdef RouteTarget target
        cdef RemoteSubscription sub
        for target in self.targets.values():
            for key, sub in list(target.subs.items()):
                if not may_export(sub.subject):
                    target.drop(key)

    def interest(self):
        """[(account, subject, queue, weight), ...] of the server's subscriptions."""
        cdef RouteTarget target
        cdef RemoteSubscription sub
        found = []
        for target in self.targets.values():
            for sub in target.subs.values():
                found.append((target.account, sub.subject, sub.queue, sub.weight, sub.delivered))
        return found

    @property
    def num_interest(self):
        """Number of the server's subscriptions."""
        cdef RouteTarget target
        cdef Py_ssize_t n = 0
        for target in self.targets.values():
            n += len(target.subs)
        return n


cdef bytes cluster_named(const Span* origin):
    if origin.n == 1 and origin.p[0] == c'_':
        return NO_WORD
    return PyBytes_FromStringAndSize(origin.p, <Py_ssize_t>origin.n)


cdef class RouteTarget(PeerSink):
    """One account of another server; made by a RouteSink."""

    def __cinit__(self):
        self.verb = b"RMSG "

    cdef int choose(self, bytes queue) except -1:
        self.queues.append(b" ", 1)
        self.queues.append(PyBytes_AS_STRING(queue), <size_t>PyBytes_GET_SIZE(queue))
        return 0

    cdef bint takes_from(self, Sink source, RemoteSubscription sub) except -1:
        cdef RouteSink link
        if not isinstance(source, RouteSink):
            return True
        link = <RouteSink>source
        if link.peer == PEER_GATEWAY:
            return True
        if link.peer != PEER_LEAF:
            # Those of a hub stay here, too: every server of the cluster has a link to it, and gets them itself.
            return False
        return sub is None or not sub.cluster or sub.cluster != link.cluster or link.home is not self.index

    cdef Sink connection(self):
        return self.link

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        """For a subscription that is the target of a stream import: a message with another subject."""
        if is_closed(sub) or not self.takes_from(origin, None):
            return 0
        if sub.queue:
            self.choose(sub.queue)
        return self.send(m, origin, not sub.queue)

    cdef int deliver_to(self, SubscriptionEntry* entry, const Message* m, Sink origin) except -1:
        if not self.takes_from(origin, None) or not self.send(m, origin, True):
            return 0
        entry.delivered += 1
        return 1

    cdef int send(self, const Message* m, Sink origin, bint plain) except -1:
        cdef RouteSink link = self.link
        cdef Message renamed
        cdef bytes routed = self.routed_of(m) if self.routed else None
        cdef bytes name = None
        if not plain and not self.queues.size:
            return 0
        if m.reply_len and link.routed_replies is not None and not is_routed(m.reply, m.reply_len):
            name = link.routed_replies.name_of(self.index, m)
        if routed is not None or name is not None:
            renamed = m[0]
            if routed is not None:
                renamed.subject, renamed.subject_len = PyBytes_AS_STRING(routed), <size_t>PyBytes_GET_SIZE(routed)
            if name is not None:
                renamed.reply, renamed.reply_len = PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name)
            m = &renamed
        if link.closed:
            self.queues.clear()
            return 0
        if link.has_room(
            m.body_len + m.subject_len + m.reply_len + self.queues.size + <size_t>PyBytes_GET_SIZE(self.word)
            + LINE_SLACK, origin,
        ):
            self.encode(m, self.cluster_of(origin))
            link.sent(m.body_len, origin)
        if self.queues.size:
            self.queues.clear()
        return 1

    cdef bytes routed_of(self, const Message* m):
        """The routed reply that this message answers, or None."""
        if not self.routed:
            return None
        known = self.routed.get(PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len))
        return None if known is None else <bytes>known[1]

    cdef int expect_answer(self, bytes subject, bytes routed) except -1:
        """Sends messages with this subject as `routed`, although the server has not announced interest."""
        cdef RemoteSubscription sub
        if self.routed is None:
            self.routed = {}
        known = self.routed.get(subject)
        if known is not None:
            self.routed[subject] = (known[0], routed)
            return 0
        sub = RemoteSubscription(self, subject)
        sub.mark(SUBSCRIPTION_PRIVATE, True)
        self.index.insert(sub)
        self.routed[subject] = (sub, routed)
        return 0

    cdef int forget_answer(self, bytes subject) except -1:
        cdef RemoteSubscription sub
        known = None if self.routed is None else self.routed.pop(subject, None)
        if known is not None:
            sub = <RemoteSubscription>known[0]
            sub.mark(SUBSCRIPTION_CLOSED, True)
            self.index.remove(sub)
        return 0

    cdef bytes cluster_of(self, Sink origin):
        """The leaf node cluster that a message comes from, and must not go back to; b"" = none."""
        cdef RouteSink source
        if not self.link.names_origins or not isinstance(origin, RouteSink):
            return NO_WORD
        source = <RouteSink>origin
        return source.cluster if source.peer == PEER_LEAF and source.home is self.index else NO_WORD

    cdef int encode(self, const Message* m, bytes origin) except -1:
        """origin: the leaf node cluster that the frame names; b"" = none."""
        cdef OutBuffer out = self.link.out
        cdef size_t word_len = <size_t>PyBytes_GET_SIZE(self.word)
        cdef size_t origin_len = <size_t>PyBytes_GET_SIZE(origin)
        cdef const char* body = m.body
        cdef size_t header_len = m.header_len
        cdef size_t body_len = m.body_len
        cdef char* d
        if header_len and not self.link.headers:
            body += header_len
            body_len -= header_len
            header_len = 0
        d = out.reserve(
            origin_len + word_len + m.subject_len + m.reply_len + self.queues.size + body_len + LINE_SLACK
        )
        if origin_len:
            memcpy(d, b"LMSG ", 5)
            memcpy(d + 5, PyBytes_AS_STRING(origin), origin_len)
            d += origin_len
            d[5] = c' '
            d += 1
        elif header_len:
            memcpy(d, b"HMSG ", 5)
        else:
            memcpy(d, self.verb, 5)
        d += 5
        memcpy(d, PyBytes_AS_STRING(self.word), word_len)
        d += word_len
        memcpy(d, m.subject, m.subject_len)
        d += m.subject_len
        if self.queues.size:
            memcpy(d, b" + " if m.reply_len else b" |", 3)
            d += 3 if m.reply_len else 2
        elif m.reply_len:
            d[0] = c' '
            d += 1
        if m.reply_len:
            memcpy(d, m.reply, m.reply_len)
            d += m.reply_len
        if self.queues.size:
            memcpy(d, self.queues.data, self.queues.size)
            d += self.queues.size
        d[0] = c' '
        d += 1
        if header_len or origin_len:
            d += put_uint(d, header_len)
            d[0] = c' '
            d += 1
        d += put_uint(d, body_len)
        memcpy(d, b"\r\n", 2)
        d += 2
        memcpy(d, body, body_len)
        d += body_len
        memcpy(d, b"\r\n", 2)
        out.size = <size_t>(d + 2 - out.data)
        return 0

    cdef int add(self, const RouteFrame* f, bytes key, bytes subject, bytes queue) except -1:
        cdef RemoteSubscription sub = self.subs.get(key)
        cdef int64_t delta
        if sub is not None:
            delta = <int64_t>f.weight - <int64_t>sub.weight
            sub.weight = f.weight
            if delta and self.index.announcer is not None:
                self.index.announcer.reweighed(sub, delta)
            return 0
        sub = RemoteSubscription(self, subject, queue)
        sub.weight = f.weight
        if f.is_leaf:
            sub.speak_for(cluster_named(&f.origin))
        elif self.link.peer == PEER_GATEWAY:
            sub.speak_for_cluster()
        elif self.link.peer != PEER_ROUTE:
            sub.speak_for(self.link.cluster)
        self.index.insert(sub)
        self.subs[key] = sub
        return 0

    cdef int drop(self, bytes key) except -1:
        cdef RemoteSubscription sub = self.subs.pop(key, None)
        if sub is not None:
            sub.mark(SUBSCRIPTION_CLOSED, True)
            self.index.remove(sub)
        return 0

    cdef int move(self, SubscriptionIndex index) except -1:
        """The account is another one of the same name. Answers that are expected belong to the one before."""
        cdef RemoteSubscription sub
        for subject in list(self.routed or ()):
            self.forget_answer(subject)
        for sub in self.subs.values():
            self.index.remove(sub)
            index.insert(sub)
        self.index = index
        return 0

    def clear(self):
        """Removes all subscriptions of the server in this account."""
        for key in list(self.subs):
            self.drop(key)
        for subject in list(self.routed or ()):
            self.forget_answer(subject)


# --- in

cdef Span cut_stored(const char* p, size_t n) noexcept:
    """The subject that a JetStream message was stored with, which follows `@` in its ack reply; empty for others.

    A consumer's delivery travels between servers under its deliver subject; the receiver gets the stored one.
    """
    cdef Span stored
    cdef const char* end = p + n
    cdef int dots = 0
    stored.p, stored.n = NULL, 0
    if n < 9 or memcmp(p, b"$JS.ACK.", 8) != 0:
        return stored
    while p < end:
        if p[0] == c'.':
            dots += 1
        elif p[0] == c'@' and dots >= 8:
            stored.p = p + 1
            stored.n = <size_t>(end - p - 1)
            return stored
        p += 1
    return stored


cdef list group_named(MatchResult result, const char* name, size_t n):
    """The members of this server in the queue group, or None."""
    cdef list group
    cdef SinkSubscription first
    for group in result.groups:
        first = <SinkSubscription>group[0]
        if <size_t>PyBytes_GET_SIZE(first.queue) == n and memcmp(PyBytes_AS_STRING(first.queue), name, n) == 0:
            return group
    return None


cdef SharedGroup shared_named(MatchResult result, const char* name, size_t n):
    """The queue group with members on other servers, or None."""
    cdef SharedGroup group
    if result.remote is None:
        return None
    for group in result.remote.shared:
        if <size_t>PyBytes_GET_SIZE(group.queue) == n and memcmp(PyBytes_AS_STRING(group.queue), name, n) == 0:
            return group
    return None


cdef bint is_own(SharedGroup group, RouteSink source) except -1:
    """Has the group no members in other clusters, nor in the leaf node cluster that a message comes from? A
    server that has some and answers knows the group, and has chosen."""
    cdef RemoteSubscription sub
    if group is not None:
        for sub in group.remote:
            if (sub.for_cluster or source.cluster and sub.cluster == source.cluster) and not is_closed(sub):
                return False
    return True


cdef int deliver_local(SinkSubscription sub, const Views* views, RouteSink source) except -1:
    cdef Sink sink = sub.sink
    if is_closed(sub) or (sink.for_clients and is_served(source)):
        return 0
    return sink.deliver(sub, views.shown if sink.shows_stored else views.near, origin_of(source))


cdef int route_single(SubscriptionEntry* single, const Views* views, RouteSink source) except -1:
    cdef Sink sink = <Sink>single.receiver
    if single.flags & SUBSCRIPTION_CLOSED:
        return 0
    if single.flags & SUBSCRIPTION_REMOTE:
        if not (<PeerSink>sink).takes_from(source, None):
            return 0
        return (<PeerSink>sink).send(views.far, origin_of(source), True)
    if sink.for_clients and is_served(source):
        return 0
    return sink.deliver_to(single, views.near, origin_of(source))


cdef int route_named(
    SubscriptionIndex index, MatchResult result, const char* name, size_t n, const Views* views, RouteSink source,
    list chosen,
) except -1:
    """Delivers to a member of one queue group, or adds the server of the chosen member to `chosen`."""
    cdef SharedGroup shared = shared_named(result, name, n)
    cdef RemoteSubscription sub
    cdef list group
    cdef int taken = 0
    if shared is not None:
        sub = choose_member(index, shared, views, origin_of(source), source, &taken)
        if sub is not None:
            chosen.append(sub)
        return taken
    group = group_named(result, name, n)
    if group is None:
        return 0
    return route_to_member(
        group, <size_t>(index.random() % <size_t>len(group)) if len(group) > 1 else 0, views, origin_of(source)
    )


cdef list all_names(MatchResult result):
    """The queue groups of a subject."""
    cdef dict names = {}
    cdef SharedGroup shared
    for group in result.groups:
        names[(<SinkSubscription>(<list>group)[0]).queue] = None
    if result.remote is not None:
        for shared in result.remote.shared:
            names[shared.queue] = None
    return list(names)


cdef int route_from_peer(
    SubscriptionIndex index, const Views* views, const Span* queues, GroupChoice choice, RouteSink source
) except -1:
    """Delivers a message of another server: to all receivers without a queue group that take messages from there, and
    to a member of each group that the other server chose here. Returns how many accepted it.
    """
    cdef Lookup lookup
    cdef SubscriptionEntry* single = NULL
    cdef MatchResult result
    cdef RemoteSubscription sub
    cdef PeerSink target
    cdef list chosen = []
    cdef const char* p = queues.p
    cdef const char* end = p + queues.n
    cdef const char* name
    cdef bytes queue
    cdef Py_ssize_t i
    cdef int taken = 0
    lookup.subject, lookup.n, lookup.index = views.near.subject, views.near.subject_len, NULL
    result = index.lookup_or_single(&lookup, &single if views.shown is views.near else NULL)
    if single != NULL:
        return route_single(single, views, source)
    for i in range(len(result.plain)):
        taken += deliver_local(<SinkSubscription>result.plain[i], views, source)
    if choice == GROUPS_ALL or choice == GROUPS_OWN:
        for queue in all_names(result):
            if choice == GROUPS_ALL or is_own(
                shared_named(result, PyBytes_AS_STRING(queue), <size_t>PyBytes_GET_SIZE(queue)), source
            ):
                taken += route_named(
                    index, result, PyBytes_AS_STRING(queue), <size_t>PyBytes_GET_SIZE(queue), views, source, chosen
                )
        if choice == GROUPS_ALL:
            p = end
    while p < end:
        while p < end and (p[0] == c' ' or p[0] == c'\t'):
            p += 1
        name = p
        while p < end and p[0] != c' ' and p[0] != c'\t':
            p += 1
        if p > name and (choice != GROUPS_OWN or not is_own(shared_named(result, name, <size_t>(p - name)), source)):
            taken += route_named(index, result, name, <size_t>(p - name), views, source, chosen)
    if result.remote is None:
        return taken
    for sub in chosen:
        (<PeerSink>sub.sink).choose(sub.queue)
    for i in range(len(result.remote.targets)):
        target = <PeerSink>result.remote.targets[i]
        if target.takes_from(source, None):
            taken += target.send(views.far, origin_of(source), i < result.remote.plain_count)
    return taken


cdef class RoutedReplies:
    """What a server knows of replies that gateways have routed; the base class knows none."""

    cdef int note(self, RouteIngress ingress, SubscriptionIndex index, const char* reply, size_t n) except -1:
        return 0

    cdef int answer(self, RouteIngress ingress, SubscriptionIndex index, const RouteFrame* f) except -1:
        return 0

    cdef int expect(self, RouteIngress ingress, SubscriptionIndex index, const char* routed) except -1:
        return 0

    cdef bint is_here(self, const char* routed) noexcept:
        return False

    cdef bytes name_of(self, SubscriptionIndex index, const Message* m):
        return None


cdef class RouteIngress(Ingress):
    """The input half of a route.

    open_account -- callable(name) -> its index, None for an unknown account.
    may_export -- callable(subject): is the other server's interest in it accepted? None = all is.
    """

    def __cinit__(self, ClientSink sink not None, SubscriptionIndex index=None, FrameParser parser=None):
        if not isinstance(sink, RouteSink) or not isinstance(parser, RouteParser):
            raise TypeError("a RouteIngress takes a RouteSink and a RouteParser")
        self.frames = <RouteParser>parser

    def serve(self, open_account):
        """Finds the accounts of frames with open_account."""
        self.open_account = open_account

    def report_traces(self, on_traced, bint trace_parent):
        """Gives messages that ask for a trace to on_traced(index, subject, reply, header, payload, queues), where
        queues are the groups that the other server chose, None for all. It returns the number of receivers, or None
        if the message is to be routed as it is, or the header with which it is.

        trace_parent: does a `traceparent` header ask for a trace?
        """
        self.on_traced, self.trace_parent = on_traced, trace_parent

    def note_replies(self, RoutedReplies replies):
        """Gives routed replies to local receivers without their prefix, and sends the answers with it, as well as
        what they pass on with such a reply."""
        self.replies = (<RouteSink>self.sink).routed_replies = replies

    def limit_exports(self, may_export):
        """Accepts interest in these subjects, and removes what was accepted before; None = in all."""
        self.may_export = may_export
        if may_export is not None:
            (<RouteSink>self.sink).keep(may_export)

    def forget_accounts(self):
        """Looks all accounts up again: some were removed or made."""
        self.last_account = None
        self.last_index = None

    cdef SubscriptionIndex find_account(self, const Span* name):
        cdef bytes account
        if not name.n:
            account = self.frames.account
            if self.last_account is account:
                return self.last_index
        else:
            if (
                self.last_account is not None and <size_t>PyBytes_GET_SIZE(self.last_account) == name.n
                and memcmp(PyBytes_AS_STRING(self.last_account), name.p, name.n) == 0
            ):
                return self.last_index
            account = PyBytes_FromStringAndSize(name.p, <Py_ssize_t>name.n)
        self.last_index = self.open_account(account)
        self.last_account = account
        if self.last_index is None:
            self.last_account = None    # it may be made at any time
        return self.last_index

    cdef int run(self) except -1:
        cdef RouteFrame* f = &self.route_frame
        cdef int op
        cdef int unchecked = 0 if self.fresh else CLOCK_CHECK_MESSAGES
        self.fresh = False
        while not self.sink.closed:
            if unchecked >= CLOCK_CHECK_MESSAGES:
                if self.is_over():
                    break
                unchecked = 0
            op = self.frames.next_route(f)
            if op == OP_NEED_MORE:
                return op
            if op < ROUTE_SUB:
                self.frame = f.plain
                self.frame.op = op
                self.has_frame = True
                self.frame_epoch = self.frames.epoch
                return op
            try:
                if op == ROUTE_MSG:
                    unchecked += 1 + self.take_message(f)
                elif op >= ROUTE_ACCOUNT:
                    unchecked += 1
                    self.take_account(f)
                else:
                    unchecked += 1
                    self.take_interest(f)
            except Exception as error:
                note_fault("frame of a route", error)
        return OP_NEED_MORE

    cdef int take_message(self, const RouteFrame* f) except -1:
        cdef SubscriptionIndex index
        cdef RouteSink sink = <RouteSink>self.sink
        self.sink.in_msgs += 1
        self.sink.in_bytes += f.plain.body_len
        index = self.find_account(&f.account)
        if index is None:
            self.unknown += 1
            return 0
        if f.is_leaf:
            sink.cluster = cluster_named(&f.origin)
        elif sink.cluster:
            sink.cluster = NO_WORD
        if self.replies is not None and is_routed(f.plain.subject, f.plain.subject_len):
            return self.replies.answer(self, index, f)
        return self.route(index, f, f.plain.subject, f.plain.subject_len, GROUPS_NAMED)

    cdef int take_account(self, const RouteFrame* f) except -1:
        """Only gateways send these frames."""
        return 0

    cdef int route(
        self, SubscriptionIndex index, const RouteFrame* f, const char* subject, size_t n, GroupChoice choice
    ) except -1:
        """Delivers the message of a frame, under this subject."""
        cdef Message far
        cdef Message near
        cdef Message shown
        cdef Views views
        cdef Span stored
        far.subject, far.subject_len = subject, n
        far.reply, far.reply_len = f.plain.reply, f.plain.reply_len
        far.body, far.body_len, far.header_len = f.plain.body, f.plain.body_len, f.plain.header_len
        views.near = views.shown = views.far = &far
        if not far.reply_len:
            return self.route_on(index, &views, &f.queues, choice)
        near = far
        if self.replies is not None and is_routed(far.reply, far.reply_len):
            near.reply += ROUTED_LEN
            near.reply_len -= ROUTED_LEN
            views.near = views.shown = &near
        stored = cut_stored(near.reply, near.reply_len)
        if stored.n:
            near.reply_len -= stored.n + 1
            shown = near
            shown.subject, shown.subject_len = stored.p, stored.n
            views.near, views.shown = &near, &shown
        if near.reply != far.reply:
            self.replies.note(self, index, far.reply, ROUTED_LEN + near.reply_len)
        return self.route_on(index, &views, &f.queues, choice)

    cdef int route_on(
        self, SubscriptionIndex index, const Views* views, const Span* queues, GroupChoice choice
    ) except -1:
        """Routes a message, with a trace if it asks for one. An answer under a routed name and the delivery of a
        consumer are not traced."""
        cdef const Message* m = views.near
        cdef Message changed
        cdef Views other
        cdef bytes body
        if (
            not m.header_len or self.on_traced is None or choice >= GROUPS_OWN or views.shown is not m
            or not asks_for_trace(m, self.trace_parent)
        ):
            return route_from_peer(index, views, queues, choice, <RouteSink>self.sink)
        found = self.on_traced(
            index, PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len),
            PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
            PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len),
            PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len)),
            None if choice == GROUPS_ALL else (
                frozenset(PyBytes_FromStringAndSize(queues.p, <Py_ssize_t>queues.n).split()) if queues.n
                else frozenset()
            ),
        )
        if found is None:
            return route_from_peer(index, views, queues, choice, <RouteSink>self.sink)
        if not isinstance(found, bytes):
            return <int?>found
        changed = m[0]
        body = <bytes>found + PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len))
        changed.body, changed.body_len = PyBytes_AS_STRING(body), <size_t>PyBytes_GET_SIZE(body)
        changed.header_len = <size_t>PyBytes_GET_SIZE(found)
        other.near = other.shown = other.far = &changed
        return route_from_peer(index, &other, queues, choice, <RouteSink>self.sink)

    cdef int take_interest(self, const RouteFrame* f) except -1:
        cdef RouteSink sink = <RouteSink>self.sink
        cdef SubscriptionIndex index = self.find_account(&f.account)
        cdef RouteTarget target
        cdef bytes subject, queue, key
        if index is None:
            self.unknown += 1
            return 0
        subject = PyBytes_FromStringAndSize(f.plain.subject, <Py_ssize_t>f.plain.subject_len)
        queue = PyBytes_FromStringAndSize(f.plain.reply, <Py_ssize_t>f.plain.reply_len) if f.plain.reply_len else b""
        if f.is_leaf:
            # Interest of leaf nodes has keys of its own: "L foo bar" is no queue group "bar".
            key = PyBytes_FromStringAndSize(f.origin.p, <Py_ssize_t>f.origin.n) + b"  " + subject + b" " + queue
        else:
            key = subject + b" " + queue if queue else subject
        target = sink.target_of(
            self.last_account, index, NO_WORD if self.frames.account else self.last_account + b" "
        )
        if f.op == ROUTE_UNSUB:
            return target.drop(key)
        if self.may_export is not None and not self.may_export(subject):
            return 0
        try:
            target.add(f, key, subject, queue)
        except ValueError:
            sink.write(b"-ERR 'Invalid Subscription'\r\n")
        return 0
