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

# What a walk collects.
cdef struct MatchSet:
    void** states
    size_t count
    size_t capacity
    size_t visited
    bint told_apart                 # the last token was held against literal ones
    bint out_of_memory
    void* inline_states[FOUND_INLINE]

cdef Node* trie_new() except NULL                   # the root of an empty one
cdef void trie_free(Node* root) noexcept nogil      # NULL is let through
# The node where wildcard filter f ends; NULL when there is none and none is to be created.
cdef Node* trie_node(Node* root, const char* f, size_t n, uint64_t seed, bint create) except? NULL
# Removes a node, and those above it, as far as nothing is left in them.
cdef void trie_prune(Node* node) noexcept nogil
# Collects the filters below `node` that match the tokens from p to end. Empty tokens are not noticed.
cdef void trie_walk(Node* node, const char* p, const char* end, uint64_t seed, MatchSet* found) noexcept nogil
cdef void found_add(MatchSet* found, void* state) noexcept nogil


cdef inline void found_nothing(MatchSet* found) noexcept nogil:
    found.states = &found.inline_states[0]
    found.capacity = FOUND_INLINE
    found.count = found.visited = 0
    found.told_apart = found.out_of_memory = False


cdef inline void found_free(MatchSet* found) noexcept nogil:
    if found.states != &found.inline_states[0]:
        free(found.states)
