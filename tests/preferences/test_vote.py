"""The vote: families, linkage, winners, medoids, tiers."""

import itertools
from dataclasses import replace

import pytest

from composer_pipeline.actions import Action, ToolCall, apply_edits
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import known_content
from composer_pipeline.preferences.eligibility import Reply
from composer_pipeline.preferences.vote import complete_linkage, home_of, tier_of, vote
from tests.fixtures.states import made_state


def state_of(action, messages=(), model=None):
    return made_state(action=action, messages=list(messages), model=model)


def do(name, **args):
    return Action("", (ToolCall(name, args),))


def sh(command):
    return do("Bash", command=command)


def rep(family, action, **more):
    return Reply(teacher=f"t-{family}", family=family, model=f"m-{family}", action=action, **more)


CAT, READ = sh("cat a.py"), do("Read", file_path="a.py")
READ_TOP = do("Read", file_path="a.py", limit=50)
READ_END = do("Read", file_path="a.py", offset=60, limit=5)


def test_two_families_beat_the_agent():
    got = vote(state_of(CAT), [rep("a", READ), rep("b", READ_TOP), rep("c", CAT)])
    assert (got.tier, got.is_pair, got.n_agree, got.n_families) == ("gold", True, 2, 3)
    assert (got.winner_level, got.student_level) == (Level.L1, Level.NONE)
    assert got.winner_action in (READ, READ_TOP)
    assert {r.family for r in got.members} == {"a", "b"}
    assert got.margin == pytest.approx(1 / 3)
    assert got.entropy == pytest.approx(0.9183, abs=1e-4)
    assert not got.agrees_with_student


def test_one_family_is_one_vote():
    other = replace(rep("a", READ), teacher="t-a2")
    got = vote(state_of(CAT), [rep("a", READ), other, rep("b", CAT)])
    assert (got.n_usable, got.n_families, got.winner_action) == (3, 2, None)


@pytest.mark.parametrize("family", ["claude", "anthropic", "Anthropic"])
def test_the_agents_family_never_votes(family):
    got = vote(state_of(CAT), [rep(family, READ), rep("a", READ)])
    assert (got.n_families, got.winner_action, got.tier) == (1, None, "none")


def test_a_tie_has_no_winner():
    got = vote(state_of(CAT), [rep("a", READ), rep("b", READ), rep("c", CAT), rep("d", CAT)])
    assert got.winner_action is None
    assert got.margin == 0


def test_consensus_is_kept_when_it_is_the_agents_action():
    got = vote(state_of(CAT), [rep("a", CAT), rep("b", CAT)])
    assert got.winner_action == CAT
    assert (got.tier, got.is_pair, got.agrees_with_student) == ("none", False, True)


def test_no_replies():
    got = vote(state_of(CAT), [])
    assert (got.winner_action, got.n_families, got.winner_level) == (None, 0, Level.NONE)


def test_complete_linkage_does_not_chain():
    near, far = Level.L2, Level.L4
    distance = [[Level.L0, near, far], [near, Level.L0, near], [far, near, Level.L0]]
    assert complete_linkage([False] * 3, distance) == [[0, 1], [2]]


def test_closest_clusters_merge_first():
    near, far = Level.L1, Level.L2
    distance = [[Level.L0, far, Level.L4], [far, Level.L0, near], [Level.L4, near, Level.L0]]
    assert complete_linkage([False] * 3, distance) == [[1, 2], [0]]


def test_mutating_actions_need_l1_and_reading_ones_l2():
    commits = [sh("git commit -m one"), sh("git commit -m two")]
    assert vote(state_of(CAT), [rep("a", commits[0]), rep("b", commits[1])]).winner_action is None
    reads = vote(state_of(do("WebSearch", query="x")), [rep("a", READ_TOP), rep("b", READ_END)])
    assert (reads.winner_level, reads.tier) == (Level.L2, "silver")


def test_known_content_makes_edits_equal():
    seen = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "Read",
                                           "input": {"file_path": "/home/user/shop/a.py"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
                                      "content": "     1→x = 1\n     2→y = 1"}]},
    ]  # fmt: skip
    short = do("Edit", file_path="a.py", old_string="x = 1", new_string="x = 2")
    long = do(
        "Edit", file_path="/home/user/shop/a.py", old_string="x = 1\ny", new_string="x = 2\ny"
    )
    replies = [rep("a", short), rep("b", long)]
    assert vote(state_of(CAT, seen), replies).winner_level == Level.L1
    assert vote(state_of(CAT), replies).winner_action is None


