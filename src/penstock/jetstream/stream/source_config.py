"""Configuration of mirrors and sources: checks, and the identifiers of origins.

`check_alone` checks one configuration, `check_among` also compares it with the account's other streams. Texts
and codes are those of the official server (v2.15), except for a mirror with two start positions: this server
rejects it with the documented code (10032), the official one uses the sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import structs

from penstock.errors import ConfigError, JetStreamApiError, MisuseError
from penstock.jetstream.limits import SOURCES_MAX, TRANSFORMS_MAX
from penstock.jetstream.subject_claims import bounded
from penstock.kernels.routing.filter_trie import FilterSet
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.protocol import error_codes as codes
from penstock.protocol import headers, subjects
from penstock.protocol.api import ApiError, ApiStreamConfig, StreamSource
from penstock.protocol.durations import parse_time
from penstock.protocol.ids import COUNTER_LEN, PREFIX_LEN, short_hash
from penstock.protocol.numbers import natural
from penstock.protocol.transforms import Below, FirstMatch, Transform

API_PREFIX = "$JS.API"
PREFIXED_MAX = 10_000  # comparisons of delivery prefixes with subjects of origins
ALL = ">"
ID_LEN = PREFIX_LEN + COUNTER_LEN

Lookup = Callable[[str], ApiStreamConfig | None]
"""Returns the configuration of another stream of the account by name."""


# --- names ---------------------------------------------------------------------------------------


def index_name(source: StreamSource) -> str:
    """Identifies a source within its stream, and stands in the header of messages from it: origin (with a
    hash of its external API prefix), filters and destinations."""
    name = source.name
    if source.external is not None:
        name += ":" + short_hash(source.external.api)
    if source.consumer is not None:
        name += ":C=" + short_hash(source.consumer.name)
    if not source.subject_transforms:
        return f"{name} {source.filter_subject or ALL} {ALL}"
    sources = "\f".join(transform.src or ALL for transform in source.subject_transforms)
    destinations = "\f".join(transform.dest or ALL for transform in source.subject_transforms)
    return f"{name} {sources} {destinations}"


def consumer_key(source: StreamSource) -> str:
    """Identifies the durable consumer of a source: two sources of a stream cannot share one."""
    api = short_hash(source.external.api) if source.external is not None else ""
    return f"{source.name}:{api} {source.consumer.name if source.consumer is not None else ''}"


def header_line(source: StreamSource, ident: str) -> tuple[bytes, bytes, bytes]:
    """The parts of `Nats-Stream-Source` around the sequence and the subject, for
    kernels.copying.CopyBatch."""
    name, filters, destinations = index_name(source).split(" ")
    begin = f"{headers.STREAM_SOURCE}: {name} "
    return begin.encode(), f" {filters} {destinations} ".encode(), f" {ident}".encode() if ident else b""


def read_header(value: bytes) -> tuple[str, int, str]:
    """Parses a `Nats-Stream-Source` into (index name, sequence, identity); ("", 0, "") when it is invalid."""
    fields = value.decode("utf-8", "surrogateescape").split(" ")
    seq = natural(fields[1]) if len(fields) >= 4 else None
    if seq is None:
        return "", 0, ""
    ident = fields[5] if len(fields) > 5 else ""
    return f"{fields[0]} {fields[2]} {fields[3]}", seq, ident


def filters_of(source: StreamSource) -> list[bytes]:
    """Filters of which a message must match one; empty: all messages match."""
    filters = [transform.src or ALL for transform in source.subject_transforms] or [source.filter_subject]
    if any(one in ("", ALL) for one in filters):
        return []
    return [one.encode() for one in filters]


def mapper_of(source: StreamSource, below: Below) -> SubjectMapper | None:
    """Maps the origin's subjects by the first transform whose source matches; other subjects stay."""
    transforms = [Transform(one.src, one.dest) for one in source.subject_transforms if one.dest]
    if not transforms:
        return None
    first = FirstMatch(transform.source for transform in transforms)

    def decide(subject: bytes) -> tuple[bytes, bool]:
        place = first.find(subject)
        if place is None:
            return subject, True
        transform = transforms[place]
        return transform.apply(subject, below) or subject, not transform.is_random

    return SubjectMapper(decide)


def start_ns(source: StreamSource) -> int:
    """opt_start_time in ns; 0 without one."""
    return parse_time(source.opt_start_time) if source.opt_start_time else 0


def deliver_subject(prefix: str, consumer_id: str, *, is_mirror: bool) -> str:
    """The deliver subject of the consumer of an external origin; prefix: as configured, "" for the
    default."""
    return f"{prefix.rstrip('.') or '$JS'}.{'M' if is_mirror else 'S'}.{consumer_id}"


