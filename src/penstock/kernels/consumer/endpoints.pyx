"""A consumer's delivery targets, and the sink of its acks.

Delivery. A Target is a waiting pull request, or the deliver subject of a push consumer, with the subscriptions that
match its subject. A Rotation selects the target of the next message, delivers to it and moves it to its next position
in the list. The backlog of the receiving client connections, also in other accounts, decides whether a target is
skipped.

Invariants: messages go to the targets round robin, as on the official server; with priorities only to those of the
lowest number. `on_end` is called immediately for each target that leaves the list.

Acks. An AckSink receives every ack of a stream, finds the consumer by its token and stores plain acks as pairs of
numbers; an ack that needs a decision (NAK, +WPI, +NXT, +TERM, an ack that requests a confirmation) waits as a tuple,
with its position among the plain ones. The sink applies nothing: acks are applied once per tick.

Invariant: an ack for an unknown consumer, or with malformed numbers, is refused: its sender gets
"no responders".
Rejected: one subscription of `$JS.ACK.<stream>.<consumer>.>` per consumer (it would invalidate the router's caches
for each created or deleted ephemeral); lists of Python tuples for acks (0.6 M/s).
"""
from operator import attrgetter

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from penstock.kernels.base.memory cimport array_grow
from penstock.kernels.consumer.ack_state cimport ACK_ALL, ACK_NONE, AckState
from penstock.kernels.consumer.ack_window cimport Entry, entry_at, window_find
from penstock.kernels.routing.subscription_index cimport MatchResult, SubscriptionIndex, is_awaited
from penstock.kernels.wire.dispatch cimport ClientSink, Views, route_remote
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport DirtyList, Message, PeerSink, Sink, SinkSubscription


# --- delivery targets

cdef enum:
    BACKLOG_MAX = 8 * 1024 * 1024

cdef bytes PIN_HEADER = b"Nats-Pin-Id: "
cdef object PRIORITY = attrgetter("priority")


cdef class Target:
    """A delivery target: a waiting pull request, or the deliver subject of a push consumer.

    Args: subject to deliver to; batch: number of messages, negative for no bound; max_bytes: 0 for no bound.
    """

    def __init__(self, bytes subject not None, int64_t batch=-1, int64_t max_bytes=0):
        self.subject = subject
        self.batch = batch
        self.bytes_left = max_bytes
        self.pin = b""
        self.awaited = is_awaited(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))

    cdef int refresh(self, SubscriptionIndex index) except -1:
        """Repeats the lookup of its subject if subscriptions changed since the last time."""
        cdef MatchResult own
        if self.awaited and index.replies is not None:
            own = index.replies.find_wanted(
                PyBytes_AS_STRING(self.subject), <size_t>PyBytes_GET_SIZE(self.subject)
            )
            if own is not None:
                self.match = own
                return 0
        if self.known and self.generation == index.generation:
            return 0
        self.match = index.lookup(PyBytes_AS_STRING(self.subject), <size_t>PyBytes_GET_SIZE(self.subject))
        self.generation = index.generation
        self.known = True
        return 0

    cdef bint has_interest(self) noexcept:
        return len(self.match.plain) != 0 or len(self.match.groups) != 0 or self.match.remote is not None

    def is_wanted(self, SubscriptionIndex index not None):
        """Does its subject have a subscription?"""
        self.refresh(index)
        return self.has_interest()

    def when_drained(self, callback):
        """Calls callback() once, when one of its connections can take more."""
        cdef SinkSubscription sub
        cdef PeerSink server
        for subs in [self.match.plain, *self.match.groups]:
            for sub in subs:
                sub = client_behind(sub)
                if sub is not None:
                    (<ClientSink>sub.sink).when_drained(callback)
        if self.match.remote is not None:
            for server in self.match.remote.targets:
                (<ClientSink?>server.connection()).when_drained(callback)


cdef inline SinkSubscription client_behind(SinkSubscription sub):
    """The client subscription that finally receives a message to `sub`; None for other receivers."""
    if not isinstance(sub.sink, ClientSink):
        sub = sub.sink.beyond(sub)
        if sub is None or not isinstance(sub.sink, ClientSink):
            return None
    return sub


cdef inline bint is_full(SinkSubscription sub, size_t backlog_max) noexcept:
    """Does its connection have more unsent bytes than allowed? (The connection's own threshold includes those in the
    transport.)"""
    sub = client_behind(sub)
    return sub is not None and (<ClientSink>sub.sink).is_blocked(backlog_max)


