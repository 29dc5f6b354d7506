"""The trie of wildcard filters, and sets of filters that are compared with its help."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from penstock.kernels.base.hash_table cimport HashTable


cdef enum:
    FOUND_INLINE = 32

# A node of the trie of wildcard filters; its key is one token.
cdef struct Node:
    uint64_t hash
    char* key
    size_t key_len
    Node* parent
    Node* star                      # child for the token *
    Node* tail                      # child for the token >
    HashTable* children             # children for literal tokens, by hash; NULL while there are none
    void* state                     # of the filter that ends here, the owner's; NULL when none does

# The states that a walk collects.
cdef struct MatchSet:
    void** states
    size_t count
    size_t capacity
    size_t visited
    bint tests_last_token           # the walk compared the last token with literal tokens
    bint out_of_memory
    void* inline_states[FOUND_INLINE]

cdef Node* trie_new() except NULL                   # the root of an empty trie
cdef void trie_free(Node* root) noexcept nogil      # NULL is a no-op
# The node where wildcard filter f ends; NULL when it does not exist and `create` is false.
cdef Node* trie_node(Node* root, const char* f, size_t n, uint64_t seed, bint create) except? NULL
# Removes a node and its ancestors, up to the first one that has a state or children.
cdef void trie_prune(Node* node) noexcept nogil
# Collects the filters below `node` that match the tokens from p to end. Does not reject empty tokens.
cdef void trie_walk(Node* node, const char* p, const char* end, uint64_t seed, MatchSet* found) noexcept nogil
cdef void match_set_add(MatchSet* found, void* state) noexcept nogil


cdef inline void match_set_init(MatchSet* found) noexcept nogil:
    found.states = &found.inline_states[0]
    found.capacity = FOUND_INLINE
    found.count = found.visited = 0
    found.tests_last_token = found.out_of_memory = False


cdef inline void match_set_free(MatchSet* found) noexcept nogil:
    if found.states != &found.inline_states[0]:
        free(found.states)
