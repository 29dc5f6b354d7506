# cython: auto_pickle=False
"""Messages and interest between clusters: the compiled half of a gateway link.

Every server has one link that it dialled to each other cluster (outbound), and those that servers of other clusters
dialled to it (inbound). Messages leave on outbound links only, and interest comes back on them. What comes in on an
inbound link goes to this cluster and its leaf nodes, never to another cluster (one hop). So an outbound link takes
interest only, and an inbound one messages only; other frames close it.

This server announces all interest of its cluster (link_interest.pyx). Other servers may do so as well, or be
optimistic: they get all messages of an account, refuse single subjects, and switch to announcing their interest
later. In the index an optimistic cluster is a subscription to everything.

Replies: interest in a requester's inbox may arrive after the answer was sent. So the reply of a request names
its cluster and server, `_GR_.<cluster>.<server>.<reply>`, if the inbox is new. The other cluster gives its receivers
the plain reply, and for two seconds it sends messages to that subject under the routed name. There they are taken to
the server that asked, which alone knows the requester for sure. A request that a receiver passes on to other servers
keeps the routed name there, so that those which answer it find the requester as well.

Invariants: a routed answer reaches another cluster once, because the same receiver has the interest in the plain
subject. No subscription of this module is announced to anybody.

Rejected: routing every reply by name (each request would change the index of the answering server twice).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp

from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.frames cimport ERROR_UNKNOWN_OPERATION
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.recent_interest cimport RECENT_NS, RecentInterest
from penstock.kernels.wire.route_frames cimport ROUTE_ACCOUNT, ROUTE_UNSUB, RouteFrame
from penstock.kernels.wire.route_links cimport (
    GROUPS_ANSWERED, GROUPS_OWN, ROUTED_LEN, RoutedReplies, RouteIngress, RouteSink, RouteTarget, is_routed,
)
from penstock.kernels.wire.sinks cimport (
    PEER_GATEWAY, PEER_LEAF, PEER_ROUTE, SUBSCRIPTION_CLOSED, SUBSCRIPTION_PRIVATE, Message, RemoteSubscription, Sink,
)
from penstock.kernels.wire.ticks cimport monotonic_ns

from collections import deque

cdef enum:
    PREFIX_LEN = 5              # `_GR_.`
    HASH_LEN = 6
    REPLIES_MAX = 65536
    REFUSED_MAX = 10000         # subjects an optimistic cluster may refuse; the official server sends 1000

cdef bytes NO_WORD = b""


cdef class GatewayReplies(RoutedReplies):
    """The routed replies of one server.

    own -- `_GR_.<cluster>.<server>.` of this server; b"" = it has no gateways.
    relay -- callable(account: bytes, server hash: bytes) -> (RouteSink, word) of that server of the cluster, or None.
    clock -- callable() -> ns, for tests.
    """

    def __init__(self, bytes own not None=b"", relay=None, clock=None):
        if own and len(own) != ROUTED_LEN:
            raise ValueError(f"{own!r} is no prefix of routed replies")
        self.own = own
        self.relay = relay
        self.clock = clock
        self.clusters = {}
        self.absent = set()
        self.recent = {}
        self.noted = deque()
        self.names = {}

    def __len__(self):
        return len(self.noted)

    cdef uint64_t now(self) except? 0:
        return monotonic_ns() if self.clock is None else <uint64_t>self.clock()

    def joined(self, bytes cluster not None, GatewaySink link not None):
        """The link to the cluster with this hash is there."""
        self.clusters[cluster] = link
        self.absent.discard(cluster)

    def left(self, bytes cluster not None, GatewaySink link not None):
        """The link is gone."""
        if self.clusters.get(cluster) is link:
            del self.clusters[cluster]
            self.absent.add(cluster)

    def recent_of(self, bytes account not None):
        """The new subscriptions of an account; it must be told of them."""
        found = self.recent.get(account)
        if found is None:
            found = self.recent[account] = RecentInterest(self.clock)
        return found

    def forget_account(self, bytes account not None):
        """The account was removed."""
        self.recent.pop(account, None)

    def expire(self):
        """Forgets what is older than two seconds."""
        cdef RouteTarget target
        cdef uint64_t now = self.now()
        while self.noted and <uint64_t>self.noted[0][0] <= now:
            _, target, subject, routed, answered = self.noted.popleft()
            known = None if target.routed is None else target.routed.get(subject)
            if known is not None and known[1] is answered:      # not noted again since
                target.forget_answer(subject)
            names = self.names.get(target.index)
            if names is not None and names.get(subject) is routed:
                del names[subject]
                if not names:
                    del self.names[target.index]
        for recent in self.recent.values():
            (<RecentInterest>recent).expire()

    cdef int note(self, RouteIngress ingress, SubscriptionIndex index, const char* reply, size_t n) except -1:
        cdef RouteSink source = <RouteSink>ingress.sink
        cdef RouteSink link
        cdef RouteTarget target
        cdef bytes subject, cluster, account, routed
        if ingress.last_account is None or memchr(reply, c'*', n) != NULL or memchr(reply, c'>', n) != NULL:
            return 0
        subject = PyBytes_FromStringAndSize(reply + ROUTED_LEN, <Py_ssize_t>(n - ROUTED_LEN))
        routed = PyBytes_FromStringAndSize(reply, <Py_ssize_t>n)
        account = ingress.last_account
        if self.is_here(reply):
            # Another cluster passed the request on to this one.
            found = self.relay_to(ingress, reply)
            if found is None:
                return 0        # this server has the requester
            link = <RouteSink?>found[0]
            target = link.target_of(account, index, <bytes?>found[1])
            # Under the plain subject: members of queue groups are chosen here, and that server must add none.
            return self.keep(target, subject, routed, subject)
        cluster = PyBytes_FromStringAndSize(reply + PREFIX_LEN, HASH_LEN)
        link = self.clusters.get(cluster)
        if link is None:
            if source.home is None:
                return 0
            # From a leaf node or hub, which has asked for routed subjects, or is nearer to who has.
            target = source.target_of(NO_WORD, source.home, NO_WORD)
            return self.keep(target, subject, routed, routed)
        target = link.target_of(account, index, account + b" ")
        (<GatewayTarget>target).expect_answers(cluster)
        return self.keep(target, subject, routed, routed)

    cdef int keep(self, RouteTarget target, bytes subject, bytes routed, bytes answered) except -1:
        """For two seconds, answers to a subject leave as `answered`, and messages with it as reply get `routed`."""
        if len(self.noted) >= REPLIES_MAX or self.noted and <uint64_t>self.noted[0][0] <= self.now():
            self.expire()       # (nothing else does without gateways)
            if len(self.noted) >= REPLIES_MAX:
                return 0        # the answer finds its way by interest, if it is known by then
        try:
            target.expect_answer(subject, answered)
        except ValueError:      # no subject that could have a subscription
            return 0
        self.noted.append((self.now() + RECENT_NS, target, subject, routed, answered))
        names = self.names.get(target.index)
        if names is None:
            names = self.names[target.index] = {}
        names[subject] = routed
        return 0

    cdef bytes name_of(self, SubscriptionIndex index, const Message* m):
        if not self.names:
            return None
        names = self.names.get(index)
        if names is None:
            return None
        return names.get(PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len))

    cdef bint is_here(self, const char* routed) noexcept:
        """Does a routed subject name a server of this cluster?"""
        return bool(self.own) and memcmp(routed, PyBytes_AS_STRING(self.own), PREFIX_LEN + HASH_LEN + 1) == 0

    cdef object relay_to(self, RouteIngress ingress, const char* routed):
        """(RouteSink, word) of the other server of this cluster that a routed subject names, or None."""
        if self.relay is None or memcmp(routed, PyBytes_AS_STRING(self.own), ROUTED_LEN) == 0:
            return None
        return self.relay(
            ingress.last_account, PyBytes_FromStringAndSize(routed + PREFIX_LEN + HASH_LEN + 1, HASH_LEN)
        )

    cdef int expect(self, RouteIngress ingress, SubscriptionIndex index, const char* routed) except -1:
        # Servers of a leaf node's cluster may be connected to different servers here: the request went down by one,
        # and the answer comes up by another one, which has noted nothing.
        cdef bytes cluster = PyBytes_FromStringAndSize(routed + PREFIX_LEN, HASH_LEN)
        cdef RouteSink link = self.clusters.get(cluster)
        if link is None or ingress.last_account is None:
            return 0
        return (<GatewayTarget>link.target_of(ingress.last_account, index, ingress.last_account + b" ")).expect_answers(
            cluster
        )

    cdef int answer(self, RouteIngress ingress, SubscriptionIndex index, const RouteFrame* f) except -1:
        cdef const char* subject = f.plain.subject
        cdef size_t n = f.plain.subject_len
        cdef RouteSink source = <RouteSink>ingress.sink
        cdef RouteSink link
        cdef RouteTarget target
        cdef Message m
        if not self.is_here(subject):
            return 0            # of another cluster: there is one hop only
        found = self.relay_to(ingress, subject) if source.peer != PEER_ROUTE else None
        if found is not None:
            link = <RouteSink?>found[0]
            m.subject, m.subject_len = subject, n
            m.reply, m.reply_len = f.plain.reply, f.plain.reply_len
            m.body, m.body_len, m.header_len = f.plain.body, f.plain.body_len, f.plain.header_len
            target = link.target_of(ingress.last_account, index, <bytes?>found[1])
            if f.queues.n:
                target.queues.append(b" ", 1)
                target.queues.append(f.queues.p, f.queues.n)
            return target.send(&m, source, True)        # names the leaf node cluster that it comes from
        # The cluster that answers has chosen the members of queue groups that it knows. It may not know new ones yet.
        # While the link to a cluster is lost, nothing here tells whether that cluster has members.
        return ingress.route(
            index, f, subject + ROUTED_LEN, n - ROUTED_LEN, GROUPS_ANSWERED if self.absent else GROUPS_OWN
        )


cdef class GatewaySink(RouteSink):
    """The output half of a gateway link."""

    def __init__(self, dirty_list, owner=None):
        RouteSink.__init__(self, dirty_list, owner)
        self.peer = PEER_GATEWAY
        self.replies = GatewayReplies()

    def route_replies(self, GatewayReplies replies not None):
        """Routes replies by name as this server does."""
        self.replies = replies

    def measured(self, uint64_t rtt):
        """The round trip time, ns."""
        self.rtt = rtt

    cdef RouteTarget new_target(self):
        return GatewayTarget.__new__(GatewayTarget)

    def assume_interest(self, bytes account not None, SubscriptionIndex index not None):
        """The cluster is optimistic: it gets all messages of the account until it says otherwise."""
        cdef GatewayTarget target
        if account not in self.targets:
            target = <GatewayTarget>self.target_of(account, index, account + b" ")
            target.mode = MODE_OPTIMISTIC
            target.want_all(True)

    def announces(self, bytes account not None, SubscriptionIndex index not None, bint complete):
        """The cluster announces its interest in the account from now on; complete: it has done so."""
        cdef GatewayTarget target = <GatewayTarget>self.target_of(account, index, account + b" ")
        target.mode = MODE_INTEREST_ONLY if complete else MODE_TRANSITIONING
        if complete:
            target.want_all(False)

    def modes(self):
        """{account: (InterestMode, number of refused subjects)}"""
        cdef GatewayTarget target
        return {
            account: (target.mode, len(target.refused) if target.refused is not None else 0)
            for account, target in self.targets.items()
        }


cdef class GatewayTarget(RouteTarget):
    """An account of another cluster; made by a GatewaySink."""

    def __cinit__(self):
        self.mode = MODE_INTEREST_ONLY
        self.reply = OutBuffer()

    cdef bint takes_from(self, Sink source, RemoteSubscription sub) except -1:
        # What comes from a server of the cluster, or a hub, the server that it came to has sent itself.
        return not isinstance(source, RouteSink) or (<RouteSink>source).peer == PEER_LEAF

    cdef uint64_t distance(self) noexcept:
        return (<GatewaySink>self.link).rtt

    cdef int want_all(self, bint all_subjects) except -1:
        """Does the cluster get all messages but those that it refuses?"""
        if all_subjects == (self.everything is not None):
            return 0
        if all_subjects:
            self.everything = RemoteSubscription(self, b">")
            self.everything.mark(SUBSCRIPTION_PRIVATE, True)
            self.index.insert(self.everything)
            self.refused = set()
        else:
            self.refused = None
            self.everything.mark(SUBSCRIPTION_CLOSED, True)
            self.index.remove(self.everything)
            self.everything = None
        return 0

    cdef int expect_answers(self, bytes cluster) except -1:
        """Sends subjects that are routed to the cluster by name: leaf nodes and services may know no others."""
        if self.answers is None:
            self.answers = RemoteSubscription(self, b"_GR_." + cluster + b".>")
            self.answers.mark(SUBSCRIPTION_PRIVATE, True)
            self.index.insert(self.answers)
        return 0

    cdef int send(self, const Message* m, Sink origin, bint plain) except -1:
        cdef Message renamed
        cdef GatewayReplies replies
        if self.refused is not None and plain and len(self.refused):
            plain = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len) not in self.refused
        if m.reply_len and not is_routed(m.reply, m.reply_len):
            replies = (<GatewaySink>self.link).replies
            if self.recent is None:
                self.recent = replies.recent_of(self.account)
            if replies.name_of(self.index, m) is not None:
                return RouteTarget.send(self, m, origin, plain)     # of another cluster's requester
            if replies.own and self.recent.matches(m.reply, m.reply_len):
                self.reply.clear()
                self.reply.append(PyBytes_AS_STRING(replies.own), ROUTED_LEN)
                self.reply.append(m.reply, m.reply_len)
                renamed = m[0]
                renamed.reply, renamed.reply_len = self.reply.data, self.reply.size
                return RouteTarget.send(self, &renamed, origin, plain)
        return RouteTarget.send(self, m, origin, plain)

    def clear(self):
        """Removes all subscriptions of the cluster in this account."""
        RouteTarget.clear(self)
        self.want_all(False)
        if self.answers is not None:
            self.answers.mark(SUBSCRIPTION_CLOSED, True)
            self.index.remove(self.answers)
            self.answers = None


cdef class GatewayIngress(RouteIngress):
    """The input half of a gateway link. is_outbound -- this server dialled."""

    def direct(self, bint is_outbound):
        """Says which side dialled."""
        self.is_outbound = is_outbound

    cdef int misplaced(self) except -1:
        """A frame that this side may not get: the connection ends."""
        cdef RouteFrame f
        self.frames.refuse(&f, ERROR_UNKNOWN_OPERATION)
        return 0

    cdef int take_message(self, const RouteFrame* f) except -1:
        if self.is_outbound or f.is_leaf:
            return self.misplaced()
        return RouteIngress.take_message(self, f)

    cdef int take_interest(self, const RouteFrame* f) except -1:
        cdef SubscriptionIndex index
        cdef GatewayTarget target
        cdef bytes subject
        if not self.is_outbound or f.is_leaf:
            return self.misplaced()
        index = self.find_account(&f.account)
        if index is None:
            self.unknown += 1
            return 0
        target = <GatewayTarget>(<RouteSink>self.sink).target_of(self.last_account, index, self.last_account + b" ")
        if target.refused is not None and not f.plain.reply_len:
            subject = PyBytes_FromStringAndSize(f.plain.subject, <Py_ssize_t>f.plain.subject_len)
            if f.op != ROUTE_UNSUB:
                if b"*" in subject or b">" in subject:
                    target.refused.clear()
                target.refused.discard(subject)
            elif subject not in target.subs and len(target.refused) < REFUSED_MAX:
                target.refused.add(subject)
                return 0
        return RouteIngress.take_interest(self, f)

    cdef int take_account(self, const RouteFrame* f) except -1:
        cdef SubscriptionIndex index
        cdef GatewayTarget target
        if not self.is_outbound:
            return self.misplaced()
        index = self.find_account(&f.account)
        if index is None:
            self.unknown += 1
            return 0
        target = <GatewayTarget>(<RouteSink>self.sink).target_of(self.last_account, index, self.last_account + b" ")
        if target.mode != MODE_INTEREST_ONLY:
            target.want_all(f.op == ROUTE_ACCOUNT)
        return 0
