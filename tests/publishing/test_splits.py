"""Groups of sessions: what stays together, what never moves."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.dataset.splits import SessionKey, groups, overlaps, split_of

SESSIONS = st.lists(
    st.builds(
        SessionKey,
        first_ts=st.integers(0, 50).map(float),
        session_id=st.sampled_from([f"s{i}" for i in range(8)]),
        group_id=st.sampled_from(["", *(f"g{i}" for i in range(6))]),
    ),
    max_size=10,
)
PROMPTS = st.lists(
    st.tuples(st.sampled_from([f"s{i}" for i in range(10)]), st.sampled_from("abcdef")),
    max_size=12,
)


@given(sessions=SESSIONS, prompts=PROMPTS)
def test_what_is_linked_is_in_one_group(
    sessions: list[SessionKey], prompts: list[tuple[str, str]]
) -> None:
    found = groups(sessions, prompts)
    assert set(found) == {s.session_id for s in sessions} | {session for session, _ in prompts}
    rows = [(session, digest) for session, digest in prompts]
    placed = [
        (split_of(found[session], 0.5), {"session": session, "prompt": digest})
        for session, digest in rows
    ]
    assert not any(overlaps(placed).values())
    by_group: dict[str, set[str]] = {}
    for key in sessions:
        if key.group_id:
            by_group.setdefault(key.group_id, set()).add(found[key.session_id])
    assert all(len(names) == 1 for names in by_group.values())


@given(sessions=SESSIONS, prompts=PROMPTS, seed=st.randoms())
def test_groups_do_not_depend_on_the_order(
    sessions: list[SessionKey], prompts: list[tuple[str, str]], seed: random.Random
) -> None:
    before = groups(sessions, prompts)
    seed.shuffle(sessions)
    seed.shuffle(prompts)
    assert groups(sessions, prompts) == before


@given(sessions=SESSIONS, prompts=PROMPTS)
def test_later_sessions_move_nobody(
    sessions: list[SessionKey], prompts: list[tuple[str, str]]
) -> None:
    before = groups(sessions, prompts)
    # A later session that resumes an old one, and one that stands alone.
    target = next((key.group_id for key in sessions if key.group_id), "alone")
    later = [SessionKey(99.0, "new1", target), SessionKey(99.0, "new2", "alone2")]
    after = groups([*sessions, *later], [*prompts, ("new1", "new-prompt")])
    known = {key.session_id for key in sessions}
    assert {s: after[s] for s in known} == {s: before[s] for s in known}


def test_an_identical_prompt_joins_two_groups_under_the_earliest() -> None:
    early, late = SessionKey(1.0, "b", "g-early"), SessionKey(2.0, "a", "g-late")
    assert groups([late, early], []) == {"a": "g-late", "b": "g-early"}
    joined = groups([late, early], [("a", "p"), ("b", "p")])
    assert joined == {"a": "g-early", "b": "g-early"}


def test_the_split_is_a_fixed_function_of_the_name() -> None:
    # These are for ever: another value moves published rows between splits.
    names = [f"group-{i}" for i in range(6)]
    assert [name for name in names if split_of(name, 0.2) == "validation"] == ["group-4"]
    shares = Counter(split_of(f"{i}", 0.2) for i in range(5000))
    assert 900 < shares["validation"] < 1100
    small = {f"{i}" for i in range(500) if split_of(f"{i}", 0.1) == "validation"}
    large = {f"{i}" for i in range(500) if split_of(f"{i}", 0.3) == "validation"}
    assert small < large, "a larger share only adds groups"
    assert split_of("x", 0.0) == "train"


def test_the_prompt_hash_sees_every_message_but_not_key_order() -> None:
    one = [{"role": "user", "content": "a"}]
    assert prompt_hash(one) == prompt_hash([{"content": "a", "role": "user"}])
    assert prompt_hash(one) != prompt_hash([*one, {"role": "assistant", "content": ""}])


def test_overlaps_are_counted_by_kind() -> None:
    rows = [("train", {"a": "1", "b": "1"}), ("validation", {"a": "1", "b": "2"})]
    assert overlaps(rows) == {"a": 1, "b": 0}
    assert overlaps([]) == {}