# --- checks --------------------------------------------------------------------------------------


def check_alone(config: ApiStreamConfig) -> None:
    """Checks a configuration's origins without other streams. Raises JetStreamApiError."""
    _check_counts(config)
    if config.mirror is not None:
        _check_mirror(config, config.mirror)
    if config.sources:
        _check_sources(config)


def _check_counts(config: ApiStreamConfig) -> None:
    count = len(config.sources)
    if count > SOURCES_MAX:
        raise _refuse(f"the stream has {count} sources, at most {SOURCES_MAX} are allowed")
    count = sum(len(origin.subject_transforms) for origin in _origins(config))
    if count > TRANSFORMS_MAX:
        raise _refuse(f"the origins have {count} subject transforms, at most {TRANSFORMS_MAX} are allowed")


def _check_mirror(config: ApiStreamConfig, mirror: StreamSource) -> None:
    if config.first_seq > 0:
        raise codes.MIRROR_WITH_FIRST_SEQ.exception()
    if config.subjects:
        raise codes.MIRROR_WITH_SUBJECTS.exception()
    if config.sources:
        raise codes.MIRROR_WITH_SOURCES.exception()
    if config.allow_msg_counter:
        raise codes.MIRROR_WITH_COUNTERS.exception()
    _check_consumer(mirror, codes.MIRROR_DURABLE_CONSUMER_CFG_INVALID.exception)
    if mirror.filter_subject and mirror.subject_transforms:
        raise codes.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED.exception()
    if config.subject_delete_marker_ttl > 0:
        raise _refuse("subject delete markers forbidden on mirrors")
    _check_transforms(mirror, codes.MIRROR_INVALID_SUBJECT_FILTER, codes.MIRROR_INVALID_TRANSFORM_DESTINATION)
    with bounded(_refuse):
        pair = subjects.any_overlap([transform.src or ALL for transform in mirror.subject_transforms])
    if pair is not None:
        raise codes.MIRROR_OVERLAPPING_SUBJECT_FILTERS.exception()
    if mirror.external is None and not subjects.is_valid_name(mirror.name):
        raise codes.MIRROR_INVALID_STREAM_NAME.exception()
    if mirror.opt_start_seq and mirror.opt_start_time:
        raise codes.MIRROR_WITH_START_SEQ_AND_TIME.exception()
    _check_start(mirror)
    if mirror.filter_subject and not subjects.is_valid_filter(mirror.filter_subject):
        err = f"subject filter '{mirror.filter_subject}' for the mirror invalid subject"
        raise codes.STREAM_CREATE.exception(err=err)


def _check_sources(config: ApiStreamConfig) -> None:
    names: set[str] = set()
    consumers: set[str] = set()
    for source in config.sources:
        if not subjects.is_valid_name(source.name):
            raise codes.SOURCE_INVALID_STREAM_NAME.exception()
        if index_name(source) in names:
            raise codes.SOURCE_DUPLICATE_DETECTED.exception()
        names.add(index_name(source))
        if source.filter_subject and source.subject_transforms:
            raise codes.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED.exception()
        _check_transforms(
            source, codes.SOURCE_INVALID_SUBJECT_FILTER, codes.SOURCE_INVALID_TRANSFORM_DESTINATION
        )
        with bounded(_refuse):
            if subjects.any_subset([transform.src or ALL for transform in source.subject_transforms]):
                raise codes.SOURCE_OVERLAPPING_SUBJECT_FILTERS.exception()
        _check_consumer(source, codes.SOURCE_DURABLE_CONSUMER_CFG_INVALID.exception)
        if source.consumer is not None:
            if consumer_key(source) in consumers:
                raise codes.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED.exception()
            consumers.add(consumer_key(source))
        _check_start(source)
        if source.filter_subject and not subjects.is_valid_filter(source.filter_subject):
            err = f"subject filter '{source.filter_subject}' for the source: invalid subject"
            raise codes.STREAM_CREATE.exception(err=err)


def _check_transforms(origin: StreamSource, bad_filter: ApiError, bad_destination: ApiError) -> None:
    for transform in origin.subject_transforms:
        if transform.src and not subjects.is_valid_filter(transform.src):
            raise bad_filter.exception(err=f"invalid subject {transform.src}")
        try:
            if transform.dest:
                Transform(transform.src, transform.dest)
        except ConfigError as error:
            raise bad_destination.exception(err=str(error)) from None