cdef bint is_blocked(Target target, size_t backlog_max) noexcept:
    """Is one of its receivers full, or every member of one of its queue groups?"""
    cdef list plain = target.match.plain, groups = target.match.groups, group
    cdef Py_ssize_t i, k
    for i in range(len(plain)):
        if is_full(<SinkSubscription>plain[i], backlog_max):
            return True
    for i in range(len(groups)):
        group = <list>groups[i]
        for k in range(len(group)):
            if not is_full(<SinkSubscription>group[k], backlog_max):
                break
        else:
            return True
    if target.match.remote is not None:
        for server in target.match.remote.targets:
            if (<ClientSink>(<PeerSink>server).connection()).is_blocked(backlog_max):
                return True
    return False


cdef Message with_stored(const Message* m, const Message* inner, OutBuffer room) except *:
    """The message for other servers, which route it by the deliver subject: behind `@` in its ack reply it carries the
    subject that it was stored with, which the receiver's server shows to the receiver."""
    cdef Message far = inner[0]
    if m.reply_len > 8 and memcmp(m.reply, b"$JS.ACK.", 8) == 0:
        room.clear()
        room.append(m.reply, m.reply_len)
        room.append(b"@", 1)
        room.append(m.subject, m.subject_len)
        far.reply, far.reply_len = room.data, room.size
    return far


cdef inline bint is_denied(SinkSubscription sub, const Message* m) except -1:
    """Is there a receiver, which is not allowed to read this message?"""
    sub = client_behind(sub)
    return sub is not None and (<ClientSink>sub.sink).denies(sub, m)


cdef struct HeldHead:
    size_t subject_len
    size_t reply_len
    size_t header_len
    size_t body_len


cdef class HeldDeliveries:
    """Messages of a consumer without acks, until its stream's group has committed that they were delivered: a new
    leader must not deliver them again."""

    def __cinit__(self):
        self.buf = OutBuffer()
        self.targets = []

    @property
    def size(self):
        return self.buf.size

    cdef int add(self, Target target, const Message* m) except -1:
        cdef HeldHead head
        cdef char* d = self.buf.reserve(sizeof(HeldHead) + m.subject_len + m.reply_len + m.body_len)
        head.subject_len, head.reply_len = m.subject_len, m.reply_len
        head.header_len, head.body_len = m.header_len, m.body_len
        memcpy(d, &head, sizeof(HeldHead))
        d += sizeof(HeldHead)
        memcpy(d, m.subject, m.subject_len)
        memcpy(d + m.subject_len, m.reply, m.reply_len)
        memcpy(d + m.subject_len + m.reply_len, m.body, m.body_len)
        self.buf.size += sizeof(HeldHead) + m.subject_len + m.reply_len + m.body_len
        self.targets.append(target)
        return 0

    def take(self):
        """Returns the messages as another object; this one is empty then."""
        cdef HeldDeliveries taken = HeldDeliveries()
        taken.buf, self.buf = self.buf, taken.buf
        taken.targets, self.targets = self.targets, taken.targets
        return taken

    def send(self, Rotation rotation not None):
        """Delivers all messages to their targets, in their order, and empties this object."""
        cdef HeldDeliveries taken = self.take()
        cdef HeldHead head
        cdef Message m
        cdef const char* p = taken.buf.data
        cdef Target target
        for target in taken.targets:
            memcpy(&head, p, sizeof(HeldHead))
            m.subject = p + sizeof(HeldHead)
            m.subject_len = head.subject_len
            m.reply = m.subject + head.subject_len
            m.reply_len = head.reply_len
            m.body = m.reply + head.reply_len
            m.header_len = head.header_len
            m.body_len = head.body_len
            p = m.body + head.body_len
            target.refresh(rotation.index)
            rotation.deliver(target, &m)


