"""The subject grammar and the subscription index against models that try everything."""

from __future__ import annotations

import gc
import itertools
import random
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.routing.grammar import (
    filter_is_subset,
    filter_matches,
    filters_overlap,
    has_wildcard,
    is_literal_subject,
    is_valid_filter,
)
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from tests.reference import subscription_index as model

pytestmark = pytest.mark.feature("core.subjects", "core.wildcard-token", "core.wildcard-tail")

any_text = st.text("ab*>.. \t\n\0", max_size=9)
tokens = st.sampled_from(["a", "b", "c", "ab", "a*", ">b", "*", "*", "*"])
literal_tokens = st.sampled_from(["a", "b", "c", "ab", "a*", ">b"])


@st.composite
def filters(draw: st.DrawFn) -> str:
    parts = draw(st.lists(tokens, min_size=1, max_size=5))
    return ".".join([*parts[:-1], ">"] if draw(st.booleans()) else parts)


subjects = st.lists(literal_tokens, min_size=1, max_size=5).map(".".join)


@given(any_text)
@example("")
@example("a..b")
@example(".a")
@example("a.")
@example(">.a")
@example("a.>")
@example("a*.>b")
def test_the_grammar_is_the_model_s(text: str) -> None:
    raw = text.encode()
    assert is_valid_filter(raw) == model.is_filter(text)
    assert is_literal_subject(raw) == model.is_literal(text)
    if is_valid_filter(raw):
        assert has_wildcard(raw) == (not model.is_literal(text))


@given(filters(), subjects | any_text)
@example("a.>", "a")
@example("a.>", "a..b")
@example("*", "")
@example("a.*", "a.")
@example(">", ".")
def test_a_filter_matches_what_the_model_says(f: str, subject: str) -> None:
    assert filter_matches(f.encode(), subject.encode()) == model.matches(f, subject)


# Filters of up to three tokens over {a, b} can't tell more apart than these subjects do.
UNIVERSE = [".".join(p) for n in range(1, 6) for p in itertools.product("abz", repeat=n)]
SMALL = [
    ".".join(p)
    for n in (1, 2, 3)
    for p in itertools.product("ab*>", repeat=n)
    if model.is_filter(".".join(p))
]


def test_overlap_and_subset_agree_with_every_subject_there_is() -> None:
    matched = {f: {s for s in UNIVERSE if model.matches(f, s)} for f in SMALL}
    for a, b in itertools.product(SMALL, SMALL):
        assert filters_overlap(a.encode(), b.encode()) == bool(matched[a] & matched[b]), (a, b)
        assert filter_is_subset(a.encode(), b.encode()) == (matched[a] <= matched[b]), (a, b)


@pytest.mark.parametrize("bad", [b"", b"a..b", b"a b", b">.a"])
def test_what_is_no_filter_is_refused(bad: bytes) -> None:
    index = SubscriptionIndex()
    with pytest.raises(ValueError, match="no subject filter"):
        index.insert(SinkSubscription(Sink(), bad))
    with pytest.raises(ValueError, match="no subject filter"):
        filters_overlap(b"a", bad)
    with pytest.raises(ValueError, match="no subject filter"):
        filter_is_subset(bad, b"a")
    assert index.count == 0


