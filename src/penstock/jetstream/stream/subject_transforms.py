"""Subject mappings of a stream: `subject_transform` for storing, and `republish` for stored messages.

The kernels' SubjectMapper caches results by subject, unless they depend on chance (`random`). A subject is
transformed before it enters the stream's batch, so that everything after (dedupe, expected sequences, limits,
a replicated log) sees only the stored one.
"""

from __future__ import annotations

from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.protocol.api import ApiStreamConfig, Republish, SubjectTransform
from penstock.protocol.subjects import is_valid_subject
from penstock.protocol.transforms import Below, Transform

_NOT_REPUBLISHED = b""


def make_mapper(config: SubjectTransform | None, below: Below) -> SubjectMapper | None:
    """The mapper of subjects to store under, or None. A subject that the source does not match, or whose
    result would be empty, stays."""
    if config is None or not config.dest:
        return None
    transform = Transform(config.src, config.dest)

    def decide(subject: bytes) -> tuple[bytes, bool]:
        if not transform.filter.matches(subject):
            return subject, True
        return transform.apply(subject, below) or subject, not transform.is_random

    return SubjectMapper(decide)


def make_republish_mapper(config: Republish | None, below: Below) -> SubjectMapper | None:
    """The mapper of subjects to republish under, or None. Subjects that the source does not match, or whose
    result is invalid, map to b"" and are not republished."""
    if config is None or not config.dest:
        return None
    transform = Transform(config.src, config.dest)

    def decide(subject: bytes) -> tuple[bytes, bool]:
        if not transform.filter.matches(subject):
            return _NOT_REPUBLISHED, True
        renamed = transform.apply(subject, below)
        is_valid = is_valid_subject(renamed.decode("utf-8", "replace"))
        return renamed if is_valid else _NOT_REPUBLISHED, not transform.is_random

    return SubjectMapper(decide)


def implied_republish(config: ApiStreamConfig) -> Republish | None:
    """The republish configuration with defaults: an empty source means every subject, and `>` to `>` on a
    stream that transforms its only subject means the transformed subject."""
    republish = config.republish
    if republish is None:
        return None
    source = republish.src or ">"
    destination = republish.dest
    transform = config.subject_transform
    if source == destination == ">" and transform is not None and config.subjects == [transform.src]:
        source = destination = transform.dest
    return Republish(src=source, dest=destination, headers_only=republish.headers_only)
