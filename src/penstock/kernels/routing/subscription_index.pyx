# cython: auto_pickle=False
"""The index that maps a subject to the subscriptions that match it.

Theory of operation. Literal filters live in one hash table keyed by the whole subject (literals.pxd);
wildcard filters in a trie of tokens (filter_trie.pyx). A lookup probes the cache, then the table, then walks the trie;
none of this creates a Python object. For a literal filter with one subscription the table holds that subscription's
SubscriptionEntry; every other filter keeps its prebuilt MatchResult, so that a subject which exactly one filter
matches (a reply to `_INBOX.<id>.<n>`, never seen before and never again) costs a walk and no allocation.
The cache holds only results merged from several filters, or found by a long walk.

Invariants: a MatchResult never changes after it was returned; a cached result equals that of a new walk,
since insert and remove drop exactly the entries whose subject their filter matches; all Python
objects that the trie's nodes point to are owned by `states`, where the garbage collector sees them.

Order of a result: the literal filter first, then by the trie (`>` before `*` before the token itself);
within a filter by insertion. It depends on neither hashes nor addresses.

Rejected: a dict of bytes as the table (a bytes object and a SipHash for every token of every lookup: 300 ns
against 60); a generation number that makes every change flush the cache (each connection subscribes to its
own inbox); one cache a connection (fan-in would multiply memory for nothing gained).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from penstock.kernels.base.memory cimport array_zeroed
from penstock.kernels.routing.grammar cimport (
    check_filter, filter_matches, has_empty_token, has_wildcard, is_token, token_end,
)
from penstock.kernels.routing.literals cimport (
    Lookup, entry_in, hash_bytes, is_entry_of, literal_drop, literal_get, literal_put, literal_replace, literals_free,
    literals_seek, mix,
)
from penstock.kernels.routing.recent_match cimport (
    differs_in_last_token, is_recent, is_recent_literal, keep_recent,
)
from penstock.kernels.wire.sinks cimport (
    PeerSink, RemoteSubscription, SubscriptionEntry, SinkSubscription, entry_free, entry_new, is_remote,
)
from penstock.kernels.routing.filter_trie cimport (
    MatchSet, Node, match_set_add, match_set_free, match_set_init, trie_free, trie_new, trie_node, trie_prune,
    trie_walk,
)

cdef enum:
    CACHE_SIZE = 2048               # entries; a power of two
    CACHED_SUBJECT_MAX = 255        # longer subjects are looked up each time
    WALK_SHORT = 8                  # nodes visited; a longer walk is worth caching on its own
    FILTER_MAX = 1 << 15            # bytes; bounds the depth of the walk
    FETCH_FROM = 1000               # literal filters; the memory of fewer stays in the processor's cache anyway

# Differs between processes (unless PYTHONHASHSEED is set), so that a client cannot construct collisions.
cdef uint64_t PROCESS_SEED = <uint64_t><Py_ssize_t>hash(b"penstock subject index")


cdef class MatchResult:
    """The receivers of a subject: `plain` subscriptions, and `groups`, each a list of queue group members.

    Both are immutable snapshots; do not modify them.
    """

    @property
    def elsewhere(self):
        if self.remote is None:
            return []
        queues = [(<SharedGroup>group).queue for group in self.remote.shared]
        return [b"", *queues] if self.remote.plain_count else queues

    def __repr__(self):
        return f"MatchResult(plain={self.plain!r}, groups={self.groups!r})"


cdef MatchResult new_result(list plain, list groups):
    cdef MatchResult result = MatchResult.__new__(MatchResult)
    result.plain = plain
    result.groups = groups
    return result


cdef MatchResult NO_RECEIVERS = new_result([], [])


cdef MatchResult result_of_members(list members):
    cdef list plain = []
    cdef dict groups = {}
    cdef list remote = None
    cdef SinkSubscription sub
    cdef MatchResult result
    for sub in members:
        if is_remote(sub):
            if remote is None:
                remote = []
            remote.append(sub)
        elif sub.queue:
            groups.setdefault(sub.queue, []).append(sub)
        else:
            plain.append(sub)
    result = new_result(plain, list(groups.values()))
    if remote is not None:
        result.remote = remote_receivers(remote, groups)
    return result


cdef RemoteReceivers remote_receivers(list remote, dict local_groups):
    cdef RemoteReceivers made = RemoteReceivers.__new__(RemoteReceivers)
    cdef dict targets = {}
    cdef dict shared = {}
    cdef SinkSubscription sub
    cdef SharedGroup group
    for sub in remote:
        if not sub.queue:
            targets[sub.sink] = None
    made.plain_count = len(targets)
    for sub in remote:
        if not sub.queue:
            continue
        targets[sub.sink] = None
        group = shared.get(sub.queue)
        if group is None:
            group = shared[sub.queue] = SharedGroup.__new__(SharedGroup)
            group.queue = sub.queue
            group.local = local_groups.get(sub.queue, [])
            group.remote = []
        group.remote.append(sub)
    made.targets = list(targets)
    made.local_groups = [local_groups[queue] for queue in local_groups if queue not in shared]
    made.shared = list(shared.values())
    return made


cdef inline bint follows_imports(SinkSubscription sub):
    """Do stream imports serve the subscription? Not those of other servers of the cluster, which have the same
    imports."""
    return not is_remote(sub) or (<PeerSink>sub.sink).follows_imports


cdef class SharedGroup:
    """A queue group with members on other servers, which routing weighs against those of this server."""


cdef class RemoteReceivers:
    """The other servers that a subject concerns. Immutable, like the MatchResult it belongs to."""


cdef class FilterState:
    """The subscriptions of one filter, in the order of insertion."""

    def __dealloc__(self):
        if self.entry != NULL:
            entry_free(self.entry)

    cdef int add(self, SinkSubscription sub) except -1:
        self.members.append(sub)
        self.result = None
        return 0

    cdef int drop(self, SinkSubscription sub) except -1:
        self.members.remove(sub)
        self.result = None
        return 0

    cdef SubscriptionEntry* single(self):
        """The entry of the only subscription, when it is in no queue group; else NULL."""
        if len(self.members) == 1 and not (<SinkSubscription>self.members[0]).queue:
            return (<SinkSubscription>self.members[0]).entry
        return NULL


cdef inline MatchResult result_of(FilterState state):
    if state.result is None:
        state.result = result_of_members(state.members)
    return state.result


cdef MatchResult merged(const SubscriptionEntry* single, MatchSet* found):
    """Merges a literal filter's only subscription, unless it is NULL, and the subscriptions of several filters into
    one result; a queue group spans all filters its members subscribed to."""
    cdef list members = []
    cdef size_t i
    if single != NULL:
        members.append(<SinkSubscription>single.subscription)
    for i in range(found.count):
        members.extend((<FilterState>found.states[i]).members)
    return result_of_members(members)


cdef class Announcer:
    """Base class of what announces subscriptions to other servers. The base class announces none."""

    cdef int inserted(self, SinkSubscription sub) except -1:
        return 0

    cdef int removed(self, SinkSubscription sub) except -1:
        return 0

    cdef int reweighed(self, RemoteSubscription sub, int64_t delta) except -1:
        return 0


cdef bint is_awaited(const char* subject, size_t n) noexcept nogil:
    return n > 4 and subject[0] == c'_' and memcmp(subject, b"_R_.", 4) == 0


cdef class AwaitedReplies:
    """Base class of tables of open requests. The base class is an empty table."""

    cdef MatchResult find(self, const char* subject, size_t n):
        return None

    cdef MatchResult find_wanted(self, const char* subject, size_t n):
        return None

    cdef int unsubscribed(self, const char* f, size_t n) except -1:
        return 0


cdef class SubscriptionIndex:
    """All subscriptions of one account.

    random_state -- seeds the choice of queue group members.
    """

    def __cinit__(self):
        self.seed = mix(PROCESS_SEED)
        self.random_state = <uint64_t>0x2545F4914F6CDD1D
        self.members = {}
        self.states = []
        self.free_slots = []
        self.cached = [None] * CACHE_SIZE
        self.cache = <CacheEntry*>array_zeroed(CACHE_SIZE, sizeof(CacheEntry), b"cached subjects")
        self.root = trie_new()

    def __dealloc__(self):
        cdef size_t i
        if self.cache != NULL:
            for i in range(<size_t>CACHE_SIZE):
                free(self.cache[i].key)
            free(self.cache)
        literals_free(&self.literals)
        trie_free(self.root)

    def __len__(self):
        return <Py_ssize_t>self.count

    cdef uint64_t random(self) noexcept:
        """Xorshift, 64 bits, never zero."""
        cdef uint64_t x = self.random_state
        if x == 0:
            x = <uint64_t>0x2545F4914F6CDD1D
        x ^= x >> 12
        x ^= x << 25
        x ^= x >> 27
        self.random_state = x
        return x

    # --- lookup

    cdef MatchResult lookup(self, const char* subject, size_t n):
        cdef Lookup lookup
        lookup.subject, lookup.n, lookup.index = subject, n, NULL
        return self.lookup_or_single(&lookup, NULL)

    cdef MatchResult lookup_or_single(self, Lookup* lookup, SubscriptionEntry** single):
        """Like lookup(). If only one subscription matches, and it is in no queue group, it may return None and set
        `single` to the entry of that subscription instead.

        With `single` NULL it always returns a result. Both are borrowed from the index.
        """
        cdef CacheEntry* entry
        cdef size_t i
        cdef size_t n = lookup.n
        if n == 0:
            return NO_RECEIVERS
        self.num_lookups += 1
        if single != NULL and is_recent_literal(&self.recent_literal, lookup.subject, n, self.generation):
            single[0] = self.recent_literal.entry
            return None
        if is_recent(&self.recent, lookup.subject, n, self.generation):
            return result_of(<FilterState>self.recent.state)
        if lookup.index != <void*>self:
            lookup.hash = hash_bytes(lookup.subject, n, self.seed)
        if self.replies is not None and is_awaited(lookup.subject, n):
            return self.with_replies(lookup.subject, n, self.find(lookup, NULL))
        if self.in_cache:
            i = lookup.hash & (CACHE_SIZE - 1)
            entry = &self.cache[i]
            if entry.hash == lookup.hash and entry.key_len == n and memcmp(entry.key, lookup.subject, n) == 0:
                return <MatchResult>self.cached[i]
        return self.find(lookup, single)

    cdef MatchResult with_replies(self, const char* subject, size_t n, MatchResult result):
        """Merges the result and the receiver of replies on the subject."""
        cdef MatchResult awaited = self.replies.find(subject, n)
        cdef MatchResult both
        if awaited is None:
            return result
        if not result.plain and not result.groups and result.remote is None:
            return awaited
        both = MatchResult.__new__(MatchResult)
        both.plain = result.plain + awaited.plain
        both.groups = result.groups
        both.remote = result.remote
        return both

    cdef SubscriptionEntry* literal_of(self, const Lookup* lookup) noexcept:
        cdef uintptr_t cell = lookup.cell
        if lookup.index == <void*>self and lookup.generation == self.generation:
            if cell == 0:
                return NULL
            if is_entry_of(entry_in(cell), lookup.hash, lookup.subject, lookup.n):
                return entry_in(cell)
        return literal_get(&self.literals, lookup.hash, lookup.subject, lookup.n)

    cdef MatchResult find(self, const Lookup* lookup, SubscriptionEntry** single):
        """Looks up without the cache, and caches results that are expensive to build."""
        cdef MatchSet found
        cdef const char* subject = lookup.subject
        cdef size_t n = lookup.n
        cdef SubscriptionEntry* literal = self.literal_of(lookup)
        cdef SubscriptionEntry* only = NULL
        cdef MatchResult result
        if literal == NULL and differs_in_last_token(&self.recent, subject, n, self.generation):
            return result_of(<FilterState>self.recent.state)
        self.num_walks += 1
        match_set_init(&found)
        if literal != NULL:
            if literal.subscription != NULL:
                only = literal
            else:
                match_set_add(&found, literal.receiver)
        trie_walk(self.root, subject, subject + n, self.seed, &found)
        if single != NULL and only != NULL and found.count == 0:
            single[0] = only
            if not is_awaited(subject, n):      # a table of open requests may have a receiver of it too
                self.recent_literal.entry, self.recent_literal.generation = only, self.generation
            return None
        try:
            if found.out_of_memory:
                raise MemoryError("no memory to collect the filters that match a subject")
            if (only == NULL and found.count == 0) or (literal == NULL and has_empty_token(subject, n)):
                result = NO_RECEIVERS
            elif only != NULL or found.count > 1:
                result = merged(only, &found)
            else:
                result = result_of(<FilterState>found.states[0])
                if literal == NULL and not is_awaited(subject, n):
                    keep_recent(&self.recent, subject, n, self.generation, found.states[0], found.tests_last_token)
        finally:
            match_set_free(&found)
        if only != NULL or found.count > 1 or found.visited > WALK_SHORT:
            self.remember(subject, n, lookup.hash, result)
        return result

    cdef int remember(self, const char* subject, size_t n, uint64_t key_hash, MatchResult result) except -1:
        cdef size_t i = key_hash & (CACHE_SIZE - 1)
        cdef CacheEntry* entry = &self.cache[i]
        cdef char* key
        cdef object _old = self.cached[i]   # released only when the entry is consistent again
        if n > CACHED_SUBJECT_MAX:
            return 0
        self.forget(i)
        if entry.key_capacity < n:
            key = <char*>realloc(entry.key, n)
            if key == NULL:
                raise MemoryError("no memory to cache a subject")
            entry.key = key
            entry.key_capacity = <uint32_t>n
        memcpy(entry.key, subject, n)
        entry.key_len = <uint32_t>n
        entry.hash = key_hash
        entry.bucket = self.bucket_of(subject, n)
        self.in_cache += 1
        self.in_bucket[entry.bucket] += 1
        self.cached[i] = result
        return 0

    cdef int forget(self, size_t i) except -1:
        cdef CacheEntry* entry = &self.cache[i]
        if entry.key_len:
            entry.key_len = 0
            self.in_cache -= 1
            self.in_bucket[entry.bucket] -= 1
            self.cached[i] = None
        return 0

    cdef uint32_t bucket_of(self, const char* s, size_t n) noexcept:
        return <uint32_t>(hash_bytes(s, <size_t>(token_end(s, s + n) - s), self.seed) & (BUCKETS - 1))

    cdef int invalidate(self, const char* f, size_t n, bint wildcard) except -1:
        """Drops the cached results of all subjects that filter f matches, and no others."""
        cdef size_t i
        cdef uint32_t bucket = BUCKETS      # any
        cdef uint64_t key_hash
        cdef CacheEntry* entry
        if self.in_cache == 0:
            return 0
        if not wildcard:
            key_hash = hash_bytes(f, n, self.seed)
            i = key_hash & (CACHE_SIZE - 1)
            entry = &self.cache[i]
            if entry.hash == key_hash and entry.key_len == n and memcmp(entry.key, f, n) == 0:
                self.forget(i)
            return 0
        if f[0] != c'>' and not is_token(f, token_end(f, f + n), c'*'):
            bucket = self.bucket_of(f, n)
            if self.in_bucket[bucket] == 0:
                return 0
        for i in range(<size_t>CACHE_SIZE):
            entry = &self.cache[i]
            if entry.key_len and (bucket == BUCKETS or entry.bucket == bucket):
                if filter_matches(f, n, entry.key, entry.key_len):
                    self.forget(i)
        return 0

    cdef void seek(self, Lookup* lookups, size_t count) noexcept:
        cdef size_t i
        if self.literals.count >= FETCH_FROM:
            literals_seek(&self.literals, lookups, count, self.seed)
            for i in range(count):
                lookups[i].index = <void*>self
                lookups[i].generation = self.generation

    # --- changes

    cdef FilterState new_state(self):
        cdef FilterState state = FilterState.__new__(FilterState)
        state.members = []
        if self.free_slots:
            state.slot = self.free_slots.pop()
            self.states[state.slot] = state
        else:
            state.slot = <size_t>len(self.states)
            self.states.append(state)
        return state

    cdef int drop_state(self, FilterState state) except -1:
        self.states[state.slot] = None
        self.free_slots.append(state.slot)
        return 0

    cdef FilterState new_literal_state(self, const char* f, size_t n):
        """State of a literal filter with an entry of its own in the table."""
        cdef FilterState state = self.new_state()
        try:
            state.entry = entry_new(f, n, NULL, 0)
        except MemoryError:
            self.drop_state(state)
            raise
        state.entry.receiver = <void*>state
        return state

    cdef int insert_literal(self, const char* f, size_t n, SinkSubscription sub) except -1:
        cdef uint64_t key_hash = hash_bytes(f, n, self.seed)
        cdef SubscriptionEntry* entry = literal_get(&self.literals, key_hash, f, n)
        cdef FilterState state
        if entry == NULL and not sub.queue:
            return literal_put(&self.literals, sub.entry, key_hash)
        if entry != NULL and entry.subscription == NULL:
            state = <FilterState>entry.receiver
        else:
            state = self.new_literal_state(f, n)
            if entry == NULL:
                literal_put(&self.literals, state.entry, key_hash)
            else:
                state.add(<SinkSubscription>entry.subscription)
                literal_replace(&self.literals, entry, state.entry, key_hash)
        state.add(sub)
        return 0

    cdef int remove_literal(self, const char* f, size_t n, SinkSubscription sub) except -1:
        cdef uint64_t key_hash = hash_bytes(f, n, self.seed)
        cdef SubscriptionEntry* entry = literal_get(&self.literals, key_hash, f, n)
        cdef SubscriptionEntry* single
        cdef FilterState state
        if entry.subscription != NULL:
            literal_drop(&self.literals, entry, key_hash)
            return 0
        state = <FilterState>entry.receiver
        state.drop(sub)
        single = state.single()
        if single != NULL:
            literal_replace(&self.literals, entry, single, key_hash)
        elif not state.members:
            literal_drop(&self.literals, entry, key_hash)
        else:
            return 0
        self.drop_state(state)
        return 0

    cdef int insert_wildcard(self, const char* f, size_t n, SinkSubscription sub) except -1:
        cdef Node* node = trie_node(self.root, f, n, self.seed, True)
        cdef FilterState state
        if node.state == NULL:
            state = self.new_state()
            node.state = <void*>state
        else:
            state = <FilterState>node.state
        state.add(sub)
        return 0

    cdef int remove_wildcard(self, const char* f, size_t n, SinkSubscription sub) except -1:
        cdef Node* node = trie_node(self.root, f, n, self.seed, False)
        cdef FilterState state = <FilterState>node.state
        state.drop(sub)
        if not state.members:
            node.state = NULL
            self.drop_state(state)
            trie_prune(node)
        return 0

    cpdef int insert(self, SinkSubscription sub) except -1:
        """Adds a subscription. Raises ValueError for an invalid filter and for one that is in an index."""
        cdef const char* f
        cdef size_t n
        cdef bint wildcard
        if sub is None:
            raise TypeError("insert() takes a Subscription, not None")
        check_filter(sub.subject)
        f, n = PyBytes_AS_STRING(sub.subject), <size_t>PyBytes_GET_SIZE(sub.subject)
        wildcard = has_wildcard(f, n)
        if n > FILTER_MAX:
            raise ValueError(f"a subject filter has {n} bytes, at most {FILTER_MAX} are allowed")
        if sub.indexed:
            raise ValueError(f"{sub!r} is in an index already; make a new Subscription")
        if wildcard:
            self.insert_wildcard(f, n, sub)
        else:
            self.insert_literal(f, n, sub)
        self.members[sub] = None
        sub.indexed = True
        self.count += 1
        self.generation += 1
        self.invalidate(f, n, wildcard)
        if self.on_insert is not None:
            self.on_insert(sub)
        if self.announcer is not None:
            self.announcer.inserted(sub)
        if self.watcher is not None and follows_imports(sub):
            self.watcher.inserted(sub)
        return 0

    def call_after(self, on_insert, on_remove):
        """Calls these with the subscription after every insert or removal; None: no calls."""
        self.on_insert = on_insert
        self.on_remove = on_remove

    cpdef bint remove(self, SinkSubscription sub) except -1:
        """Removes a subscription; False when it isn't in this index."""
        cdef const char* f
        cdef size_t n
        cdef bint wildcard
        if sub is None or sub not in self.members:
            return False
        f, n = PyBytes_AS_STRING(sub.subject), <size_t>PyBytes_GET_SIZE(sub.subject)
        wildcard = has_wildcard(f, n)
        if wildcard:
            self.remove_wildcard(f, n, sub)
        else:
            self.remove_literal(f, n, sub)
        del self.members[sub]
        sub.indexed = False
        self.count -= 1
        self.generation += 1
        self.invalidate(f, n, wildcard)
        if self.on_remove is not None:
            self.on_remove(sub)
        if self.announcer is not None:
            self.announcer.removed(sub)
        if self.watcher is not None and follows_imports(sub):
            self.watcher.removed(sub)
        if self.replies is not None:
            self.replies.unsubscribed(f, n)
        return True

    # --- for Python

    def cache_fanout(self):
        """(entries in the cache, receivers of all of them, receivers of the one that has most)."""
        cdef MatchResult result
        cdef Py_ssize_t each
        cdef Py_ssize_t most = 0
        cdef Py_ssize_t all_of_them = 0
        for result in self.cached:
            if result is not None:
                each = len(result.plain) + len(result.groups)
                all_of_them += each
                most = max(most, each)
        return self.in_cache, all_of_them, most

    def match(self, bytes subject not None):
        """The receivers of a message on this literal subject."""
        return self.lookup(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))

    def has_interest(self, bytes subject not None):
        """Does a message on this literal subject have a receiver?"""
        cdef MatchResult result = self.lookup(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))
        return bool(result.plain) or bool(result.groups) or result.remote is not None

    def subscriptions(self):
        """All subscriptions, in the order in which they were inserted."""
        return list(self.members)
