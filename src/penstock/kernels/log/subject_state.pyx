# cython: auto_pickle=False
"""Per-subject state of a log, and the followers notified of its messages.

SubjectState has the first and last live sequence and the count of each subject, with literal and wildcard lookups.

Literal lookups use a hash table of slot ids. Wildcards walk a trie of tokens (arrays of nodes, edges in
a hash table keyed on parent and token), so that the cost of a filter depends on its matches, not on all subjects.
Wildcard queries fill the trie, a slice each time, and later subjects are added as they appear: streams without
wildcard queries have no trie. Subjects that aren't in it yet are compared one by one (10 ns each; adding one
to the trie costs 400: a million at once would block the event loop for half a second). All subjects are compared when
a filter matches a large part of them anyway. Token bytes are slices of the text of the subject that was added first.

A subject has nodes up to the first token that it shares with no other, and is folded there: the rest of
it is read from its text.

Invariants: every slot below `indexed` with count > 0 is in the trie; Node.live is the number of
subjects at or below the node; a folded node has one subject and no children. A subject costs 40 bytes, about
8 of table and, in the trie, about 28 for a node of its own and 8 of edges, beside its text; arrays that
double have up to twice the room.
The tables of subjects and edges are those of base/id_table, since a stream may have millions of subjects; merging a
block's index prefetches many cells.
Rejected: a dict of Python objects (300 bytes per subject and a scan for every wildcard); removing trie
nodes one by one (`live` lets walks skip dead ones, and a rebuild drops them when they are half of all).

LogWatch notifies consumers with filters immediately of appended and removed messages.

So a consumer at the end of its stream knows its next messages and their number without examining the others: the cost
of a message doesn't depend on the number of consumers whose filters don't match it.

A subject without followers is marked with the current epoch, so that its next message costs one comparison.
A new filter begins a new epoch: each subject is looked up once more.

Invariant: a follower is notified once of each message that any of its filters matches. Rejected: each consumer
examining new messages (a thousand filters examine every message a thousand times); storing the followers of each
subject (it would have to be updated for every deleted consumer).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from penstock.kernels.base.id_table cimport IdCells, id_bytes, id_drop, id_first, id_free, id_next, id_put
from penstock.kernels.base.memory cimport array_grow
from penstock.kernels.log.records cimport xxh64
from penstock.kernels.routing.grammar cimport filter_matches, has_wildcard
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription


# --- subject state

cdef enum:
    REBUILD_MIN = 4096              # nodes or garbage bytes below which a rebuild isn't worth it
    SLICE = 16384                   # subjects added to the trie at once
    MOST = 8                        # a filter that matches more than 1/MOST of the subjects is compared with each
    NO_ID = 0xFFFFFFFF


cdef inline size_t token_end(const char* s, size_t start, size_t n) noexcept nogil:
    """End of the token that begins at start."""
    cdef const char* dot = <const char*>memchr(s + start, c'.', n - start) if start < n else NULL
    return n if dot == NULL else <size_t>(dot - s)


cdef inline Subject* recent_subject(SubjectState state, const char* s, size_t n) noexcept:
    """The last subject of intern(), if it is this one and has messages; else NULL.

    Messages of one subject often come together, and then leave together: that saves the hash and the look into the
    table, a twentieth of storing a message.
    """
    cdef Subject* item
    if state.recent >= state.used:
        return NULL
    item = &state.items[state.recent]
    # Subjects of one stream often begin alike, so their last bytes differ first.
    if item.count == 0 or item.text_len != n or state.arena[item.text + n - 1] != s[n - 1]:
        return NULL
    return item if memcmp(state.arena + item.text, s, n) == 0 else NULL


cdef uint32_t subject_hash(void* owner, uint32_t sid) noexcept:
    return (<SubjectState>owner).items[sid].hash


cdef uint32_t edge_hash(void* owner, uint32_t node) noexcept:
    cdef SubjectState state = <SubjectState>owner
    cdef const Node* found = &state.nodes[node]
    return state._edge_hash(found.parent, state.arena + found.token, found.token_len)


cdef class SubjectState:
    def __cinit__(self):
        # Python's string hash is seeded per process, so peers cannot construct collisions.
        self.seed = <uint64_t>hash(b"penstock.subjectstate")
        self._reset()

    def __dealloc__(self):
        self._release()

    cdef void _release(self) noexcept:
        free(self.items)
        free(self.free_ids)
        id_free(&self.table)
        free(self.arena)
        free(self.nodes)
        id_free(&self.edges)
        free(self.matched)
        free(self.stack)
        self.items = NULL
        self.free_ids = self.matched = NULL
        self.arena = NULL
        self.nodes = NULL
        self.stack = NULL

    cdef int _reset(self) except -1:
        self.count = self.used = self.capacity = self.free_count = self.free_capacity = 0
        self.arena_size = self.arena_capacity = self.arena_garbage = 0
        self.node_count = self.node_capacity = self.indexed = 0
        self.matched_capacity = self.stack_capacity = 0
        return self._start_trie()

    cdef int _start_trie(self) except -1:
        self.nodes = <Node*>array_grow(self.nodes, &self.node_capacity, 1, sizeof(Node), 16, b"nodes of subjects")
        memset(self.nodes, 0, sizeof(Node))
        self.node_count = 1
        return 0

    cdef int clear(self) except -1:
        self._release()
        return self._reset()

    cdef void clear_marks(self) noexcept:
        cdef size_t i
        for i in range(self.used):
            self.items[i].mark = 0

    # ------------------------------------------------------------------ literals

    cdef uint32_t hash_of(self, const char* s, size_t n) noexcept:
        return <uint32_t>xxh64(s, n, self.seed)

    cdef Subject* find(self, const char* s, size_t n) noexcept:
        cdef Subject* item = recent_subject(self, s, n)
        return item if item != NULL else self._find(s, n, self.hash_of(s, n))

    cdef Subject* _find(self, const char* s, size_t n, uint32_t h) noexcept:
        cdef Subject* item = self._find_in(&self.table.cells, s, n, h)
        if item == NULL and self.table.old.cells != NULL:
            item = self._find_in(&self.table.old, s, n, h)
        return item

    cdef Subject* _find_in(self, const IdCells* cells, const char* s, size_t n, uint32_t h) noexcept:
        cdef const uint32_t* cell = id_first(cells, h)
        cdef Subject* item
        while cell != NULL:
            item = &self.items[cell[0] - 1]
            if item.hash == h and item.text_len == n and memcmp(self.arena + item.text, s, n) == 0:
                return item
            cell = id_next(cells, cell)
        return NULL

    cdef Subject* intern(self, const char* s, size_t n) except NULL:
        cdef Subject* item = recent_subject(self, s, n)
        if item == NULL:
            item = self.intern_hashed(s, n, self.hash_of(s, n))
            self.recent = <uint32_t>(item - self.items)
        return item

    cdef Subject* intern_hashed(self, const char* s, size_t n, uint32_t h) except NULL:
        cdef Subject* item = self._find(s, n, h)
        cdef uint32_t sid, text
        if item != NULL:
            return item
        if n == 0 or n > 0xFFFF:
            raise ValueError(f"a subject has 1 to 65535 bytes, not {n}")
        text = self._put_text(s, n)
        if self.free_count:
            self.free_count -= 1
            sid = self.free_ids[self.free_count]
            assert sid < self.used and self.items[sid].count == 0
        else:
            if self.used >= NO_ID - 1:
                raise MemoryError("a stream holds at most 2**32 - 2 subjects")
            self.items = <Subject*>array_grow(
                self.items, &self.capacity, self.used + 1, sizeof(Subject), 16, b"subjects"
            )
            sid = <uint32_t>self.used
            self.used += 1
        item = &self.items[sid]
        memset(item, 0, sizeof(Subject))
        item.text = text
        item.text_len = <uint16_t>n
        item.hash = h
        id_put(&self.table, sid, h, subject_hash, <void*>self)
        self.count += 1
        if sid < self.indexed:
            self._index(sid)
        return item

    cdef uint32_t _put_text(self, const char* s, size_t n) except? 0xFFFFFFFF:
        cdef size_t at = self.arena_size
        if at + n >= NO_ID:
            raise MemoryError("the subjects of a stream hold at most 4 GiB of text")
        self.arena = <char*>array_grow(self.arena, &self.arena_capacity, at + n, 1, 256, b"bytes of subjects")
        memcpy(self.arena + at, s, n)
        self.arena_size = at + n
        return <uint32_t>at

    cdef int drop(self, Subject* subject) except -1:
        cdef uint32_t sid = <uint32_t>(subject - self.items)
        cdef uint32_t node = subject.node
        assert self.count > 0 and sid < self.used
        self.free_ids = <uint32_t*>array_grow(
            self.free_ids, &self.free_capacity, self.free_count + 1, 4, 16, b"subjects"
        )
        id_drop(&self.table, sid, subject.hash, subject_hash, <void*>self)
        if node:
            self.nodes[node].subject = 0
            self.nodes[node].folded = 0
            while True:
                assert node < self.node_count and self.nodes[node].live > 0
                self.nodes[node].live -= 1
                if node == 0:
                    break
                node = self.nodes[node].parent
        self.arena_garbage += subject.text_len
        subject.count = 0
        subject.node = 0
        self.free_ids[self.free_count] = sid
        self.free_count += 1
        self.count -= 1
        if self.arena_garbage > REBUILD_MIN and self.arena_garbage * 2 > self.arena_size:
            self._rebuild()
        return 0

    cdef int _rebuild(self) except -1:
        """Builds a new arena of the live texts, and resets the trie, which fills again at the next wildcard."""
        cdef size_t i, size = 0
        cdef Subject* item
        cdef size_t live_bytes = self.arena_size - self.arena_garbage
        cdef char* arena = <char*>malloc(live_bytes if live_bytes > 256 else 256)
        if arena == NULL:
            return 0  # the old one stays in use
        for i in range(self.used):
            item = &self.items[i]
            if item.count == 0:
                continue
            memcpy(arena + size, self.arena + item.text, item.text_len)
            item.text = <uint32_t>size
            item.node = 0
            size += item.text_len
        assert size == live_bytes
        free(self.arena)
        self.arena = arena
        self.arena_size = size
        self.arena_capacity = live_bytes if live_bytes > 256 else 256
        self.arena_garbage = 0
        id_free(&self.edges)
        self.indexed = 0
        return self._start_trie()

    # ------------------------------------------------------------------ the trie

    cdef uint32_t _edge_hash(self, uint32_t parent, const char* token, size_t n) noexcept:
        return <uint32_t>xxh64(token, n, self.seed + parent)

    cdef uint32_t _find_edge(self, uint32_t parent, const char* token, size_t n) noexcept:
        cdef uint32_t h = self._edge_hash(parent, token, n)
        cdef uint32_t node = self._find_edge_in(&self.edges.cells, h, parent, token, n)
        if node == 0 and self.edges.old.cells != NULL:
            node = self._find_edge_in(&self.edges.old, h, parent, token, n)
        return node

    cdef uint32_t _find_edge_in(
        self, const IdCells* cells, uint32_t h, uint32_t parent, const char* token, size_t n
    ) noexcept:
        cdef const uint32_t* cell = id_first(cells, h)
        cdef const Node* found
        while cell != NULL:
            found = &self.nodes[cell[0] - 1]
            if found.parent == parent and found.token_len == n and memcmp(self.arena + found.token, token, n) == 0:
                return cell[0] - 1
            cell = id_next(cells, cell)
        return 0

    cdef uint32_t _add_node(self, uint32_t parent, uint32_t token, size_t n) except 0:
        cdef uint32_t node = <uint32_t>self.node_count
        cdef Node* made
        if self.node_count >= NO_ID - 1:
            raise MemoryError("a stream's subjects have at most 2**32 - 2 tokens")
        self.nodes = <Node*>array_grow(
            self.nodes, &self.node_capacity, self.node_count + 1, sizeof(Node), 16, b"nodes of subjects"
        )
        made = &self.nodes[node]
        memset(made, 0, sizeof(Node))
        made.parent = parent
        made.sibling = self.nodes[parent].child
        made.token = token
        made.token_len = <uint16_t>n
        self.nodes[parent].child = node
        self.node_count += 1
        id_put(&self.edges, node, self._edge_hash(parent, self.arena + token, n), edge_hash, <void*>self)
        return node

    cdef int _index(self, uint32_t sid) except -1:
        cdef Subject* item = &self.items[sid]
        cdef size_t start = 0, end, n = item.text_len
        cdef uint32_t node = 0, child
        cdef const char* text = self.arena + item.text
        while True:
            end = token_end(text, start, n)
            child = self._find_edge(node, text + start, end - start)
            if child == 0:
                node = self._add_node(node, <uint32_t>(item.text + start), end - start)
                self.nodes[node].folded = end < n
                break
            if self.nodes[child].folded:
                self._unfold(child)
            node = child
            if end == n:
                break
            start = end + 1
        item.node = node
        self.nodes[node].subject = sid + 1
        while True:
            self.nodes[node].live += 1
            if node == 0:
                return 0
            node = self.nodes[node].parent

    cdef size_t _depth(self, uint32_t node) noexcept:
        """Bytes of the subjects at a node up to and including the node's token."""
        cdef size_t n = 0
        while node:
            n += self.nodes[node].token_len + 1
            node = self.nodes[node].parent
        return n - 1

    cdef int _unfold(self, uint32_t node) except -1:
        """Adds a node for the next token of a node's folded subject, and folds the subject there."""
        cdef uint32_t sid = self.nodes[node].subject - 1
        cdef Subject* item = &self.items[sid]
        cdef size_t start = self._depth(node) + 1
        cdef size_t end = token_end(self.arena + item.text, start, item.text_len)
        cdef uint32_t child = self._add_node(node, <uint32_t>(item.text + start), end - start)
        self.nodes[child].folded = end < item.text_len
        self.nodes[child].subject = sid + 1
        self.nodes[child].live = 1
        self.nodes[node].folded = 0
        self.nodes[node].subject = 0
        item.node = child
        return 0

    cdef int _catch_up(self) except -1:
        cdef size_t end = self.indexed + SLICE
        while self.indexed < self.used and self.indexed < end:
            if self.items[self.indexed].count:
                self._index(<uint32_t>self.indexed)
            self.indexed += 1
        return 0

    cdef int _push(self, size_t depth, uint32_t node, uint32_t position) except -1:
        self.stack = <uint64_t*>array_grow(self.stack, &self.stack_capacity, depth + 1, 8, 64, b"subjects to match")
        self.stack[depth] = (<uint64_t>position << 32) | node
        return 0

    cdef int _emit(self, size_t at, uint32_t sid) except -1:
        self.matched = <uint32_t*>array_grow(self.matched, &self.matched_capacity, at + 1, 4, 64, b"matching subjects")
        self.matched[at] = sid
        return 0

    cdef size_t match(self, const char* f, size_t n) except? 0xFFFFFFFF:
        """Walks (node, position in the filter) pairs; position n + 1: past the last token,
        n + 2: everything below matches."""
        cdef size_t found = 0, depth = 0, certain = 0, end, i
        cdef uint32_t node, child, position
        cdef Subject* item
        cdef bint all_follow
        if n == 0 or (n == 1 and f[0] == c'>'):
            for i in range(self.used):
                if self.items[i].count:
                    self._emit(found, <uint32_t>i)
                    found += 1
            return found
        if not has_wildcard(f, n):
            item = self.find(f, n)
            if item != NULL:
                self._emit(0, <uint32_t>(item - self.items))
                found = 1
            return found
        self._catch_up()
        if self._takes_most(f, n):
            return self._compare(f, n, 0, 0)
        found = self._compare(f, n, self.indexed, 0)
        self._push(0, 0, 0)
        depth = 1
        while depth:
            if found * MOST > self.indexed:
                return self._compare(f, n, 0, 0)
            depth -= 1
            node = <uint32_t>self.stack[depth]
            position = <uint32_t>(self.stack[depth] >> 32)
            if self.nodes[node].live == 0:
                continue
            if self.nodes[node].folded:
                if position == n + 2 or (position <= n and self._folded_matches(node, f + position, n - position)):
                    self._emit(found, self.nodes[node].subject - 1)
                    found += 1
                continue
            if position > n:
                if self.nodes[node].subject:
                    self._emit(found, self.nodes[node].subject - 1)
                    found += 1
                if position == n + 1:
                    continue
                child = self.nodes[node].child
                while child:
                    self._push(depth, child, position)
                    depth += 1
                    child = self.nodes[child].sibling
                continue
            end = token_end(f, position, n)
            # Everything below the next nodes matches, except subjects that end there: if these are many, comparing
            # all subjects is cheaper than walking.
            all_follow = end + 2 == n and f[n - 1] == c'>'
            if end - position == 1 and (f[position] == c'*' or (f[position] == c'>' and end == n)):
                child = self.nodes[node].child
                while child:
                    self._push(depth, child, <uint32_t>(end + 1 if f[position] == c'*' else n + 2))
                    depth += 1
                    if all_follow:
                        certain += self.nodes[child].live
                    child = self.nodes[child].sibling
                if certain > self.indexed // MOST:
                    return self._compare(f, n, 0, 0)
                continue
            child = self._find_edge(node, f + position, end - position)
            if child:
                self._push(depth, child, <uint32_t>(end + 1))
                depth += 1
        return found

    cdef size_t _compare(self, const char* f, size_t n, size_t sid, size_t found) except? 0xFFFFFFFF:
        """Adds the matching subjects from slot `sid` on to the `found` ones; returns the total."""
        cdef Subject* item
        cdef const char* text
        cdef size_t prefix = 0              # bytes before the first wildcard
        cdef size_t skipped                 # of these, the whole tokens, which need no further comparison
        cdef bint all_below
        while prefix < n and f[prefix] != c'*' and f[prefix] != c'>':
            prefix += 1
        skipped = prefix if prefix and f[prefix - 1] == c'.' else 0
        all_below = prefix + 1 == n and f[prefix] == c'>'
        while sid < self.used:
            item = &self.items[sid]
            text = self.arena + item.text
            if item.count and item.text_len > prefix and memcmp(text, f, prefix) == 0 and (
                all_below or filter_matches(f + skipped, n - skipped, text + skipped, item.text_len - skipped)
            ):
                self._emit(found, <uint32_t>sid)
                found += 1
            sid += 1
        return found

    cdef bint _takes_most(self, const char* f, size_t n) noexcept:
        """Is it literal tokens and a > that match a large part of the trie?"""
        cdef size_t start = 0, end
        cdef uint32_t node = 0
        if n < 2 or f[n - 1] != c'>' or has_wildcard(f, n - 2):
            return False
        while start < n - 1:
            end = token_end(f, start, n)
            node = self._find_edge(node, f + start, end - start)
            if node == 0:
                return False
            start = end + 1
        return <size_t>self.nodes[node].live * MOST > self.indexed

    cdef bint _folded_matches(self, uint32_t node, const char* f, size_t n) noexcept:
        """Does the rest of a filter match the tokens of a folded subject after its node?"""
        cdef Subject* item = &self.items[self.nodes[node].subject - 1]
        cdef size_t start = self._depth(node) + 1
        return filter_matches(f, n, self.arena + item.text + start, item.text_len - start)

    def memory(self):
        """Allocated bytes, for tests and measurements."""
        return (
            self.capacity * sizeof(Subject) + self.free_capacity * 4 + id_bytes(&self.table)
            + self.arena_capacity + self.node_capacity * sizeof(Node) + id_bytes(&self.edges)
            + self.matched_capacity * 4 + self.stack_capacity * 8
        )


