"""Who may vote: own family, languages, unusable replies; and the properties of a vote."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, level
from composer_pipeline.preferences.eligibility import (
    Reply,
    is_own,
    language_of,
    lineage_of,
    lineages_of,
    loosest_terms,
    screen,
)
from composer_pipeline.preferences.vote import tier_of, vote
from tests.fixtures.states import made_state


def state_of(action, messages=(), model=None):
    return made_state(action=action, messages=list(messages), model=model)


def do(name, **args):
    return Action("", (ToolCall(name, args),))


def sh(command):
    return do("Bash", command=command)


def rep(family, action, **more):
    return Reply(f"t-{family}", family, f"m-{family}", action, **more)


READ = do("Read", file_path="a.py")
ENGLISH = "Please look at the cart and tell me what is wrong with the totals that you see."


def user(text):
    return [{"role": "user", "content": text}]


# -- languages -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ENGLISH, "en"),
        ("El problema está en la función que suma los totales, pero no es esta la causa.", "es"),
        ("Le problème est dans la fonction qui calcule les totaux, mais ce n'est pas tout.", "fr"),
        ("Der Fehler ist in der Funktion und wird nicht durch das Update behoben.", "de"),
        ("我已经修复了购物车的总价计算问题。", "zh"),
        ("カートの合計を修正しました。", "ja"),
        ("Я исправил подсчёт итогов в корзине.", "ru"),
        ("장바구니 합계를 수정했습니다.", "ko"),
        ("Done.", ""),
        ("x = [i for i in range(10)]", ""),
        ("```\nthe and is are was this that\n```", ""),
        ("", ""),
    ],
)
def test_languages(text, language):
    assert language_of(text) == language


def test_another_language_is_named_and_kept_out():
    chinese = Action("我已经修复了购物车的总价计算问题,请查看。")
    english = Action("I have fixed the totals in the cart, and all of the tests are green now.")
    kept, out = screen(user(ENGLISH), READ, [rep("a", chinese), rep("b", english)])
    assert [reply.family for reply in kept] == ["b"]
    assert (out[0].reply.teacher, out[0].kind) == ("t-a", "other_language")
    assert out[0].detail == "the reply is in zh, the session in en"
    got = vote(state_of(READ, user(ENGLISH)), [rep("a", chinese), rep("b", english)])
    assert (got.n_usable, got.n_families, len(got.excluded)) == (1, 1, 1)


def test_the_language_of_the_user_counts_and_files_do_not():
    german = "Bitte schau dir die Funktion an, die den Preis nicht berechnet, und sag es mir."
    answer = Action("Der Fehler ist in der Funktion und wird nicht durch das Update behoben.")
    assert screen(user(german), READ, [rep("a", answer)])[1] == []
    unknown = screen(user("fix it"), READ, [rep("a", answer)])
    assert unknown[1] == []
    note = do(
        "Write", file_path="LIESMICH.md", content="Der Fehler ist in der Funktion und nicht da."
    )
    assert screen(user(ENGLISH), READ, [rep("a", note)])[1] == []
    asked = do("AskUserQuestion", questions=[{"question": answer.text}])
    assert screen(user(ENGLISH), READ, [rep("a", asked)])[1][0].kind == "other_language"
    preamble = Action(answer.text, READ.tool_calls)
    assert screen(user(ENGLISH), READ, [rep("a", preamble)])[1] == []


# -- replies that say nothing ---------------------------------------------------------


def test_an_empty_reply_does_not_vote():
    got = vote(state_of(READ), [rep("a", Action(" ")), rep("b", READ), rep("c", READ)])
    assert got.excluded[0].kind == "empty"
    assert (got.n_usable, got.n_agree) == (2, 2)


# -- own family ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lineage"),
    [("claude-opus-4-5", "anthropic"), ("anthropic/claude-x", "anthropic"),
     ("gpt-5-codex", "openai"), ("openai/gpt-oss-120b", "openai"), ("qwen/qwen3-coder", "qwen"),
     ("z-ai/glm-4.6", "zai"), ("moonshotai/kimi-k2", "moonshot"), ("sim-alpha", ""), ("", "")],
)  # fmt: skip
def test_lineages(name, lineage):
    assert lineage_of(name) == lineage


def test_a_distillation_has_two_lineages():
    assert lineages_of("deepseek/deepseek-r1-distill-qwen-32b") == ["deepseek", "qwen"]
    distilled = Reply("t", "house", "house/llama-claude-distill", READ)
    assert is_own(distilled, "claude-sonnet-4")
    assert not is_own(distilled, "gpt-5")


def test_the_states_model_decides_whose_family_it_is():
    replies = [rep("claude", READ), rep("gpt-oss", READ), rep("a", READ)]
    by_claude = vote(state_of(READ, model="claude-sonnet-4-5"), replies)
    assert [r.family for r in by_claude.controls] == ["claude"]
    by_codex = vote(state_of(READ, model="gpt-5-codex"), replies)
    assert [r.family for r in by_codex.controls] == ["gpt-oss"]
    assert by_codex.n_families == 2
    unknown = vote(state_of(READ, model=None), replies)
    assert [r.family for r in unknown.controls] == ["claude"]


# -- properties ------------------------------------------------------------------------

ACTIONS = [
    READ,
    do("Read", file_path="a.py", limit=50),
    do("Read", file_path="a.py", offset=60, limit=5),
    do("Read", file_path="b.py"),
    sh("cat a.py"),
    sh("pytest -q tests"),
    sh("pytest tests -q 2>&1 | tail -5"),
    sh("git commit -m one"),
    sh("git commit -m two"),
    do("Edit", file_path="a.py", old_string="a", new_string="b"),
    do("Edit", file_path="a.py", old_string="a", new_string="c"),
    Action("All done."),
    Action("Shall I push?"),
    Action("", (*READ.tool_calls, *sh("ls").tool_calls)),
]
_replies = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", "e", "claude"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from(ACTIONS),
        st.integers(0, 3),
    ),
    max_size=7,
    unique_by=lambda r: (r[0], r[1]),
).map(
    lambda found: [
        Reply(f"{family}{n}", family, f"m-{family}", action, 10, cost)
        for family, n, action, cost in found
    ]
)


@settings(max_examples=200)
@given(st.sampled_from(ACTIONS), _replies, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_nothing_is_lost(own, replies, shuffle):
    got = vote(state_of(own), replies)
    other = list(replies)
    shuffle.shuffle(other)
    assert vote(state_of(own), other) == got
    accounted = [*got.voters, *got.same_family, *got.controls]
    assert len(accounted) + len(got.excluded) == len(replies)
    assert {r.teacher for r in accounted} | {e.reply.teacher for e in got.excluded} == {
        r.teacher for r in replies
    }
    assert len({r.family for r in got.voters}) == len(got.voters) == got.n_families
    assert all(r.family == "claude" for r in got.controls)


@settings(max_examples=200)
@given(st.sampled_from(ACTIONS), _replies)
def test_winners_agree_among_themselves(own, replies):
    got = vote(state_of(own), replies)
    if got.winner is None:
        assert got.tier == "none"
        return
    assert got.n_agree >= 2
    assert got.winner in got.members
    pairs = {frozenset(names): far for *names, far in got.levels}
    from composer_pipeline.preferences.actions.canonical import mutates

    for x, y in itertools.combinations(got.members, 2):
        far = pairs[frozenset((x.teacher, y.teacher))]
        changes = mutates(x.action) or mutates(y.action)
        assert far <= (Level.L1 if changes else Level.L2)
    sizes = sorted((len(c) for c in got.clusters), reverse=True)
    assert sizes[0] == got.n_agree
    assert len(sizes) == 1 or sizes[0] > sizes[1]
    assert got.margin == pytest.approx((sizes[0] - [*sizes, 0][1]) / got.n_families)
    near = dict(got.to_student)
    assert got.student_level == min(near[m.teacher] for m in got.members)
    assert got.tier == tier_of(got.winner_level, got.student_level, mutating=got.mutating)


@settings(max_examples=100)
@given(st.sampled_from(ACTIONS), _replies, st.integers(1, 4))
def test_doubles_add_no_votes(own, replies, times):
    got = vote(state_of(own), replies)
    more = [replace(r, teacher=f"{r.teacher}-{n}") for r in replies for n in range(times)]
    double = vote(state_of(own), [*replies, *more])
    assert (double.n_families, double.n_agree) == (got.n_families, got.n_agree)
    assert double.tier == got.tier


@settings(max_examples=100)
@given(st.sampled_from(ACTIONS), st.sampled_from(ACTIONS))
def test_levels_are_symmetric(a, b):
    assert level(a, b, ActionContext()).level == level(b, a, ActionContext()).level


def test_levels_are_not_transitive():
    a, b, c = (do("Read", file_path="a", offset=n, limit=10) for n in (1, 8, 15))
    levels = [level(x, y, ActionContext()).level for x, y in ((a, b), (b, c), (a, c))]
    assert levels == [Level.L1, Level.L1, Level.L2]


def test_ties_go_to_the_length_of_the_agent_then_the_shorter_then_the_cheaper():
    short, long = (do("Read", file_path="a.py", limit=n) for n in (1, 100_000_000))
    agent = do("Grep", pattern="x")
    near = vote(state_of(agent), [rep("a", long), rep("b", short)])
    assert near.winner_action == short
    far = do("Grep", pattern="x" * 200)
    assert vote(state_of(far), [rep("a", long), rep("b", short)]).winner_action == long
    between = len(long.to_json()) + len(short.to_json())
    middle = do("Grep", pattern="")
    middle = do("Grep", pattern="x" * (between // 2 - len(middle.to_json())))
    assert abs(2 * len(middle.to_json()) - between) <= 1
    twins = [rep("a", READ, cost_picodollars=5), rep("b", READ, cost_picodollars=1)]
    winner = vote(state_of(agent), twins).winner
    assert winner is not None
    assert winner.family == "b"


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_never_wins_against_an_equally_near_shorter_one(seed):
    rng = random.Random(seed)
    gap = rng.randint(1, 9)
    short = do("Read", file_path="a.py", limit=10**2)
    long = do("Read", file_path="a.py", limit=10 ** (2 + 2 * gap))
    length = (len(short.to_json()) + len(long.to_json())) // 2
    agent = do("Grep", pattern="x" * (length - len(do("Grep", pattern="").to_json())))
    families = [rep("a", long, cost_picodollars=0), rep("b", short, cost_picodollars=9)]
    assert vote(state_of(agent), families).winner_action == short


def test_the_loosest_terms_of_a_votes_replies():
    def said(*terms):
        action = Action("x")
        return loosest_terms(Reply("t", "f", "m", action, training_terms=t) for t in terms)

    assert said("enforced", "enforced") == "enforced"
    assert said("declared", "enforced") == "declared"
    assert said("enforced", None, "declared") == "unknown"
    assert said("not enforced", None, "enforced") == "not enforced"
    assert said() == "unknown"
    assert said("enforced", "a word of a later version") == "a word of a later version"
