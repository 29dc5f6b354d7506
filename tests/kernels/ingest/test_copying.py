"""The kernel that copies messages from an origin into a mirror or a sourced stream, against its model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.ingest.copying import CopyBatch, apply_mirrored, apply_sourced, settle_upto
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.dispatch import SubjectMapper
from tests.reference import copying as model
from tests.reference.copying import Message
from tests.reference.records import counted

pytestmark = pytest.mark.feature("sourcing.mirror", "sourcing.sources")

NOW = 1_000_000
LINE = (b"Nats-Stream-Source: O ", b" > > ", b" Ident123")
LINES = [
    b"Own: h",
    b"Nats-Msg-Id: a",
    b"Nats-Msg-Id:b ",
    b"Nats-Expected-Last-Sequence: 7",
    b"Nats-Expected-Stream:",
    b"Nats-Batch-Id: x",
    b"Nats-Stream-Source: P 1 > > q",
    b"Nats-Other: 1",
    b"Natsy: Nats-Batch-Id: no",
]


def block(lines: list[bytes]) -> bytes:
    return b"\r\n".join([b"NATS/1.0", *lines]) + b"\r\n\r\n" if lines else b""


headers = st.lists(st.sampled_from(LINES), max_size=4, unique_by=lambda line: line[:11]).map(block)
subjects = st.sampled_from([b"a", b"b", b"a.b", b"a.c", b"a.b.c"])
filters = st.lists(st.sampled_from([b"a", b"a.*", b"b", b"a.>", b"none"]), max_size=3)


@st.composite
def logs(draw: st.DrawFn) -> StreamLog:
    """A log with gaps."""
    log = StreamLog(block_size=256)
    for n in range(draw(st.integers(0, 20))):
        header = draw(headers)
        log.append(draw(subjects), header, draw(st.binary(max_size=5)), NOW - 100 + n)
    for seq in draw(st.lists(st.integers(1, 20), max_size=8)):
        log.remove(seq)
    return log


def content(log: StreamLog) -> list[Message]:
    found = []
    seq = log.next_seq(1)
    while seq:
        one = log.load(seq)
        assert one is not None
        found.append(Message(one.seq, one.ts, one.subject, one.header, one.payload))
        seq = log.next_seq(seq + 1)
    return found


def batched(batch: CopyBatch) -> list[Message]:
    found = []
    while (one := batch.take_one()) is not None:
        found.append(Message(*one))
    batch.rewind()
    return found


@given(origin=logs(), from_seq=st.integers(1, 22), chosen=filters, enough=st.integers(1, 600))
def test_what_is_gathered_in_pieces_is_what_passes(
    origin: StreamLog, from_seq: int, chosen: list[bytes], enough: int
) -> None:
    batch = CopyBatch(LINE)
    at, got, rounds = from_seq, [], 0
    while True:
        upto = batch.gather(origin, at, chosen, [], enough)
        got += batched(batch)
        batch.clear()
        rounds += 1
        if upto >= origin.last_seq or upto < at:
            break
        at = upto + 1
    expected = [
        one._replace(header=model.copied_header(one.header, LINE, one.seq, one.subject))
        for one in model.gather(content(origin), from_seq, chosen)
    ]
    assert got == expected
    assert rounds <= len(expected) + 1


@given(origin=logs(), chosen=filters, cut=st.integers(0, 22))
def test_a_mirror_becomes_what_the_model_says_wherever_it_begins(
    origin: StreamLog, chosen: list[bytes], cut: int
) -> None:
    target, ids = StreamLog(block_size=200), MessageIds(0)
    expected: list[Message] = []
    for from_seq in (1, max(1, cut)):  # the second time much comes again
        batch = CopyBatch()
        batch.gather(origin, from_seq, chosen, [], 10_000)
        copies = [
            one._replace(header=model.copied_header(one.header, None, one.seq, one.subject))
            for one in model.gather(content(origin), from_seq, chosen)
        ]
        expected = model.mirrored(expected, copies)
        assert apply_mirrored(batch, target, PlainLimits(), ids) == len(copies)
        assert batch.take_one() is None
    assert content(target) == expected
    assert target.last_seq == (expected[-1].seq if expected else 0)


@given(origin=logs(), known=st.lists(st.sampled_from([b"a", b"b"]), unique=True))
def test_a_sourced_stream_becomes_what_the_model_says(origin: StreamLog, known: list[bytes]) -> None:
    target, ids = StreamLog(block_size=200), MessageIds(1_000_000_000)
    table = dict.fromkeys(known, 1)
    for one in known:
        ids.add(one, 1, NOW)
    batch = CopyBatch(LINE)
    batch.gather(origin, 1, [], [], 10_000)
    expected = model.sourced([], batched(batch), NOW, table)
    apply_sourced(batch, target, PlainLimits(), ids, NOW, NOW)
    assert content(target) == expected
    assert batch.reached == (content(origin)[-1].seq if content(origin) else 0)


@pytest.mark.parametrize(
    "line", [b"Nats-TTL: 1s", b"Nats-Rollup: sub", b"Nats-Incr: 1", b"Nats-Schedule-Next: purge"]
)
def test_headers_that_change_behaviour_are_left_to_python(line: bytes) -> None:
    for apply in ("mirror", "source"):
        batch = CopyBatch(LINE if apply == "source" else None)
        batch.append(3, NOW, b"a", b"", b"1")
        batch.append(5, NOW, b"a", block([b"Own: 1", line]), b"2")
        batch.append(6, NOW, b"a", b"", b"3")
        log, ids = StreamLog(), MessageIds(0)
        taken = (
            apply_mirrored(batch, log, PlainLimits(), ids)
            if apply == "mirror"
            else apply_sourced(batch, log, PlainLimits(), ids, NOW, NOW)
        )
        assert (taken, batch.reached) == (1, 3)
        one = batch.take_one()
        assert one is not None and one[0] == 5 and line in one[3]
        assert (log.last_seq, log.messages) == ((4, 1) if apply == "mirror" else (1, 1))


def test_limits_that_refuse_stop_before_the_message() -> None:
    for limits in (
        PlainLimits(msgs_max=1, discard_new=True),
        PlainLimits(bytes_max=60, discard_new=True),
        PlainLimits(msg_size_max=1),
        PlainLimits(per_message=True),
    ):
        batch, log = CopyBatch(), StreamLog()
        batch.append(1, NOW, b"a", b"", b"1")
        batch.append(2, NOW, b"a", b"", b"22")
        taken = apply_mirrored(batch, log, limits, MessageIds(0))
        assert (taken, log.messages) == ((0, 0) if limits.per_message else (1, 1))


@pytest.mark.parametrize("storage", ["file", "memory"])
@given(header=st.sampled_from([b"", block([b"Own: h"])]), payload=st.binary(max_size=40))
def test_a_copy_that_just_fits_is_taken_and_none_that_is_a_byte_larger(
    storage: str, header: bytes, payload: bytes
) -> None:
    size = counted(storage, b"a", header, payload)
    for room in (size, size - 1):
        batch, log = CopyBatch(), StreamLog(storage=storage)
        batch.append(1, NOW, b"a", header, payload)
        limits = PlainLimits(bytes_max=room, discard_new=True)
        assert apply_mirrored(batch, log, limits, MessageIds(0)) == (room == size)
        assert log.bytes == (size if room == size else 0)


def test_limits_that_remove_are_kept() -> None:
    batch, log = CopyBatch(), StreamLog()
    for seq in range(1, 8):
        batch.append(seq, NOW, b"a" if seq % 2 else b"b", b"", b"1")
    apply_mirrored(batch, log, PlainLimits(per_subject_max=2, msgs_max=3), MessageIds(0))
    assert [one.seq for one in content(log)] == [5, 6, 7]


def test_a_place_moves_a_mirror_and_no_other_stream() -> None:
    batch, log = CopyBatch(), StreamLog()
    batch.place(9)
    batch.append(12, NOW, b"a", b"", b"")
    apply_mirrored(batch, log, PlainLimits(), MessageIds(0))
    assert (log.first_seq, log.last_seq, log.messages) == (12, 12, 1)
    batch.rewind()
    other = StreamLog()
    apply_sourced(batch, other, PlainLimits(), MessageIds(0), NOW, NOW)
    assert (other.last_seq, batch.reached) == (1, 12)


def test_subjects_are_changed_and_the_header_keeps_the_one_there_was() -> None:
    origin = StreamLog()
    origin.append(b"a.b", b"", b"", NOW)
    batch = CopyBatch(LINE)
    first = SubjectMapper(lambda subject: (b"x." + subject, True))
    second = SubjectMapper(lambda subject: (subject.replace(b"b", b"c"), True))
    batch.gather(origin, 1, [], [first, second], 1000)
    header = b"NATS/1.0\r\nNats-Stream-Source: O 1 > > a.b Ident123\r\n\r\n"
    assert batch.take_one() == (1, NOW, b"x.a.c", header, b"")


@given(origin=logs(), chosen=filters, cuts=st.lists(st.integers(0, 22), max_size=3))
def test_what_a_target_has_taken_is_settled_up_to_its_position(
    origin: StreamLog, chosen: list[bytes], cuts: list[int]
) -> None:
    state = AckState(AckPolicy.ACK_NONE)
    state.collecting = True
    settled = []
    for upto_seq in cuts:
        settle_upto(state, origin, chosen, upto_seq, NOW)
        settled += [seq for first, last in state.take_settled() for seq in range(first, last + 1)]
    wanted = [one.seq for one in model.gather(content(origin), 1, chosen) if one.seq <= max(cuts, default=0)]
    assert settled == wanted
    assert state.delivered_consumer == len(wanted)


def test_what_no_record_holds_is_refused() -> None:
    batch = CopyBatch()
    for seq, subject in ((0, b"a"), (2**48, b"a"), (1, b""), (1, b"a" * 70_000)):
        with pytest.raises(ValueError, match="no record holds"):
            batch.append(seq, NOW, subject, b"", b"")
    assert len(batch) == batch.size == 0
