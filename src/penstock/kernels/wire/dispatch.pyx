# cython: auto_pickle=False
"""The hot path of routing: from a message to every matching sink, clients and services among them.

Invariants: a message is copied once for each receiver, into its out buffer; nothing references it after route()
returned. Publishes arrive through ingress.pyx.

Python code that a sink or an ingress calls may raise an unexpected exception (faults.py). It fails only the operation
it was called for: one message to a service, one receiver's copy, one publish. All other receivers get their messages.
Callers in the middle of a tick rely on this: a service that raises must not stop a stream's acks.

Rejected: one exception boundary around each delivery (every message between two clients would pay for it, although
it runs no Python code); counting the 503 as a delivery (the official server doesn't either: UNSUB max counts
messages).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memmove

from penstock.kernels.wire.output cimport OutBuffer, send_at_once, put_msg, put_msg_behind
from penstock.kernels.routing.grammar cimport has_space
from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.wire.sinks cimport (
    SUBSCRIPTION_CLOSED, DirtyList, PeerSink, RemoteSubscription, SubscriptionEntry, Message, Sink, SinkSubscription,
    entry_words, is_closed,
)
from penstock.kernels.routing.subscription_index cimport (
    MatchResult, RemoteReceivers, SharedGroup, SubscriptionIndex,
)
from penstock.kernels.wire.ticks cimport monotonic_ns

from penstock.faults import note as note_fault

cdef enum:
    ALLOWED_MAX = 1024              # cached decisions of may_receive
    MAPPED_MAX = 4096               # cached decisions of a SubjectMapper
    MAPPED_SIZE_MAX = 4096          # bytes of both subjects of a cached one: a transform can produce 32 KiB
    STALL_THRESHOLD = 8 << 20       # bytes


cdef class DeliveryGuard:
    """Enforces a receiver's permissions on deliveries.

    may_receive -- callable(subject: bytes) -> bool, called once for a subject; None = all are allowed.
    on_reply -- callable(reply: bytes), called for every message with a reply; None = not called.
    """

    def __cinit__(self, may_receive=None, on_reply=None):
        self.may_receive = may_receive
        self.on_reply = on_reply
        self.decided = {}

    cdef bint passes(self, const Message* m) except -1:
        cdef bytes subject
        if self.may_receive is None:
            return True
        subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
        known = self.decided.get(subject)
        if known is None:
            try:
                known = bool(self.may_receive(subject))
            except Exception as error:
                note_fault(f"permission of a receiver for {ascii(subject)}", error)
                return False
            if len(self.decided) >= ALLOWED_MAX:
                self.decided.clear()
            self.decided[subject] = known
        return known is True

    cdef int note_reply(self, const Message* m) except -1:
        if self.on_reply is not None and m.reply_len:
            try:
                self.on_reply(PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len))
            except Exception as error:
                note_fault("reply that a receiver may use", error)
        return 0


cdef class Tracer:
    """Reports the messages of a connection, for a log that shows them.

    tell -- callable(received: bool, subject, sid, reply, body: bytes, header_len: int); sid is b"" for a
    publish, body the header block and the payload as the receiver gets them.
    """

    def __cinit__(self, tell):
        self.tell = tell

    cdef int note(self, bint received, bytes sid, const Message* m) except -1:
        try:
            self.tell(
                received,
                PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len),
                sid,
                PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
                PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.body_len),
                <Py_ssize_t>m.header_len,
            )
        except Exception as error:
            note_fault("line of a trace", error)
        return 0


cdef class ClientSink(Sink):
    """The output half of a connection.

    dirty_list -- where it marks itself when there is something to send.
    owner -- the session; its on_auto_unsubscribe(sub) is called when a subscription reached its maximum.
    """

    def __cinit__(self, DirtyList dirty_list not None, owner=None):
        self.out = OutBuffer()
        self.dirty_list = dirty_list
        self.owner = owner
        self.echo = True
        self.shows_stored = True
        self.stall_threshold = STALL_THRESHOLD
        self.drain_waiters = {}
        self.socket = -1

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef Message sent
        cdef const char* body = m.body
        cdef size_t header_len = m.header_len
        cdef size_t body_len = m.body_len
        if self.closed or is_closed(sub) or (origin is self and not self.echo):
            return 0
        if self.guard is not None:
            if not self.guard.passes(m):
                return 0
            self.guard.note_reply(m)
        if header_len and not self.headers:
            body += header_len
            body_len -= header_len
            header_len = 0
        put_msg(
            self.out, m.subject, m.subject_len, PyBytes_AS_STRING(sub.sid), <size_t>PyBytes_GET_SIZE(sub.sid),
            m.reply, m.reply_len, body, header_len, body_len,
        )
        if self.tracer is not None:
            sent = m[0]
            sent.body, sent.header_len, sent.body_len = body, header_len, body_len
            self.tracer.note(False, sub.sid, &sent)
        sub.entry.delivered += 1
        self.encoded(body_len, origin)
        if sub.most and sub.entry.delivered >= sub.most:
            sub.mark(SUBSCRIPTION_CLOSED, True)
            self.tell_auto_unsubscribe(sub)
        return 1

    cdef int tell_auto_unsubscribe(self, SinkSubscription sub) except -1:
        if self.owner is not None:
            try:
                self.owner.on_auto_unsubscribe(sub)
            except Exception as error:
                note_fault("subscription that had its maximum", error)
        return 0

    cdef int deliver_to(self, SubscriptionEntry* entry, const Message* m, Sink origin) except -1:
        if entry.flags or self.guard is not None or self.tracer is not None or (
            m.header_len and not self.headers
        ):
            return self.deliver(<SinkSubscription>entry.subscription, m, origin)
        if self.closed or (origin is self and not self.echo):
            return 0
        put_msg_behind(
            self.out, entry_words(entry), entry.subject_len + <size_t>entry.sid_len + 2,
            m.reply, m.reply_len, m.body, m.header_len, m.body_len,
        )
        entry.delivered += 1     # before encoded(), whose callbacks may free the entry
        self.encoded(m.body_len, origin)
        return 1

    cdef int encoded(self, size_t body_len, Sink origin) except -1:
        """Updates counters and the dirty mark after a message with a body of that size was appended to `out`."""
        self.out_msgs += 1
        self.out_bytes += body_len
        if not self.is_dirty:
            self.mark_dirty()
        if self.out.size > self.stall_threshold:
            if isinstance(origin, ClientSink):
                (<ClientSink>origin).fed_slow = True
            if self.pending_max and self.out.size > self.pending_max:
                # Every subscription of a connection can multiply one read, so a check at the end of the tick
                # would be too late to bound memory.
                self.closed = self.overflowed = True
        return 0

    cdef bint denies(self, SinkSubscription sub, const Message* m) except -1:
        return not (self.closed or is_closed(sub) or self.guard is None) and not self.guard.passes(m)

    cdef bint is_blocked(self, size_t backlog_max) noexcept:
        # Waiters come first: a new publisher must not take the room that has just become free.
        return self.out.size >= self.stall_threshold or self.out.size >= backlog_max or len(self.drain_waiters) != 0

    cdef int mark_dirty(self) except -1:
        if not self.is_dirty:
            self.is_dirty = True
            self.dirty_list.mark(self)
        return 0

    def restrict(self, DeliveryGuard guard):
        """Enforces these permissions on deliveries; None = it may receive everything."""
        self.guard = guard

    def trace(self, Tracer tracer):
        """Reports publishes and deliveries to this tracer; None = to none."""
        self.tracer = tracer

    def bound(self, size_t pending_max):
        """Limits the bytes in `out`; 0 = no bound."""
        self.pending_max = pending_max

    def forget_client_info(self):
        """Drops the cached client info: identity or round trip time have changed."""
        self.brief = self.detail = None

    def write(self, const unsigned char[:] data not None):
        """Appends protocol text (INFO, PONG, -ERR, ...) and marks the sink dirty."""
        self.out.write(data)
        self.mark_dirty()

    def when_drained(self, callback):
        """Calls callback() once, when the receiver has taken all pending output. A repeated callback counts once."""
        self.drain_waiters[callback] = None

    def drained(self):
        """Notes that the receiver can take more (or is gone), and runs the callbacks of when_drained()."""
        if self.drain_waiters:
            waiters, self.drain_waiters = self.drain_waiters, {}
            for callback in waiters:
                try:
                    callback()
                except Exception as error:
                    note_fault("going on after a receiver was slow", error)

    def note_active(self):
        """Notes that the client did something other than to publish."""
        self.active_ns = monotonic_ns()

    cdef bint send(self) except -1:
        """Sends `out` to the socket; True when all of it was sent.

        The transport sends the rest, and handles every error.
        """
        cdef OutBuffer out = self.out
        cdef long long taken
        if self.socket < 0 or self.closed:
            return False
        if out.size:
            taken = send_at_once(self.socket, out.data, out.size)
            if taken <= 0:
                return False
            self.sent_bytes += <uint64_t>taken
            if <size_t>taken < out.size:
                out.size -= <size_t>taken
                memmove(out.data, out.data + taken, out.size)
                return False
            out.clear()
        self.is_dirty = False
        if self.drain_waiters:
            self.drained()
        return True

    cdef bint flush(self) except -1:
        if self.send():                 # (which contains what its callbacks raise)
            return False
        try:
            return self.owner.flush()
        except Exception as error:
            self.owner.fail(error)      # the buffered output would never be sent: end the connection
            return False

    def take(self):
        """Returns the output to send and clears the dirty mark."""
        self.is_dirty = False
        return self.out.take()


cdef class ServiceSink(Sink):
    """A Python callable as a sink: callback(subject, reply, header, payload, origin).

    reply and header are b"" when absent, origin is the publisher's Sink or None. before() runs first.
    An exception of either is noted as a fault and fails only this delivery.
    """

    def __init__(self, callback, before=None):
        self.callback = callback
        self.before = before

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef bytes subject, reply, header, payload
        if is_closed(sub):
            return 0
        subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
        reply = PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b""
        header = PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len) if m.header_len else b""
        payload = PyBytes_FromStringAndSize(
            m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len)
        )
        sub.entry.delivered += 1
        note_call(origin)
        try:
            if self.before is not None:
                self.before()
            self.callback(subject, reply, header, payload, origin)
        except Exception as error:
            note_fault(f"service for {ascii(subject)}", error)
        return 1


cdef void note_call(Sink origin) noexcept:
    """Notes that a message of this publisher called a service that may take long."""
    if isinstance(origin, ClientSink):
        (<ClientSink>origin).called = True


# --- routing

cdef int route_to_group(SubscriptionIndex index, list group, const Views* views, Sink origin) except -1:
    """Delivers to one member chosen at random, or else to the next one that accepts the message."""
    return route_to_member(group, <size_t>(index.random() % <size_t>len(group)) if len(group) > 1 else 0, views, origin)


cdef int route_to_member(list group, size_t first, const Views* views, Sink origin) except -1:
    """Delivers to the member with index `first`, or else to the next one that accepts the message."""
    cdef size_t n = <size_t>len(group)
    cdef size_t i
    cdef SinkSubscription sub
    for i in range(n):
        sub = <SinkSubscription>group[(first + i) % n]
        if not is_closed(sub) and sub.sink.deliver(sub, views.shown if sub.sink.shows_stored else views.near, origin):
            return 1
    return 0


cdef int route(SubscriptionIndex index, const Message* m, Sink origin) except -1:
    cdef Lookup lookup
    lookup.subject, lookup.n, lookup.index = m.subject, m.subject_len, NULL
    return route_looked_up(index, &lookup, m, origin)


cdef int route_looked_up(SubscriptionIndex index, Lookup* lookup, const Message* m, Sink origin) except -1:
    """Like route(), with a lookup that may have been prefetched."""
    cdef SubscriptionEntry* single = NULL
    cdef MatchResult result = index.lookup_or_single(lookup, &single)
    cdef list plain, groups
    cdef SinkSubscription sub
    cdef Views views
    cdef Py_ssize_t i
    cdef int taken = 0
    if single != NULL:
        return 0 if single.flags & SUBSCRIPTION_CLOSED else (<Sink>single.receiver).deliver_to(single, m, origin)
    plain = result.plain
    groups = result.groups if result.remote is None else result.remote.local_groups
    for i in range(len(plain)):
        sub = <SinkSubscription>plain[i]
        if not is_closed(sub):
            taken += sub.sink.deliver(sub, m, origin)
    views.near = views.shown = views.far = m
    for i in range(len(groups)):
        taken += route_to_group(index, <list>groups[i], &views, origin)
    if result.remote is not None:
        taken += route_remote(index, result.remote, &views, origin)
    return taken


cdef inline bint is_open_to(RemoteSubscription sub, bint for_leafs, Sink source) except -1:
    return (
        not is_closed(sub) and not sub.for_cluster and sub.for_leaf == for_leafs
        and (<PeerSink>sub.sink).takes_from(source, sub)
    )


cdef RemoteSubscription pick_remote(SubscriptionIndex index, list remote, bint for_leafs, Sink source):
    cdef RemoteSubscription sub
    cdef uint64_t total = 0
    for sub in remote:
        if is_open_to(sub, for_leafs, source):
            total += sub.weight
    return remote_member(remote, index.random() % total, for_leafs, source) if total else None


cdef RemoteSubscription remote_member(list remote, uint64_t at, bint for_leafs, Sink source):
    """The server whose members of the group include number `at`, counted in the order of the servers."""
    cdef RemoteSubscription sub
    cdef RemoteSubscription last = None
    for sub in remote:
        if not is_open_to(sub, for_leafs, source):
            continue
        if at < sub.weight:
            return sub
        at -= sub.weight
        last = sub
    return last


cdef RemoteSubscription nearest_cluster(list remote, Sink source):
    """The interest of the other cluster with the shortest round trip time, or None."""
    cdef RemoteSubscription sub
    cdef RemoteSubscription found = None
    for sub in remote:
        if is_closed(sub) or not sub.for_cluster or not (<PeerSink>sub.sink).takes_from(source, sub):
            continue
        if found is None or (<PeerSink>sub.sink).distance() < (<PeerSink>found.sink).distance():
            found = sub
    return found


cdef RemoteSubscription choose_member(
    SubscriptionIndex index, SharedGroup group, const Views* views, Sink origin, Sink source, int* taken
):
    """See dispatch.pxd.

    Every member of the group within the cluster is chosen equally often, wherever it is. A server counts with its
    weight, and chooses among its members itself. Leaf nodes and hubs are another place, often a slow one: their
    members get what no member of the cluster takes, and the nearest other cluster what these do not take, as on the
    official server.
    """
    cdef uint64_t local = <uint64_t>len(group.local)
    cdef uint64_t total = local
    cdef uint64_t at
    cdef RemoteSubscription sub
    for sub in group.remote:
        if is_open_to(sub, False, source):
            total += sub.weight
    if total:
        at = index.random() % total
        if at >= local:
            return remote_member(group.remote, at - local, False, source)
        if route_to_member(group.local, <size_t>at, views, origin):
            taken[0] += 1
            return None
        sub = remote_member(group.remote, 0, False, source)
        if sub is not None:
            return sub
    sub = pick_remote(index, group.remote, True, source)
    return nearest_cluster(group.remote, source) if sub is None else sub


cdef int route_remote(SubscriptionIndex index, RemoteReceivers remote, const Views* views, Sink origin) except -1:
    cdef list chosen = None
    cdef RemoteSubscription sub
    cdef PeerSink target
    cdef Py_ssize_t i
    cdef int taken = 0
    for i in range(len(remote.shared)):
        sub = choose_member(index, <SharedGroup>remote.shared[i], views, origin, origin, &taken)
        if sub is not None:
            if chosen is None:
                chosen = []
            chosen.append(sub)
    # A local member may be a service that publishes itself, and uses the same sinks. So the groups are named only
    # now, when nothing else is delivered before the message is sent.
    if chosen is not None:
        for sub in chosen:
            (<PeerSink>sub.sink).choose(sub.queue)
    for i in range(len(remote.targets)):
        target = <PeerSink>remote.targets[i]
        if target.takes_from(origin, None):
            taken += target.send(views.far, origin, i < remote.plain_count)
    return taken


cpdef int publish(
    SubscriptionIndex index, bytes subject, bytes reply, bytes header, bytes payload, Sink origin=None,
) except -1:
    """Routes one message from Python; b"" for an absent reply or header. Returns how many receivers accepted it.

    A subject with empty tokens (some client's odd reply, say) reaches no receiver. Whitespace would break the
    frames of the receivers: ValueError.
    """
    cdef Message m
    cdef bytes body
    if index is None or subject is None or payload is None:
        raise TypeError("publish() needs an index, a subject and a payload")
    body = header + payload if header else payload
    if has_space(subject) or (reply and has_space(reply)):
        raise ValueError(f"can't publish to {subject!r} with reply {reply!r}: subjects hold no whitespace")
    m.subject, m.subject_len = PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject)
    m.reply, m.reply_len = NULL, 0
    if reply:
        m.reply, m.reply_len = PyBytes_AS_STRING(reply), <size_t>PyBytes_GET_SIZE(reply)
    m.body, m.body_len = PyBytes_AS_STRING(body), <size_t>PyBytes_GET_SIZE(body)
    m.header_len = <size_t>PyBytes_GET_SIZE(header) if header else 0
    return route(index, &m, origin)


cdef int answer_no_responders(SubscriptionIndex index, ClientSink sink, const Message* m) except -1:
    """Sends the 503 status to the publisher's own subscription to the reply, if it has one."""
    return answer_status(
        index, sink, m,
        b"NATS/1.0 503\r\nNats-Subject: "
        + PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
        + b"\r\n\r\n",
    )


cdef int answer_status(SubscriptionIndex index, ClientSink sink, const Message* m, bytes header) except -1:
    """Sends a header block without payload to the publisher's own subscription to the reply, if it has one."""
    cdef MatchResult result = index.lookup(m.reply, m.reply_len)
    cdef SinkSubscription sub
    cdef size_t n = <size_t>PyBytes_GET_SIZE(header)
    for sub in result.plain:
        if sub.sink is sink and not is_closed(sub):
            put_msg(
                sink.out, m.reply, m.reply_len, PyBytes_AS_STRING(sub.sid),
                <size_t>PyBytes_GET_SIZE(sub.sid), NULL, 0, PyBytes_AS_STRING(header), n, n,
            )
            sink.mark_dirty()
            return 1
    return 0


cdef class SubjectMapper:
    """Caches an account's subject mappings for the hot path.

    decide -- callable(subject: bytes) -> (subject to route: bytes, cacheable: bool).
    prefix -- what every subject begins with that decide() changes. Publishes of other subjects are not looked up:
    the mappings of a JetStream domain would else slow all publishes of a server down.
    """

    def __cinit__(self, decide, bytes prefix not None=b""):
        self.decide = decide
        self.decided = {}
        self.prefix = prefix

    cdef bint concerns(self, const char* subject, size_t n) noexcept:
        """Can this subject change?"""
        cdef size_t length = <size_t>PyBytes_GET_SIZE(self.prefix)
        return n >= length and memcmp(subject, PyBytes_AS_STRING(self.prefix), length) == 0

    cpdef bytes map(self, bytes subject):
        """The subject to route. Raises ValueError when decide() gives one with whitespace."""
        cdef bytes mapped
        known = self.decided.get(subject)
        if known is not None:
            return <bytes>known
        mapped, fixed = self.decide(subject)
        if has_space(mapped):
            raise ValueError(f"{subject!r} can't become {mapped!r}: subjects hold no whitespace")
        if fixed and len(subject) + len(mapped) <= MAPPED_SIZE_MAX:
            if len(self.decided) >= MAPPED_MAX:
                self.decided.clear()
            self.decided[subject] = mapped
        return mapped
