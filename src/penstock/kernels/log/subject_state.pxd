"""Per-subject state of a log, and the followers notified of its messages."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from penstock.kernels.base.id_table cimport IdCells, IdTable
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription


cdef struct Subject:
    uint64_t first              # sequence of its first live message
    uint64_t last               # of its last live message
    uint64_t count              # live messages; 0 marks a free slot
    uint32_t text               # offset of its text in the arena
    uint32_t hash
    uint32_t node               # its trie node; 0 = not in the trie yet
    uint16_t text_len
    uint16_t mark               # for LogWatch; 0 for a new subject

# One token of a subject. Node 0 is the root. A node without live subjects below stays until a rebuild.
cdef struct Node:
    uint32_t parent
    uint32_t child              # first child, 0 = none
    uint32_t sibling            # next child of the same parent, 0 = none
    uint32_t token              # offset of its token in the arena
    uint32_t live               # subjects at or below this node
    uint32_t subject            # id + 1 of the subject that ends here, 0 = none
    uint16_t token_len
    uint16_t folded             # 1: its only subject has further tokens, without nodes

cdef class SubjectState:
    cdef readonly size_t count          # subjects with live messages
    cdef Subject* items
    cdef size_t used, capacity          # slots handed out once, slots there are
    cdef uint32_t* free_ids
    cdef size_t free_count, free_capacity
    cdef IdTable table                  # ids by hash
    cdef char* arena
    cdef size_t arena_size, arena_capacity, arena_garbage
    cdef Node* nodes
    cdef size_t node_count, node_capacity
    cdef IdTable edges                  # nodes by hash of (parent, token)
    cdef size_t indexed                 # slots below this one are in the trie
    cdef uint64_t seed
    cdef uint32_t recent                # slot of the subject that intern() found or made last
    # Ids found by match(), valid until the next call.
    cdef uint32_t* matched
    cdef size_t matched_capacity
    cdef uint64_t* stack
    cdef size_t stack_capacity

    # Pointers to a Subject are valid until the next intern().
    cdef Subject* find(self, const char* s, size_t n) noexcept
    # Finds or creates; a new one has count 0, which the caller must increase before any other call.
    cdef Subject* intern(self, const char* s, size_t n) except NULL
    # The same with a known hash.
    cdef Subject* intern_hashed(self, const char* s, size_t n, uint32_t h) except NULL
    cdef uint32_t hash_of(self, const char* s, size_t n) noexcept
    # Removes a subject whose last message was removed.
    cdef int drop(self, Subject* subject) except -1
    # Fills `matched` with the ids of the subjects a filter matches and returns how many.
    cdef size_t match(self, const char* f, size_t n) except? 0xFFFFFFFF
    cdef int clear(self) except -1
    cdef void clear_marks(self) noexcept

    cdef Subject* _find(self, const char* s, size_t n, uint32_t h) noexcept
    cdef Subject* _find_in(self, const IdCells* cells, const char* s, size_t n, uint32_t h) noexcept
    cdef void _release(self) noexcept
    cdef int _reset(self) except -1
    cdef int _start_trie(self) except -1
    cdef uint32_t _put_text(self, const char* s, size_t n) except? 0xFFFFFFFF
    cdef int _index(self, uint32_t sid) except -1
    cdef int _unfold(self, uint32_t node) except -1
    cdef size_t _compare(self, const char* f, size_t n, size_t sid, size_t found) except? 0xFFFFFFFF
    cdef bint _takes_most(self, const char* f, size_t n) noexcept
    cdef bint _folded_matches(self, uint32_t node, const char* f, size_t n) noexcept
    cdef size_t _depth(self, uint32_t node) noexcept
    cdef int _catch_up(self) except -1
    cdef uint32_t _edge_hash(self, uint32_t parent, const char* token, size_t n) noexcept
    cdef uint32_t _find_edge(self, uint32_t parent, const char* token, size_t n) noexcept
    cdef uint32_t _find_edge_in(
        self, const IdCells* cells, uint32_t h, uint32_t parent, const char* token, size_t n
    ) noexcept
    cdef uint32_t _add_node(self, uint32_t parent, uint32_t token, size_t n) except 0
    cdef int _rebuild(self) except -1
    cdef int _push(self, size_t depth, uint32_t node, uint32_t position) except -1
    cdef int _emit(self, size_t at, uint32_t sid) except -1


# Notified once of each message that one of its filters matches.
cdef class Follower:
    cdef uint64_t last_appended, last_removed       # the last sequences of which it was notified
    cdef int on_append(self, uint64_t seq) except -1
    cdef int on_remove(self, uint64_t seq) except -1
    # Messages were removed without individual notifications: all of them, or one whose damaged record hides its
    # subject.
    cdef int on_loss(self) except -1

cdef class Following(SinkSubscription):
    cdef Follower follower

cdef class LogWatch:
    cdef uint16_t epoch                 # a subject with this mark has no follower; never 0
    cdef dict followers                 # {Follower: [Following]}
    cdef list filters                   # of all followers: [Following]
    cdef SubscriptionIndex index        # of the same, when there are many
    cdef Sink null_sink                 # the sink of all Followings: it receives nothing
    cdef int add(self, Follower follower, list filters) except -1
    cdef int drop(self, Follower follower) except -1
    cdef bint is_empty(self)
    # A message was appended, or removed (`gone`). Not called for a subject whose mark is the epoch.
    cdef int notify(self, uint64_t seq, Subject* s, const char* text, size_t n, bint gone) except -1
    cdef int lost(self) except -1