# --- log watch

cdef enum:
    COMPARED_FILTERS_MAX = 16       # up to this many filters are compared one by one: an index takes 100 KiB


cdef class Follower:
    """Base class of followers of a log. The base class ignores all notifications."""

    cdef int on_append(self, uint64_t seq) except -1:
        return 0

    cdef int on_remove(self, uint64_t seq) except -1:
        return 0

    cdef int on_loss(self) except -1:
        return 0


cdef class Following(SinkSubscription):
    """One filter of a follower."""


cdef class LogWatch:
    def __cinit__(self):
        self.epoch = 1
        self.followers = {}
        self.filters = []
        self.null_sink = Sink()

    cdef int add(self, Follower follower, list filters) except -1:
        """Registers a new follower with its filters. 1: the epoch wrapped, and the caller must clear all marks, or old
        marks would be valid again."""
        cdef Following following
        cdef list followings = []
        for f in filters:
            following = Following(self.null_sink, f)
            following.follower = follower
            followings.append(following)
        self.followers[follower] = followings
        self.filters.extend(followings)
        if self.index is not None:
            for following in followings:
                self.index.insert(following)
        elif len(self.filters) > COMPARED_FILTERS_MAX:
            self.index = SubscriptionIndex()
            for following in self.filters:
                self.index.insert(following)
        self.epoch += 1
        if self.epoch == 0:
            self.epoch = 1
            return 1
        return 0

    cdef int drop(self, Follower follower) except -1:
        cdef list followings = self.followers.pop(follower, [])
        cdef set gone = set(followings)
        if self.index is not None:
            for following in followings:
                self.index.remove(following)
        self.filters = [following for following in self.filters if following not in gone]
        return 0

    cdef bint is_empty(self):
        return not self.followers

    cdef int notify(self, uint64_t seq, Subject* s, const char* text, size_t n, bint gone) except -1:
        cdef Following following
        cdef bint wanted = False
        for following in self.index.lookup(text, n).plain if self.index is not None else self.filters:
            if self.index is None and not filter_matches(
                PyBytes_AS_STRING(following.subject), <size_t>PyBytes_GET_SIZE(following.subject), text, n
            ):
                continue
            wanted = True
            if gone:
                if following.follower.last_removed != seq:
                    following.follower.last_removed = seq
                    following.follower.on_remove(seq)
            elif following.follower.last_appended != seq:
                following.follower.last_appended = seq
                following.follower.on_append(seq)
        if not wanted:
            s.mark = self.epoch
        return 0

    cdef int lost(self) except -1:
        cdef Follower follower
        for follower in self.followers:
            follower.on_loss()
        return 0
