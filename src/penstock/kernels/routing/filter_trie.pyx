# cython: auto_pickle=False
"""A trie of wildcard filters, and sets of filters that answer overlap and coverage queries with it.

Trie. Each level is one token: a node has children for literal tokens, in a hash table, one for `*` and one for `>`.
The node where a filter ends holds the `state` that the trie's owner associates with it. A walk over the tokens of a
subject collects these states, `>` before `*` before the literal token.

Invariants: nodes without a state and without children are removed, so that memory is proportional to the current
subscriptions; all hashes of a trie use one seed. The walk recurses only for a `*` that has a literal sibling; all
other steps are iterative, so deep filters do not exhaust the stack.

FilterSet. Answers which filters of a set overlap or cover another filter, or match a subject. The filters are in a
trie, so that a query costs the nodes it visits and not a comparison with every filter.

A `*` in the query visits every node of its level, and a `*` in the set adds one. Filters can be chosen so that
a query visits nearly all nodes (`a1.x`, `a2.x`, ... queried for `*.y`): comparing n of them is quadratic then, and
no structure is known that avoids that. So a caller gives the number of nodes that a query may visit, and gets
WorkLimitError beyond that, because the event loop waits for the result.

Invariants: all filters are valid; a node of the trie has a state while its filter is in the set, and the state is
the list of owners that `members` keeps. A walk stores the nodes still to visit on the heap and does not recurse.
Rejected: comparing pairs (4,000 filters are 16 million comparisons); sorting (wildcards have no order).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from penstock.kernels.base.hash_table cimport (
    Cell, HashTable, table_drop, table_first, table_free, table_next, table_put, table_reserve,
)
from penstock.kernels.base.memory cimport array_grow, array_new, array_zeroed
from penstock.kernels.routing.grammar cimport check_filter, is_token, token_end
from penstock.kernels.routing.literals cimport hash_bytes

from penstock.kernels.routing.grammar import filters_overlap


# --- trie

cdef inline Node* child_in(const HashTable* t, uint64_t key_hash, const char* key, size_t n) noexcept nogil:
    cdef Cell* cell = table_first(t, key_hash)
    cdef Node* node
    while cell != NULL:
        node = <Node*>cell.value
        if node.key_len == n and memcmp(node.key, key, n) == 0:
            return node
        cell = table_next(t, cell)
    return NULL


cdef Node* node_new(const char* key, size_t n, uint64_t key_hash, Node* parent) except NULL:
    cdef Node* node = <Node*>array_zeroed(1, sizeof(Node), b"nodes of the subscription index")
    if n:
        try:
            node.key = <char*>array_new(n, 1, b"bytes of a subject")
        except MemoryError:
            free(node)
            raise
        memcpy(node.key, key, n)
    node.key_len = n
    node.hash = key_hash
    node.parent = parent
    return node


cdef void node_free(Node* node) noexcept nogil:
    """Frees one node, not its children."""
    if node.children != NULL:
        table_free(node.children)
        free(node.children)
    free(node.key)
    free(node)


cdef inline bint is_bare(Node* node) noexcept nogil:
    """Has it neither a state nor children?"""
    return (
        node.state == NULL and node.star == NULL and node.tail == NULL
        and (node.children == NULL or node.children.count == 0)
    )


cdef Node* take_child(Node* node) noexcept nogil:
    """Detaches some child of a node that is being freed; NULL when it has none.

    Takes children from the end of the table and shrinks the table, so that each cell is visited once: a search from
    the beginning for each child would be quadratic.
    """
    cdef Node* child = node.star
    if child != NULL:
        node.star = NULL
        return child
    child = node.tail
    node.tail = NULL
    while child == NULL and node.children != NULL and node.children.capacity:
        node.children.capacity -= 1
        child = <Node*>node.children.cells[node.children.capacity].value
    return child


cdef void unlink(Node* node) noexcept nogil:
    """Removes a node from its parent."""
    cdef Node* parent = node.parent
    cdef Cell* cell
    if parent.star == node:
        parent.star = NULL
    elif parent.tail == node:
        parent.tail = NULL
    else:
        cell = table_first(parent.children, node.hash)
        while <Node*>cell.value != node:
            cell = table_next(parent.children, cell)
        table_drop(parent.children, cell)


cdef Node* trie_new() except NULL:
    return node_new(b"", 0, 0, NULL)


cdef void trie_free(Node* root) noexcept nogil:
    cdef Node* node = root
    cdef Node* child
    while node != NULL:         # bottom up, without recursion: filters may be deep
        child = take_child(node)
        if child == NULL:
            child = node.parent
            node_free(node)
        node = child


cdef Node* child_of(Node* node, const char* token, size_t n, uint64_t seed, bint create) except? NULL:
    cdef uint64_t key_hash = hash_bytes(token, n, seed)
    cdef Node* child = NULL
    if node.children != NULL:
        child = child_in(node.children, key_hash, token, n)
    if child != NULL or not create:
        return child
    if node.children == NULL:
        node.children = <HashTable*>array_zeroed(1, sizeof(HashTable), b"children of the subscription index")
    table_reserve(node.children, node.children.count + 1)       # may fail: before there is a child to free
    child = node_new(token, n, key_hash, node)
    table_put(node.children, key_hash, <uint64_t>child)
    return child


cdef Node* trie_node(Node* root, const char* f, size_t n, uint64_t seed, bint create) except? NULL:
    cdef Node* node = root
    cdef Node* child
    cdef const char* end = f + n
    cdef const char* t
    while True:
        t = token_end(f, end)
        if is_token(f, t, c'*'):
            if node.star == NULL and create:
                node.star = node_new(f, 1, 0, node)
            child = node.star
        elif is_token(f, t, c'>'):
            if node.tail == NULL and create:
                node.tail = node_new(f, 1, 0, node)
            child = node.tail
        else:
            child = child_of(node, f, <size_t>(t - f), seed, create)
        if child == NULL or t == end:
            return child
        node = child
        f = t + 1


cdef void trie_prune(Node* node) noexcept nogil:
    cdef Node* parent
    while node.parent != NULL and is_bare(node):
        parent = node.parent
        unlink(node)
        node_free(node)
        if parent.children != NULL and parent.children.count == 0:
            table_free(parent.children)
            free(parent.children)
            parent.children = NULL
        node = parent


cdef void match_set_add(MatchSet* found, void* state) noexcept nogil:
    cdef void** states
    if found.count == found.capacity:
        states = <void**>malloc(2 * found.capacity * sizeof(void*))
        if states == NULL:
            found.out_of_memory = True
            return
        memcpy(states, found.states, found.count * sizeof(void*))
        if found.states != &found.inline_states[0]:
            free(found.states)
        found.states = states
        found.capacity *= 2
    found.states[found.count] = state
    found.count += 1


cdef void trie_walk(Node* node, const char* p, const char* end, uint64_t seed, MatchSet* found) noexcept nogil:
    cdef const char* t
    cdef Node* child
    while True:
        found.visited += 1
        if node.tail != NULL and node.tail.state != NULL:
            match_set_add(found, node.tail.state)
        if node.star == NULL and node.children == NULL:
            return
        t = token_end(p, end)
        child = NULL
        if node.children != NULL:
            found.tests_last_token |= t == end
            child = child_in(node.children, hash_bytes(p, <size_t>(t - p), seed), p, <size_t>(t - p))
        if t == end:
            if node.star != NULL and node.star.state != NULL:
                match_set_add(found, node.star.state)
            if child != NULL and child.state != NULL:
                match_set_add(found, child.state)
            return
        p = t + 1
        if child == NULL:
            child = node.star
            if child == NULL:
                return
        elif node.star != NULL:
            trie_walk(node.star, p, end, seed, found)
        node = child


# --- filter set

WORK_MAX = 1_000_000


class WorkLimitError(ValueError):
    """A query would visit more nodes than allowed: too many filters with wildcards."""


# A node whose children the walk visits next, and the query's tokens for them; NULL: everything below matches.
cdef struct Step:
    Node* node
    const char* rest

cdef class Walk:
    """State of one or more queries: what they search for, and the pending steps.

    covering: search filters that match everything the query matches, instead of such that overlap it.
    besides: an owner whose filters do not count. every: collects the owners of all results; None: stop at the first.
    """
    cdef bint covering
    cdef object besides
    cdef set every
    cdef Node* own                  # of the query's own filter, which does not count either
    cdef uint64_t work
    cdef uint64_t work_max
    cdef Step* steps
    cdef size_t count
    cdef size_t capacity

    def __cinit__(self, uint64_t work_max, bint covering=False, besides=None, set every=None):
        self.work_max = work_max
        self.covering = covering
        self.besides = besides
        self.every = every

    def __dealloc__(self):
        free(self.steps)

    cdef int push(self, Node* node, const char* rest) except -1:
        self.steps = <Step*>array_grow(
            self.steps, &self.capacity, self.count + 1, sizeof(Step), 64, b"places to compare subjects at"
        )
        self.steps[self.count].node = node
        self.steps[self.count].rest = rest
        self.count += 1
        return 0

    cdef bint answers(self, Node* node) except -1:
        """Handles the filter that ends at `node`, if any; True ends the walk."""
        cdef list owners
        if node.state == NULL or node == self.own:
            return False
        owners = <list>node.state
        if self.every is not None:
            self.every.update(owners)
            return False
        return self.besides is None or len(owners) > 1 or owners[0] != self.besides

    cdef bint enter(self, Node* child, const char* following, bint last, bint below) except -1:
        """Visits a matching child. last: no token is left. below: everything below it matches as well."""
        self.work += 1
        if self.work > self.work_max:
            raise WorkLimitError(
                f"comparing the subjects takes more than {self.work_max} steps: use fewer, or fewer with wildcards"
            )
        if (last or below) and self.answers(child):
            return True
        if not last or below:
            self.push(child, NULL if below else following)
        return False

    cdef bint step(self, const Step* s, const char* end, uint64_t seed) except -1:
        """Visits the children of a node that match the next token; True ends the walk."""
        cdef Node* node = s.node
        cdef Node* child
        cdef const char* t = end
        cdef const char* rest = s.rest
        cdef bint below = rest == NULL, star = False
        cdef size_t i
        if not below:
            t = token_end(rest, end)
            below = is_token(rest, t, c">")
            star = is_token(rest, t, c"*")
        if node.tail != NULL and self.answers(node.tail):
            return True
        if below and self.covering:
            return False                    # only another > covers >
        if node.star != NULL and self.enter(node.star, t + 1, t == end, below):
            return True
        if node.children == NULL or (star and self.covering):
            return False
        if not below and not star:
            child = trie_node(node, rest, <size_t>(t - rest), seed, False)
            return child != NULL and self.enter(child, t + 1, t == end, False)
        for i in range(node.children.capacity):
            child = <Node*>node.children.cells[i].value
            if child != NULL and self.enter(child, t + 1, t == end, below):
                return True
        return False


cdef class FilterSet:
    cdef Node* root
    cdef uint64_t seed
    cdef dict members               # filter -> [owner, ...]

    def __cinit__(self):
        self.members = {}
        self.seed = <uint64_t>hash(b"penstock.filterset")
        self.root = trie_new()

    def __dealloc__(self):
        trie_free(self.root)

    def __len__(self):
        return len(self.members)

    def add(self, bytes f not None, owner):
        cdef Node* node
        cdef list owners = <list>self.members.get(f)
        if owners is not None:
            if owner not in owners:
                owners.append(owner)
            return
        check_filter(f)
        owners = [owner]
        node = trie_node(self.root, PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f), self.seed, True)
        self.members[f] = owners
        node.state = <void*>owners

    def discard(self, bytes f not None, owner):
        cdef Node* node
        cdef list owners = <list>self.members.get(f)
        if owners is None or owner not in owners:
            return
        owners.remove(owner)
        if owners:
            return
        node = trie_node(self.root, PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f), self.seed, False)
        node.state = NULL
        del self.members[f]
        trie_prune(node)

    def overlaps(self, list filters not None, *, besides=None, uint64_t work_max=WORK_MAX):
        cdef Walk walk = Walk(work_max, False, besides)
        for f in filters:
            check_filter(<bytes?>f)
            if self.run(walk, <bytes>f):
                return True
        return False

    def covers(self, bytes f not None, *, uint64_t work_max=WORK_MAX):
        check_filter(f)
        return self.run(Walk(work_max, True), f)

    def owners_overlapping(self, bytes f not None, *, uint64_t work_max=WORK_MAX):
        cdef set found = set()
        check_filter(f)
        self.run(Walk(work_max, False, None, found), f)
        return found

    def owners_matching(self, bytes subject not None):
        cdef MatchSet found
        cdef const char* p = PyBytes_AS_STRING(subject)
        cdef size_t i
        cdef list owners = []
        match_set_init(&found)
        trie_walk(self.root, p, p + PyBytes_GET_SIZE(subject), self.seed, &found)
        try:
            if found.out_of_memory:
                raise MemoryError("no memory for the filters that match a subject")
            for i in range(found.count):
                owners.extend(<list>found.states[i])
        finally:
            match_set_free(&found)
        return owners

    cdef Node* node_of(self, bytes f) except? NULL:
        return trie_node(self.root, PyBytes_AS_STRING(f), <size_t>PyBytes_GET_SIZE(f), self.seed, False)

    cdef bint run(self, Walk walk, bytes f) except -1:
        """Does the query for this filter have a result?"""
        cdef const char* p = PyBytes_AS_STRING(f)
        cdef const char* end = p + PyBytes_GET_SIZE(f)
        cdef Step s
        walk.count = 0
        walk.push(self.root, p)
        while walk.count:
            walk.count -= 1
            s = walk.steps[walk.count]
            if walk.step(&s, end, self.seed):
                return True
        return False


def overlapping_pair(list filters not None, *, uint64_t work_max=WORK_MAX):
    cdef FilterSet filter_set = FilterSet()
    cdef Walk walk
    cdef Py_ssize_t i, j
    for i in range(len(filters)):
        filter_set.add(filters[i], i)
    walk = Walk(work_max)
    for i in range(len(filters)):
        walk.besides = i
        if filter_set.run(walk, <bytes>filters[i]):
            for j in range(i + 1, len(filters)):
                if filters_overlap(filters[i], filters[j]):
                    return i, j
    return None


def any_covered(list filters not None, *, uint64_t work_max=WORK_MAX):
    return len(uncovered(filters, work_max=work_max)) < len(filters)


def uncovered(list filters not None, *, uint64_t work_max=WORK_MAX):
    cdef FilterSet filter_set = FilterSet()
    cdef Walk walk = Walk(work_max, True)
    cdef list found = []
    for f in filters:
        filter_set.add(f, None)
    for f in filter_set.members:            # each once, in their order
        walk.own = filter_set.node_of(<bytes>f)
        if not filter_set.run(walk, <bytes>f):
            found.append(f)
    return found