class Pair:
    """An index and its model, doing the same."""

    def __init__(self) -> None:
        self.index = SubscriptionIndex()
        self.model = model.IndexModel()
        self.subs: dict[int, SinkSubscription] = {}
        self.sink = Sink()
        self.serial = 0

    def insert(self, f: str, queue: str) -> None:
        self.serial += 1
        sub = SinkSubscription(self.sink, f.encode(), queue.encode(), b"%d" % self.serial)
        self.subs[self.serial] = sub
        self.index.insert(sub)
        self.model.insert(self.serial, f, queue)

    def remove(self, choice: int) -> None:
        if self.subs:
            name = list(self.subs)[choice % len(self.subs)]
            assert self.index.remove(self.subs[name])
            assert not self.index.remove(self.subs.pop(name))
            self.model.remove(name)

    def check(self, subject: str) -> None:
        result = self.index.match(subject.encode())
        plain = [int(sub.sid) for sub in result.plain]
        groups = {group[0].queue.decode(): [int(sub.sid) for sub in group] for group in result.groups}
        assert len(groups) == len(result.groups)
        expected_plain, expected_groups = self.model.match(subject)
        assert sorted(plain) == sorted(expected_plain)
        assert {q: sorted(m) for q, m in groups.items()} == {q: sorted(m) for q, m in expected_groups.items()}
        assert self.index.has_interest(subject.encode()) == bool(plain or groups)
        assert [int(sub.sid) for sub in self.index.subscriptions()] == [m[0] for m in self.model.members]
        assert len(self.index) == self.index.count == len(self.model.members)


# Few enough that several match one subject, which is what the cache is for.
common = st.sampled_from(["a", "*", "a.b", "a.*", "*.b", "a.>", ">", "*.*", "a.b.c", "a.*.c", "*.>", "a.b.>"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), common | filters() | subjects, st.sampled_from(["", "", "q", "r"])),
        st.tuples(st.just("remove"), st.integers(0, 100), st.just("")),
        st.tuples(st.just("match"), subjects, st.just("")),
        st.tuples(st.just("match"), st.sampled_from(["a", "a.b", "a.b.c", "b.b"]), st.just("")),
    ),
    max_size=40,
)


@given(steps)
def test_lookups_between_inserts_and_removes_see_the_index_as_it_is(
    steps: list[tuple[str, str | int, str]],
) -> None:
    pair = Pair()
    watched = {"a", "a.b", "a.b.c"}
    for step, what, queue in steps:
        if step == "insert":
            pair.insert(str(what), queue)
        elif step == "remove":
            pair.remove(int(what))
        else:
            watched.add(str(what))
        for subject in sorted(watched)[:8]:  # each was looked up before, so that it may be cached
            pair.check(subject)
    while pair.subs:
        pair.remove(0)
        for subject in sorted(watched)[:3]:
            pair.check(subject)


def test_a_large_index_with_more_subjects_than_the_cache_holds_stays_right() -> None:
    rng = random.Random(7)
    pair = Pair()
    names = [f"t{i}" for i in range(12)]

    def subject() -> str:
        return ".".join(rng.choice(names) for _ in range(rng.randint(1, 4)))

    def wildcard() -> str:
        parts = [rng.choice([*names, "*", "*"]) for _ in range(rng.randint(1, 4))]
        return ".".join([*parts[:-1], ">"] if rng.random() < 0.3 else parts)

    for _ in range(300):
        pair.insert(wildcard() if rng.random() < 0.6 else subject(), rng.choice(["", "", "q"]))
    known = [subject() for _ in range(4000)]
    for s in known:
        pair.index.match(s.encode())
    for i in range(2000):
        if i % 4 == 0:
            pair.insert(wildcard() if rng.random() < 0.5 else rng.choice(known), rng.choice(["", "q"]))
        elif i % 4 == 1:
            pair.remove(rng.randrange(1000))
        else:
            pair.check(rng.choice(known[:50] if i % 4 == 2 else known))


def test_a_result_does_not_change_while_it_is_referenced() -> None:
    index = SubscriptionIndex()
    sink = Sink()
    first, second = SinkSubscription(sink, b"a.*"), SinkSubscription(sink, b"a.b")
    index.insert(first)
    held = index.match(b"a.b")
    index.insert(second)
    assert held.plain == [first]
    held = index.match(b"a.b")
    assert held.plain == [second, first]
    index.remove(first)
    assert held.plain == [second, first]
    assert index.match(b"a.b").plain == [second]


