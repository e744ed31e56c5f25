"""The vote as replay sees it while it asks."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.levels import ActionContext
from composer_pipeline.preferences.eligibility import Reply, is_own
from composer_pipeline.preferences.vote import VoteDecision, same_action
from tests.fixtures.states import made_state


def sh(command):
    return Action("", (ToolCall("Bash", {"command": command}),))


@pytest.mark.parametrize("name", ["claude", "Claude", "ANTHROPIC", "Anthropic"])
def test_the_agents_family_does_not_vote_in_any_spelling(name):
    assert not VoteDecision().votes(name)
    assert is_own(Reply("t", name, "m/x", Action("hi")), None)
    assert is_own(Reply("t", "other", f"{name}/Claude-X", Action("hi")), None)


def test_other_families_vote():
    assert VoteDecision().votes("qwen")


def test_a_family_that_the_model_names_with_capitals_is_the_agents():
    assert is_own(Reply("t", "OpenAI", "x/y", Action("hi")), "gpt-5-codex")
    assert not is_own(Reply("t", "Qwen", "Qwen/Qwen3", Action("hi")), "gpt-5-codex")


def test_two_actions_count_as_one_at_l2_only_where_neither_changes_anything():
    get, other, post = (
        sh(f"curl {more}https://api.test/{path}")
        for more, path in (("", 1), ("", 2), ("-X POST ", 3))
    )
    assert same_action(get, other, ActionContext())
    assert not same_action(get, post, ActionContext())
    assert not same_action(post, get, ActionContext())


def test_clusters_say_who_is_with_the_agent():
    answers = {"a": sh("ls"), "b": sh("ls "), "c": sh("cat x")}
    found = VoteDecision().tally(made_state(action=sh("ls")), answers)
    assert [(c.families, c.agrees_with_student) for c in found] == [(2, True), (1, False)]