cdef class Rotation:
    """Selects the next target of a consumer.

    Args: index: the subscriptions; state: the consumer's pending messages; on_end: callable(target, TargetEnd) for
    each target that leaves the list, or None.
    """

    def __cinit__(self, SubscriptionIndex index not None, AckState state not None, object on_end=None):
        self.index = index
        self.state = state
        self.on_end = on_end
        self.backlog_max = BACKLOG_MAX
        self.far_reply = OutBuffer()
        self.unpin()

    def pin_clients(self, new_pin):
        """Delivers only to one client at a time, with its pin in a header of each message. new_pin() returns the pin of
        the next client; None: delivers to all clients, without a pin."""
        self.new_pin = new_pin
        if new_pin is None:
            self.unpin()

    cpdef int unpin(self) except -1:
        """Ends the current pin: the next selected target without one gets a new pin."""
        self.pin = b""
        self.pin_header = PIN_HEADER
        return 0

    def hold_pin(self, bytes pin not None):
        """Delivers only to the client with this pin."""
        self.pin = pin
        self.pin_header = PIN_HEADER + pin

    cdef int assign_pin(self, Target target) except -1:
        target.pin = self.new_pin()
        self.hold_pin(target.pin)
        return 0

    def add(self, list targets not None, Target target not None):
        """Appends a target; with priorities, puts it behind those of the same one."""
        targets.append(target)
        if self.prioritized:
            targets.sort(key=PRIORITY)      # stable; all, because the list may be older than `prioritized`

    def deliver_into(self, HeldDeliveries held):
        """From now on `held` takes the messages; None: their targets do."""
        self.held = held

    def hold_message(self, Target target not None, bytes reply not None, bytes header not None):
        """Adds a message without payload to those that are held. Returns False when none are."""
        cdef Message m
        if self.held is None:
            return False
        m.subject = PyBytes_AS_STRING(target.subject)
        m.subject_len = <size_t>PyBytes_GET_SIZE(target.subject)
        m.reply = PyBytes_AS_STRING(reply)
        m.reply_len = <size_t>PyBytes_GET_SIZE(reply)
        m.body = PyBytes_AS_STRING(header)
        m.header_len = m.body_len = <size_t>PyBytes_GET_SIZE(header)
        self.held.add(target, &m)
        return True

    cdef int send(self, Target target, const Message* m) except -1:
        """Delivers a message, or keeps it in `held`; 0 when no receiver accepted it."""
        if self.held is None:
            return self.deliver(target, m)
        self.held.add(target, m)
        return 1

    cdef int deliver(self, Target target, const Message* m) except -1:
        """Delivers to all receivers of the target's subject; 0 when none accepted the message.

        Clients see the subject that the message was stored with. Receivers within the server (a stream, the API)
        were addressed by the target's subject and see that one. Other servers get both. A message that a client
        may not read counts as delivered, as on the official server: otherwise the consumer could never advance
        past it.
        """
        cdef MatchResult match = target.match
        cdef SinkSubscription sub
        cdef Message inner = m[0]
        cdef Message far
        cdef Views views
        cdef list group
        cdef list groups = match.groups if match.remote is None else match.remote.local_groups
        cdef int taken = 0
        cdef bint denied
        cdef size_t n
        inner.subject = PyBytes_AS_STRING(target.subject)
        inner.subject_len = <size_t>PyBytes_GET_SIZE(target.subject)
        for sub in match.plain:
            if sub.sink.deliver(sub, m if sub.sink.shows_stored else &inner, None) or is_denied(sub, m):
                taken = 1
        for group in groups:
            n = <size_t>len(group)
            denied = False
            for _ in range(n):
                self.next_member += 1
                sub = <SinkSubscription>group[self.next_member % n]
                if is_full(sub, self.backlog_max):
                    continue
                if sub.sink.deliver(sub, m if sub.sink.shows_stored else &inner, None):
                    taken = 1
                    break
                denied = denied or is_denied(sub, m)
            else:
                taken |= denied
        if match.remote is not None:
            far = with_stored(m, &inner, self.far_reply)
            views.near, views.shown, views.far = &inner, m, &far
            taken |= route_remote(self.index, match.remote, &views, None) != 0
        return taken

    cdef int end(self, list targets, Target target, int why) except -1:
        targets.remove(target)
        if self.on_end is not None:
            self.on_end(target, why)
        return 0

    cdef bint is_turn(self, list targets, Target target, uint64_t pending) except -1:
        """Is the target eligible in its priority group? (One with a wrong pin leaves `targets`.)"""
        if self.new_pin is not None:
            if not self.pin and not target.pin:
                self.assign_pin(target)
            elif target.pin != self.pin:
                if target.pin:
                    self.end(targets, target, END_WRONG_PIN)
                return False
        if target.min_pending <= 0 and target.min_ack_pending <= 0:
            return True
        # As the official server counts: a redelivered message is no longer among the pending ones.
        if target.min_pending > 0 and target.min_pending <= <int64_t>pending + 1:
            return True
        return target.min_ack_pending > 0 and target.min_ack_pending <= <int64_t>self.state.num_pending

    cdef Target choose(self, list targets, size_t size, uint64_t pending):
        cdef Target target
        cdef Py_ssize_t at = 0
        cdef size_t blocked = 0, standby = 0
        cdef bint claimed
        while blocked + standby < <size_t>len(targets):
            target = <Target>targets[at]
            target.refresh(self.index)
            claimed = self.new_pin is not None and not self.pin
            if not self.is_turn(targets, target, pending):
                if target.pin and self.new_pin is not None:
                    continue                # is_turn() has removed it
                standby += 1
            elif target.bytes_left > 0 and size > <size_t>target.bytes_left:
                if claimed:
                    self.unpin()
                self.end(targets, target, END_TOO_LARGE)
                continue
            elif not target.has_interest():
                self.end(targets, target, END_NO_INTEREST)
                continue
            elif not is_blocked(target, self.backlog_max):
                return target
            else:
                blocked += 1
            if self.prioritized:
                at += 1
            else:
                targets.append(targets.pop(0))
        self.blocked, self.standby = blocked, standby
        return None

    cdef int requeue(self, list targets, Target target) except -1:
        """Moves the target behind all others, or behind those of the same priority."""
        cdef Py_ssize_t at
        if not self.prioritized:
            targets.append(targets.pop(0))
            return 0
        targets.remove(target)
        at = len(targets)
        while at and (<Target>targets[at - 1]).priority > target.priority:
            at -= 1
        targets.insert(at, target)
        return 0

    cdef int took(self, list targets, Target target, size_t size) except -1:
        cdef bint bounded = target.bytes_left > 0
        target.delivered += 1
        if target.batch > 0:
            target.batch -= 1
        if bounded:
            target.bytes_left -= <int64_t>size
            if target.bytes_left == 0:
                target.batch = 0            # all bytes used: complete, even if its batch is not
        if target.batch == 0:
            self.end(targets, target, END_BYTES_LEFT if target.bytes_left > 0 else END_FULL)
        elif len(targets) > 1:
            self.requeue(targets, target)
        return 0


