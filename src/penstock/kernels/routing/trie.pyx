# cython: auto_pickle=False
"""The trie of wildcard filters.

A level of it is a token: a node has children for literal tokens, in a hash table, one for `*` and one for `>`.
Where a filter ends, its node holds what the owner of the trie keeps of it (`state`), which a walk over the
tokens of a subject collects, `>` before `*` before the token itself.

Invariants: nodes without a state and without children are removed, so that memory follows what is subscribed now;
the hashes of a trie are all made with one seed. Deep filters cost the stack a frame for each `*` that has a literal
token beside it, no more: everything else goes without recursion.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from penstock.kernels.routing.grammar cimport is_token, token_end
from penstock.kernels.routing.literals cimport hash_bytes

cdef enum:
    TABLE_FIRST = 8


cdef inline Node* table_get(const Table* t, uint64_t key_hash, const char* key, size_t n) noexcept nogil:
    cdef size_t i
    cdef Node* node
    if t.count == 0:
        return NULL
    i = key_hash & (t.capacity - 1)
    while True:
        node = t.slots[i]
        if node == NULL:
            return NULL
        if node.hash == key_hash and node.key_len == n and memcmp(node.key, key, n) == 0:
            return node
        i = (i + 1) & (t.capacity - 1)


cdef void table_place(Table* t, Node* node) noexcept nogil:
    cdef size_t i = node.hash & (t.capacity - 1)
    while t.slots[i] != NULL:
        i = (i + 1) & (t.capacity - 1)
    t.slots[i] = node


cdef int table_put(Table* t, Node* node) except -1:
    """Adds a node whose key isn't there yet."""
    cdef Table larger
    cdef size_t i
    if 2 * (t.count + 1) > t.capacity:
        larger.capacity = 2 * t.capacity if t.capacity else TABLE_FIRST
        larger.count = t.count
        larger.slots = <Node**>calloc(larger.capacity, sizeof(Node*))
        if larger.slots == NULL:
            raise MemoryError(f"no memory for a table of {larger.capacity} subjects")
        for i in range(t.capacity):
            if t.slots[i] != NULL:
                table_place(&larger, t.slots[i])
        free(t.slots)
        t[0] = larger
    table_place(t, node)
    t.count += 1
    return 0


cdef void table_drop(Table* t, Node* node) noexcept nogil:
    """Takes out a node that is there, and closes the gap so that probing never meets a tombstone."""
    cdef size_t mask = t.capacity - 1
    cdef size_t gap = node.hash & mask
    cdef size_t i
    while t.slots[gap] != node:
        gap = (gap + 1) & mask
    i = gap
    while True:
        i = (i + 1) & mask
        if t.slots[i] == NULL:
            break
        # A node may move into the gap unless its own place lies behind the gap (cyclically).
        if ((i - (t.slots[i].hash & mask)) & mask) >= ((i - gap) & mask):
            t.slots[gap] = t.slots[i]
            gap = i
    t.slots[gap] = NULL
    t.count -= 1


cdef Node* node_new(const char* key, size_t n, uint64_t key_hash, Node* parent) except NULL:
    cdef Node* node = <Node*>calloc(1, sizeof(Node))
    if node == NULL:
        raise MemoryError("no memory for a node of the subscription index")
    if n:
        node.key = <char*>malloc(n)
        if node.key == NULL:
            free(node)
            raise MemoryError(f"no memory for a subject of {n} bytes")
        memcpy(node.key, key, n)
    node.key_len = n
    node.hash = key_hash
    node.parent = parent
    return node


cdef void node_free(Node* node) noexcept nogil:
    """Frees one node, not what hangs below it."""
    if node.children != NULL:
        free(node.children.slots)
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
    """Takes some child off a node that is being freed; NULL when it has none.

    A table gives its slots away from its end and forgets them, so that all of them are looked at once: starting at its
    beginning for each child is quadratic.
    """
    cdef Node* child = node.star
    if child != NULL:
        node.star = NULL
        return child
    child = node.tail
    node.tail = NULL
    while child == NULL and node.children != NULL and node.children.capacity:
        node.children.capacity -= 1
        child = node.children.slots[node.children.capacity]
    return child


cdef void unlink(Node* node) noexcept nogil:
    """Takes a node of the trie off its parent."""
    cdef Node* parent = node.parent
    if parent.star == node:
        parent.star = NULL
    elif parent.tail == node:
        parent.tail = NULL
    else:
        table_drop(parent.children, node)


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
        child = table_get(node.children, key_hash, token, n)
    if child != NULL or not create:
        return child
    if node.children == NULL:
        node.children = <Table*>calloc(1, sizeof(Table))
        if node.children == NULL:
            raise MemoryError("no memory for a node of the subscription index")
    child = node_new(token, n, key_hash, node)
    table_put(node.children, child)
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
            free(parent.children.slots)
            free(parent.children)
            parent.children = NULL
        node = parent


cdef void found_add(MatchSet* found, void* state) noexcept nogil:
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
            found_add(found, node.tail.state)
        if node.star == NULL and node.children == NULL:
            return
        t = token_end(p, end)
        child = NULL
        if node.children != NULL:
            found.told_apart |= t == end
            child = table_get(node.children, hash_bytes(p, <size_t>(t - p), seed), p, <size_t>(t - p))
        if t == end:
            if node.star != NULL and node.star.state != NULL:
                found_add(found, node.star.state)
            if child != NULL and child.state != NULL:
                found_add(found, child.state)
            return
        p = t + 1
        if child == NULL:
            child = node.star
            if child == NULL:
                return
        elif node.star != NULL:
            trie_walk(node.star, p, end, seed, found)
        node = child
