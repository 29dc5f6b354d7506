from typing_extensions import Buffer

from penstock.kernels.wire.buffers import OutBuffer

def encode_appends(
    out: OutBuffer,
    subject: bytes,
    prefix: bytes,
    seq: int,
    payloads: list[bytes],
    start: int,
    count: int,
    max_payload: int,
    staged: bool = False,
) -> int:
    """Messages of a batch from a list of payloads; returns how many were written. prefix: of the reply
    subjects (of an atomic batch, `staged`: of the header blocks), up to the sequence."""

def encode_column(
    out: OutBuffer,
    subject: bytes,
    prefix: bytes,
    seq: int,
    offsets: Buffer,
    wide: bool,
    data: Buffer | None,
    start: int,
    count: int,
    max_payload: int,
    staged: bool = False,
) -> int:
    """The same from the offsets and data buffers of an Arrow column."""