# --- ack sink

cdef enum:
    ACK_NUMBERS = 5             # <deliveries>.<stream seq>.<consumer seq>.<ts>.<pending>


cdef const char* get_uint(const char* p, const char* end, uint64_t* v) noexcept:
    """Reads digits up to a dot or the end; returns the position after the dot, or NULL when there is no
    number."""
    cdef uint64_t value = 0, digit
    cdef const char* start = p
    while p < end and c"0" <= p[0] <= c"9":
        digit = <uint64_t>(p[0] - c"0")
        if value > (UINT64_MAX - digit) // 10:
            return NULL
        value = value * 10 + digit
        p += 1
    if p == start:
        return NULL
    if p < end:
        if p[0] != c".":
            return NULL
        p += 1
        if p == end:
            return NULL
    v[0] = value
    return p


cdef class AckQueue:
    """Acks of one consumer that wait for the end of the tick.

    Args: owner: marked in dirty_list at the first ack.
    """

    def __cinit__(self, object owner, DirtyList dirty_list not None):
        self.owner = owner
        self.dirty_list = dirty_list
        self.special = []
        self.samples = []

    def __dealloc__(self):
        free(self.items)

    cpdef int mark(self) except -1:
        """Marks the owner: it has work in this tick."""
        if not self.is_dirty:
            self.is_dirty = True
            self.dirty_list.mark(self.owner)
        return 0

    def clean(self):
        """Clears the mark: the owner was taken from the dirty list."""
        self.is_dirty = False

    cdef int push(self, uint64_t stream_seq, uint64_t consumer_seq) except -1:
        if self.count == self.capacity:
            self.items = <PlainAck*>array_grow(
                self.items, &self.capacity, self.count + 1, sizeof(PlainAck), 64, b"acks"
            )
        self.items[self.count].stream_seq = stream_seq
        self.items[self.count].consumer_seq = consumer_seq
        self.count += 1
        return 0

    def begin(self, uint32_t sample_percent):
        """Begins to apply the acks, and samples so many of 100. Returns and removes those that need a decision:
        [(position among the plain acks, stream seq, consumer seq, deliveries, body, reply)]."""
        self.sample_percent = sample_percent
        taken = self.special
        self.special = []
        return taken

    def take_samples(self):
        """Returns and removes the samples."""
        taken = self.samples
        self.samples = []
        return taken

    cpdef int sample(self, AckState state, uint64_t stream_seq) except -1:
        """Samples an ack of stream_seq before it is applied: appends (stream seq, first consumer seq, deliveries,
        delivered at) to `samples` for the configured share of the acks that settle a message."""
        cdef Py_ssize_t at
        cdef Entry* entry
        if self.sample_percent == 0:
            return 0
        at = window_find(&state.window, stream_seq, 0)
        if at < 0:
            return 0
        self.sample_due += self.sample_percent
        if self.sample_due < 100:
            return 0
        self.sample_due -= 100
        entry = entry_at(&state.window, <size_t>at)
        self.samples.append((entry.seq, entry.cseq, entry.deliveries, entry.ts))
        return 0

    def apply(self, AckState state not None, size_t upto=<size_t>-1):
        """Applies the plain acks up to position `upto`; returns how many messages they settled."""
        cdef size_t end = upto if upto < self.count else self.count
        cdef size_t settled = 0
        cdef PlainAck* item
        while self.applied < end:
            item = &self.items[self.applied]
            self.applied += 1
            if self.sample_percent:
                self.sample(state, item.stream_seq)
            if state.policy == ACK_ALL:
                settled += state.ack_all(item.stream_seq, item.consumer_seq)
            elif state.policy != ACK_NONE:
                settled += <size_t>state.ack(item.stream_seq, item.consumer_seq)
        if self.applied == self.count:
            self.applied = self.count = 0
        return settled


