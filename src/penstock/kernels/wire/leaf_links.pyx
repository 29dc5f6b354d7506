# cython: auto_pickle=False
"""Messages and interest between a leaf node and its hub: the compiled half of a leaf node link.

A link carries one account of each side. Its frames name no account, and a message from it is treated like that of a
client: subject mappings and service imports apply, and it goes on to the cluster, if the other end is the leaf node.
The rest is as for routes (route_links.pyx): bounds, dropped messages, interest in the account's index.

Invariants: a message never goes back over the link that it came from, nor to another leaf node of the same cluster:
that cluster has delivered it itself. Permissions hold in both directions, and this server enforces them whatever the
other side does.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport DeliveryGuard
from penstock.kernels.wire.frames cimport Span
from penstock.kernels.wire.route_frames cimport ROUTE_UNSUB, RouteFrame
from penstock.kernels.wire.route_links cimport (
    GROUPS_ALL, GROUPS_NAMED, RouteIngress, RouteSink, RouteTarget, is_routed,
)
from penstock.kernels.wire.sinks cimport (
    PEER_GATEWAY, PEER_HUB, PEER_LEAF, PEER_ROUTE, Message, RemoteSubscription, Sink,
)

cdef bytes NO_WORD = b""


cdef class LeafSink(RouteSink):
    """The output half of a leaf node link."""

    def __init__(self, dirty_list, owner=None):
        RouteSink.__init__(self, dirty_list, owner)
        self.peer = PEER_LEAF

    def join(self, SubscriptionIndex index not None, bint is_hub, bytes cluster not None):
        """The link belongs to this account from now on. is_hub: the other end is. cluster: its name, b"" = none."""
        self.home = index
        self.peer = PEER_HUB if is_hub else PEER_LEAF
        self.cluster = cluster

    cdef RouteTarget new_target(self):
        cdef LeafTarget target = LeafTarget.__new__(LeafTarget)
        target.follows_imports = True
        return target


cdef class LeafTarget(RouteTarget):
    """The account of a link; made by a LeafSink."""

    def __cinit__(self):
        self.verb = b"LMSG "

    cdef bint takes_from(self, Sink source, RemoteSubscription sub) except -1:
        cdef RouteSink link = self.link
        cdef RouteSink other
        if not isinstance(source, RouteSink):
            return True
        other = <RouteSink>source
        if other is link:
            return False
        if other.peer == PEER_ROUTE or other.peer == PEER_GATEWAY:
            # Its server has a link of its own to the hub.
            return link.peer == PEER_LEAF and (not other.cluster or other.cluster != link.cluster)
        if other.home is self.index:
            return not other.cluster or other.cluster != link.cluster
        # The message came through an import, so the cluster that it comes from has not seen it in this account. From
        # one hub back to the same one it could go round for ever, if both sides import.
        return other.peer != PEER_HUB or link.peer != PEER_HUB or bool(
            other.cluster and link.cluster and other.cluster != link.cluster
        )

    cdef int send(self, const Message* m, Sink origin, bint plain) except -1:
        cdef DeliveryGuard guard = self.link.guard
        if guard is not None and self.routed_of(m) is None:
            if not guard.passes(m):
                self.queues.clear()
                return 0
            guard.note_reply(m)
        return RouteTarget.send(self, m, origin, plain)


cdef class LeafIngress(RouteIngress):
    """The input half of a leaf node link."""

    def __init__(self, sink, index=None, parser=None):
        self.loop_subject = NO_WORD

    def bind(self, bytes account not None):
        """The link belongs to this account from now on."""
        self.last_account = account

    def watch_loops(self, bytes subject not None, on_loop):
        """Calls on_loop() when this subject comes back from the other side.

        Messages of the other side are dropped from then on, until the subject is retracted: they would go round.
        """
        self.loop_subject, self.on_loop = subject, on_loop

    def restrict_input(self, may_take, may_accept, on_refused):
        """Takes messages and interest with these subjects only, and calls on_refused(is_message, subject) for others.

        may_take -- callable(subject), called once for a subject; None = all.
        may_accept -- callable(subject), for interest; None = all.
        """
        self.taken = None if may_take is None else DeliveryGuard(may_take)
        self.may_accept, self.on_refused = may_accept, on_refused
        if may_accept is not None:
            (<RouteSink>self.sink).keep(may_accept)

    cdef SubscriptionIndex find_account(self, const Span* name):
        return (<RouteSink>self.sink).home

    cdef int take_message(self, const RouteFrame* f) except -1:
        cdef RouteSink sink = <RouteSink>self.sink
        cdef Message m
        cdef bytes subject, mapped
        sink.in_msgs += 1
        sink.in_bytes += f.plain.body_len
        if sink.home is None or self.is_looped:
            self.unknown += 1
            return 0
        if self.taken is not None:
            m.subject, m.subject_len = f.plain.subject, f.plain.subject_len
            if not self.taken.passes(&m):
                self.on_refused(True, PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len))
                return 0
        if self.replies is not None and is_routed(f.plain.subject, f.plain.subject_len):
            if self.replies.is_here(f.plain.subject):
                return self.replies.answer(self, sink.home, f)
            self.replies.expect(self, sink.home, f.plain.subject)
        if self.mapper is None or not self.mapper.concerns(f.plain.subject, f.plain.subject_len):
            return self.route(sink.home, f, f.plain.subject, f.plain.subject_len, GROUPS_NAMED)
        subject = PyBytes_FromStringAndSize(f.plain.subject, <Py_ssize_t>f.plain.subject_len)
        mapped = self.mapper.map(subject)
        return self.route(
            sink.home, f, PyBytes_AS_STRING(mapped), <size_t>PyBytes_GET_SIZE(mapped),
            GROUPS_ALL if mapped != subject and f.queues.n == 0 else GROUPS_NAMED,
        )

    cdef int take_interest(self, const RouteFrame* f) except -1:
        cdef RouteSink sink = <RouteSink>self.sink
        cdef RouteTarget target
        cdef bytes subject, queue, key
        if sink.home is None:
            self.unknown += 1
            return 0
        if f.plain.subject_len > 5 and memcmp(f.plain.subject, b"$LDS.", 5) == 0:
            if self.take_loop(f):
                return 0
        subject = PyBytes_FromStringAndSize(f.plain.subject, <Py_ssize_t>f.plain.subject_len)
        queue = NO_WORD
        if f.plain.reply_len:
            queue = PyBytes_FromStringAndSize(f.plain.reply, <Py_ssize_t>f.plain.reply_len)
        key = subject + b" " + queue if queue else subject
        target = sink.target_of(NO_WORD, sink.home, NO_WORD)
        if f.op == ROUTE_UNSUB:
            return target.drop(key)
        if self.may_accept is not None and not self.may_accept(subject):
            self.on_refused(False, subject)
            return 0
        try:
            target.add(f, key, subject, queue)
        except ValueError:
            sink.write(b"-ERR 'Invalid Subscription'\r\n")
        return 0

    cdef int take_loop(self, const RouteFrame* f) except -1:
        """Is it this server's own subject that came back?"""
        if <size_t>PyBytes_GET_SIZE(self.loop_subject) != f.plain.subject_len or memcmp(
            PyBytes_AS_STRING(self.loop_subject), f.plain.subject, f.plain.subject_len
        ) != 0:
            return 0
        self.is_looped = f.op != ROUTE_UNSUB
        if self.is_looped:
            self.on_loop()
        return 1
