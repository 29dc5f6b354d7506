# cython: auto_pickle=False
"""Payloads of plain WebSocket frames (RFC 6455, section 5.2).

Plain is a whole binary message in one frame, without an extension, whose length has its shortest form and which has a
mask exactly if the sender must have one: what clients send NATS in. Its payload needs only to be unmasked and copied
to where the parser of the protocol reads. All other frames (control frames, text, fragments, compressed ones, and
whatever breaks a rule) are left to a library; FrameReader tells their lengths, so that it knows where the next plain
frame begins.

Invariant: between the first frame of a message in fragments and its last one no frame is plain.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    FIN = 0x80
    WHOLE_BINARY = FIN | 2
    MASKED = 0x80
    FRAMES_MAX = 1024               # in one run: an empty frame takes time as well, and no room

# Longer frames are refused by the library, and must not overflow here.
cdef uint64_t LENGTH_MAX = <uint64_t>1 << 62


cdef inline void unmask(uint8_t* target, const uint8_t* source, size_t n, uint64_t mask, size_t at) noexcept nogil:
    """Copies `n` bytes and unmasks them; `at` of the frame's payload were copied before."""
    cdef size_t i = 0
    cdef uint64_t word
    cdef uint8_t* key = <uint8_t*>&mask
    while i < n and (at + i) & 3:
        target[i] = source[i] ^ key[(at + i) & 3]
        i += 1
    while i + 8 <= n:
        memcpy(&word, source + i, 8)
        word ^= mask
        memcpy(target + i, &word, 8)
        i += 8
    while i < n:
        target[i] = source[i] ^ key[(at + i) & 3]
        i += 1


cdef struct Head:
    size_t size                     # 0 = incomplete
    uint64_t length                 # of the payload
    uint64_t mask                   # the four bytes twice; 0 without a mask
    bint is_shortest                # the length has its shortest form


cdef Head head_at(const uint8_t* p, size_t n) noexcept nogil:
    cdef Head head
    cdef size_t i, size = 2
    head.size = head.length = head.mask = 0
    head.is_shortest = True
    if n < 2:
        return head
    head.length = p[1] & 0x7f
    if head.length >= 126:
        size += 2 if head.length == 126 else 8
    if p[1] & MASKED:
        size += 4
    if n < size:
        return head
    if head.length == 126:
        head.length = <uint64_t>p[2] << 8 | p[3]
        head.is_shortest = head.length >= 126
    elif head.length == 127:
        head.length = 0
        for i in range(2, 10):
            head.length = head.length << 8 | p[i]
        head.is_shortest = head.length >> 16 != 0
    if p[1] & MASKED:
        memcpy(&head.mask, p + size - 4, 4)
        memcpy(<uint8_t*>&head.mask + 4, p + size - 4, 4)
    head.size = size
    return head


cdef class FrameReader:
    """Takes frames of one side apart. masked: whether that side masks what it sends, as clients must."""

    def __cinit__(self, bint masked):
        self.masked = masked

    def take(self, const uint8_t[::1] data not None, size_t start, uint8_t[::1] room not None):
        """Copies payloads of plain frames from data[start:] to `room`; returns (bytes taken, bytes copied).

        Takes nothing of a frame that is not plain, and nothing of a head before all of it is there.
        """
        cdef size_t size = <size_t>data.shape[0], free = <size_t>room.shape[0]
        cdef size_t at = start, written = 0, n
        cdef int frames = 0
        cdef Head head
        if start > size:
            raise ValueError(f"there are {size} bytes, and none at {start}")
        if self.other_left:
            return 0, 0
        while True:
            if self.left == 0:
                if self.in_message or frames == FRAMES_MAX or at == size or data[at] != WHOLE_BINARY:
                    break
                head = head_at(&data[at], size - at)
                if head.size == 0 or not head.is_shortest or head.length >= LENGTH_MAX:
                    break
                if (data[at + 1] & MASKED != 0) != self.masked:
                    break
                at += head.size
                self.left, self.mask, self.copied = head.length, head.mask, 0
                frames += 1
            n = size - at
            if n > self.left:
                n = self.left
            if n > free - written:
                n = free - written
            if n:
                unmask(&room[written], &data[at], n, self.mask, self.copied)
                at += n
                written += n
                self.left -= n
                self.copied += n
            if self.left:
                break
        return at - start, written

    def other(self, const uint8_t[::1] data not None, size_t start, size_t most):
        """Bytes of data[start:], up to `most`, that are of a frame that is not plain; they count as taken.

        0: none, as the data ends there or within a head.
        """
        cdef size_t size = <size_t>data.shape[0], n
        cdef Head head
        if start > size:
            raise ValueError(f"there are {size} bytes, and none at {start}")
        if self.left or start == size:
            return 0
        if self.other_left == 0:
            head = head_at(&data[start], size - start)
            if head.size == 0:
                return 0
            self.other_left = head.size + min(head.length, LENGTH_MAX)
            if not data[start] & 8:
                self.in_message = not data[start] & FIN
        n = size - start
        if n > most:
            n = most
        if n > self.other_left:
            n = <size_t>self.other_left
        self.other_left -= n
        return n