cdef class AckSink(Sink):
    """Receives the acks of all consumers of one stream.

    Subscribe it to `$JS.ACK.<stream>.>` and to `$JS.ACK.<domain or _>.<account hash>.<stream>.>`. The tokens that
    match the `>` are `<consumer>.<five numbers>`, in the longer form optionally followed by more. An ack for an
    unknown consumer is refused, so that its sender gets "no responders".
    """

    def __cinit__(self):
        self.queues = {}

    def add(self, bytes consumer not None, AckQueue queue not None):
        """Adds acks for `consumer` to `queue` from now on."""
        self.queues[consumer] = queue
        self.last_name = None

    def remove(self, bytes consumer not None):
        """Refuses acks for a deleted consumer from now on."""
        self.queues.pop(consumer, None)
        self.last_name = None
        self.last = None

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef size_t prefix = <size_t>PyBytes_GET_SIZE(sub.subject) - 1
        cdef const char* name = m.subject + prefix
        cdef const char* end = m.subject + m.subject_len
        cdef const char* p
        cdef uint64_t numbers[ACK_NUMBERS]
        cdef int i
        cdef size_t body_len = m.body_len - m.header_len
        cdef const char* body = m.body + m.header_len
        if m.subject_len <= prefix:
            return 0
        p = <const char*>memchr(name, c".", <size_t>(end - name))
        if p == NULL:
            return 0
        if self.last_name is None or <Py_ssize_t>(p - name) != PyBytes_GET_SIZE(self.last_name) or \
                memcmp(name, PyBytes_AS_STRING(self.last_name), <size_t>(p - name)) != 0:
            token = PyBytes_FromStringAndSize(name, p - name)
            queue = self.queues.get(token)
            if queue is None:
                return 0
            self.last_name = token
            self.last = <AckQueue>queue
        p += 1
        for i in range(ACK_NUMBERS):
            if p == end:
                return 0
            p = get_uint(p, end, &numbers[i])
            if p == NULL:
                return 0
        if p != end and sub.subject.count(b".") < 5:
            return 0            # only the longer form may have more tokens
        if m.reply_len == 0 and (body_len == 0 or (body_len == 4 and memcmp(body, b"+ACK", 4) == 0) or
                                 (body_len == 3 and memcmp(body, b"+OK", 3) == 0)):
            self.last.push(numbers[1], numbers[2])
        else:
            self.last.special.append((
                self.last.count, numbers[1], numbers[2], numbers[0],
                PyBytes_FromStringAndSize(body, <Py_ssize_t>body_len),
                PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
            ))
        self.last.mark()
        return 1