def _check_consumer(source: StreamSource, refusal: Callable[[], Exception]) -> None:
    consumer = source.consumer
    if consumer is None:
        return
    deliver = consumer.deliver_subject
    is_sound = subjects.is_valid_name(consumer.name) and subjects.is_valid_subject(deliver)
    is_sound = is_sound and not subjects.is_too_long(deliver)
    if not is_sound or source.opt_start_seq or source.opt_start_time or source.filter_subject:
        raise refusal()


def _check_start(source: StreamSource) -> None:
    if source.opt_start_seq < 0:
        raise codes.INVALID_JSON.exception(err="opt_start_seq can not be negative")
    try:
        start_ns(source)
    except MisuseError as error:
        raise codes.INVALID_JSON.exception(err=str(error)) from None


def check_among(config: ApiStreamConfig, find: Lookup, *, pedantic: bool) -> ApiStreamConfig:
    """Checks a configuration against the account's other streams; returns it with the origin's direct get
    setting.

    Raises JetStreamApiError: 10157, 10030, 10046, 10021, 10022, 10024, and 10052 for a cycle.
    """
    mirror = config.mirror
    if mirror is not None and mirror.external is None:
        origin = find(mirror.name)
        if origin is not None:
            if 0 < config.max_msg_size < origin.max_msg_size:
                raise codes.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG.exception()
            if pedantic and config.mirror_direct is not origin.allow_direct:
                raise codes.PEDANTIC.exception(err="origin stream has direct get set, mirror has it disabled")
            config = structs.replace(config, mirror_direct=origin.allow_direct)
    for source in config.sources:
        origin = find(source.name) if source.external is None else None
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise codes.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG.exception()
    _check_external(config, find)
    _check_circles(config, find)
    return config


def _check_external(config: ApiStreamConfig, find: Lookup) -> None:
    external = [origin.external for origin in _origins(config) if origin.external is not None]
    local = {origin.name for origin in _origins(config) if origin.external is None}
    # Subjects below a prefix have more tokens than it, so only a filter with a tail can match both.
    tailed = [one for name in local for one in getattr(find(name), "subjects", ()) if one.endswith(">")]
    prefixes = dict.fromkeys(one.deliver for one in external if one.deliver)
    if len(tailed) * len(prefixes) > PREFIXED_MAX:
        raise _refuse(
            f"{len(prefixes)} delivery prefixes cannot be compared with {len(tailed)} subjects of"
            " origins: use fewer prefixes"
        )
    for prefix in prefixes:
        # The subscribed subject is longer than the prefix, and the index has a limit.
        listened = deliver_subject(prefix, "x" * ID_LEN, is_mirror=True)
        if not subjects.is_valid_subject(prefix) or subjects.is_too_long(listened):
            raise codes.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJ.exception(prefix=prefix)
        for subject in tailed:
            if subjects.overlaps(subject, f"{prefix}.{subject}"):
                raise codes.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS.exception(prefix=prefix, subject=subject)
    for prefix in dict.fromkeys(one.api for one in external if one.api):
        if not subjects.is_valid_subject(prefix):
            raise _refuse(f'stream external api prefix "{prefix}" must be a valid subject without wildcards')
        if subjects.overlaps(prefix, API_PREFIX):
            raise codes.STREAM_EXTERNAL_API_OVERLAP.exception(prefix=prefix, subject=API_PREFIX)


def _check_circles(config: ApiStreamConfig, find: Lookup) -> None:
    """Rejects cycles: messages must not return to their origin through other streams.

    Each stream is visited once: the last stream of a cycle to be visited leads to one visited before. A visit
    per path would double the work with each layer of streams that share origins.
    """
    waiting, visited = deque([config]), set[str]()
    while waiting:
        one = waiting.popleft()
        if one.name in visited:
            continue
        visited.add(one.name)
        taken: FilterSet[None] | None = None
        for origin in _origins(one):
            if origin.external is not None:
                continue
            if origin.name not in visited:
                found = find(origin.name)
                if found is not None:
                    waiting.append(found)
                continue
            taken = taken if taken is not None else _set_of(one.subjects)
            wanted = [origin.filter_subject.encode()] if origin.filter_subject else []
            with bounded(_refuse):
                if origin is one.mirror or not wanted or taken.overlaps(wanted):
                    raise _refuse("detected cycle")


def _set_of(filters: list[str]) -> FilterSet[None]:
    made: FilterSet[None] = FilterSet()
    for one in filters:
        made.add(one.encode(), None)
    return made


def _origins(config: ApiStreamConfig) -> Iterator[StreamSource]:
    if config.mirror is not None:
        yield config.mirror
    yield from config.sources


def _refuse(text: str) -> JetStreamApiError:
    return codes.STREAM_INVALID_CONFIG.exception(err=text)