def test_medoid_then_length_then_price():
    same = [do("Read", file_path="a.py", limit=n) for n in (10, 20)]
    far = do("Read", file_path="a.py", offset=11, limit=5)
    got = vote(state_of(CAT), [rep("a", same[0]), rep("b", same[1]), rep("c", far)])
    assert got.winner_action == same[1]
    twins = [rep("a", READ, cost_picodollars=9), rep("b", READ, cost_picodollars=2)]
    winner = vote(state_of(CAT), twins).winner
    assert winner is not None
    assert winner.family == "b"
    wordy = Action("I will now carefully read this file.", READ.tool_calls)
    assert vote(state_of(CAT), [rep("a", wordy), rep("b", READ)]).winner_action == READ


def test_order_of_replies_does_not_matter():
    replies = [
        rep("a", READ),
        rep("b", READ_TOP),
        rep("c", READ_END),
        rep("d", CAT),
        replace(rep("a", CAT), teacher="t-a2"),
    ]
    outcomes = {
        repr((v.winner_action, v.members, v.clusters))
        for v in (vote(state_of(CAT), order) for order in itertools.permutations(replies))
    }
    assert len(outcomes) == 1


@pytest.mark.parametrize(
    ("winner", "student", "mutating", "tier"),
    [
        (0, 5, False, "gold"),
        (1, 4, True, "gold"),
        (0, 2, True, "silver"),
        (1, 2, False, "style"),
        (2, 5, False, "silver"),
        (2, 4, False, "none"),
        (2, 2, False, "none"),
        (0, 1, True, "none"),
        (0, 0, False, "none"),
    ],
)
def test_tiers(winner, student, mutating, tier):
    assert tier_of(Level(winner), Level(student), mutating=mutating) == tier


@pytest.mark.parametrize(
    ("cwd", "home"),
    [("/home/user/x", "/home/user"), ("/Users/user/x/y", "/Users/user"), ("/root/x", "/root"),
     ("/srv/x", ""), ("", "")],
)  # fmt: skip
def test_home(cwd, home):
    assert home_of(cwd) == home


def _turn(number, name, args, result, *, error=False):
    block = {"type": "tool_result", "tool_use_id": str(number), "content": result}
    use = {"type": "tool_use", "id": str(number), "name": name, "input": args}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{**block, "is_error": True} if error else block]},
    ]


def test_known_content_follows_the_prefix():
    path = {"file_path": "/a"}
    messages = [
        *_turn(1, "Read", path, "     1→one\n     2→two\n\n<system-reminder>x</system-reminder>"),
        *_turn(2, "Edit", {**path, "old_string": "two", "new_string": "2"}, "updated"),
        *_turn(3, "Edit", {**path, "old_string": "one", "new_string": "1"}, "no", error=True),
        *_turn(4, "Write", {"file_path": "/b", "content": "b"}, "created"),
        *_turn(5, "Read", {"file_path": "/c", "offset": 5}, "     5→x"),
    ]
    assert known_content(messages) == {"/a": "one\n2\n", "/b": "b"}
    lost = _turn(6, "Edit", {**path, "old_string": "absent", "new_string": "z"}, "updated")
    assert "/a" not in known_content([*messages, *lost])


def test_apply_edits():
    once = {"old_string": "a", "new_string": "b"}
    assert apply_edits("a c", "Edit", once) == "b c"
    assert apply_edits("a a", "Edit", once) is None
    assert apply_edits("a a", "Edit", {**once, "replace_all": True}) == "b b"
    assert apply_edits("x", "Edit", once) is None
    assert (
        apply_edits("a", "MultiEdit", {"edits": [once, {"old_string": "b", "new_string": "c"}]})
        == "c"
    )
    assert apply_edits("a", "MultiEdit", {"edits": [once, once]}) is None


GET, POST = sh("curl https://api.test/a"), sh("curl -X POST https://api.test/b")


def test_one_mutating_action_is_not_linked_at_l2():
    # The same host is the same target; only one of the two changes something there.
    got = vote(state_of(READ), [rep("a", GET), rep("b", POST)])
    assert got.levels[0][2] is Level.L2
    assert got.winner_action is None
    both_look = vote(state_of(READ), [rep("a", GET), rep("b", sh("curl https://api.test/b"))])
    assert both_look.n_agree == 2


def test_an_agent_that_changes_something_is_not_confirmed_at_l2():
    got = vote(state_of(POST), [rep("a", GET), rep("b", GET)])
    assert (got.student_level, got.mutating, got.agrees_with_student) == (Level.L2, True, False)
    assert got.tier == "silver"
    looks = vote(state_of(sh("curl https://api.test/b")), [rep("a", GET), rep("b", GET)])
    assert (looks.mutating, looks.agrees_with_student, looks.tier) == (False, True, "style")