def test_a_reply_that_one_filter_matches_is_answered_without_a_new_result() -> None:
    index = SubscriptionIndex()
    index.insert(SinkSubscription(Sink(), b"_INBOX.abc.*"))
    assert index.match(b"_INBOX.abc.1") is index.match(b"_INBOX.abc.2")


def test_results_of_several_filters_are_cached_and_inbox_churn_leaves_them_there() -> None:
    index = SubscriptionIndex()
    sink = Sink()
    index.insert(SinkSubscription(sink, b"orders.*"))
    index.insert(SinkSubscription(sink, b"orders.>"))
    held = index.match(b"orders.new")
    assert index.match(b"orders.new") is held
    for i in range(100):
        inbox = SinkSubscription(sink, b"_INBOX.%d.*" % i)
        other = SinkSubscription(sink, b"orders.old")
        index.insert(inbox)
        index.insert(other)
        index.remove(inbox)
        index.remove(other)
    assert index.match(b"orders.new") is held
    index.insert(SinkSubscription(sink, b"*.new"))
    assert len(index.match(b"orders.new").plain) == 3


def test_watchers_of_interest_and_its_end_are_called_after_each_change() -> None:
    index = SubscriptionIndex()
    seen: list[tuple[str, SinkSubscription, bool]] = []
    index.call_after(
        lambda one: seen.append(("came", one, index.has_interest(b"a"))),
        lambda one: seen.append(("went", one, index.has_interest(b"a"))),
    )
    sub = SinkSubscription(Sink(), b"a")
    index.insert(sub)
    index.remove(sub)
    index.remove(sub)
    index.call_after(None, None)
    index.insert(sub)
    assert seen == [("came", sub, True), ("went", sub, False)]


def test_the_generation_grows_with_every_change() -> None:
    index = SubscriptionIndex()
    sub = SinkSubscription(Sink(), b"a")
    index.insert(sub)
    assert index.generation == 1
    index.remove(sub)
    assert index.generation == 2
    index.remove(sub)
    assert index.generation == 2


def test_a_subscription_sits_in_one_index_only() -> None:
    index, other = SubscriptionIndex(), SubscriptionIndex()
    sub = SinkSubscription(Sink(), b"a")
    index.insert(sub)
    for target in (index, other):
        with pytest.raises(ValueError, match="already"):
            target.insert(sub)
    assert not other.remove(sub)
    assert index.remove(sub)
    other.insert(sub)
    assert other.match(b"a").plain == [sub]


class Owned(Sink):
    """A sink with a weak reference, and a way to make cycles."""

    def __init__(self) -> None:
        self.index: SubscriptionIndex | None = None


def test_the_index_releases_removed_subscriptions_even_when_they_were_cached() -> None:
    index = SubscriptionIndex()
    sink = Owned()
    gone = weakref.ref(sink)
    subs = [SinkSubscription(sink, f) for f in (b"a.*", b"a.>", b"a.b", b"*.b")]
    for sub in subs:
        index.insert(sub)
    assert len(index.match(b"a.b").plain) == 4
    for sub in subs:
        index.remove(sub)
    del sink, subs, sub
    gc.collect()
    assert gone() is None


def test_a_cycle_through_the_index_is_collected() -> None:
    index = SubscriptionIndex()
    sink = Owned()
    sink.index = index
    gone = weakref.ref(sink)
    for f in (b"a.*", b"a.b", b">", b"a.b.c.d.*"):
        index.insert(SinkSubscription(sink, f))
    index.match(b"a.b")
    del index, sink
    gc.collect()
    assert gone() is None


def test_a_filter_too_long_for_the_trie_is_refused() -> None:
    index = SubscriptionIndex()
    deep = b".".join([b"*"] * 10_000)
    index.insert(SinkSubscription(Sink(), deep))
    assert index.has_interest(b".".join([b"a"] * 10_000))
    with pytest.raises(ValueError, match="at most"):
        index.insert(SinkSubscription(Sink(), b".".join([b"*"] * 20_000)))
