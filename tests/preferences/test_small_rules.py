"""One rule each: which replies join, what is prose, and where home is."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.eligibility import language_of, prose_of
from composer_pipeline.preferences.vote import complete_linkage, home_of
from composer_pipeline.preferences.vote_rows import compare


def test_clusters_are_as_wide_as_their_farthest_two():
    near, same, far, none = Level.L2, Level.L0, Level.L1, Level.L4
    distance = [
        [same, same, same, none],
        [same, same, near, none],
        [same, near, same, far],
        [none, none, far, same],
    ]
    # 2 is as near to 0 as 1 is, but 1 and 2 differ more than 2 and 3.
    assert complete_linkage([False] * 4, distance) == [[0, 1], [2, 3]]


def test_prose_is_what_a_person_reads():
    assert prose_of(Action("Done.")) == "Done."
    ask = ToolCall("Task", {"prompt": "Look into it", "description": "Look"})
    assert prose_of(Action("", (ToolCall("Bash", {"command": "ls"}), ask))) == "Look into it"
    assert prose_of(Action("", (ToolCall("Bash", {"command": "ls"}),))) == ""


def test_an_address_has_no_language():
    assert language_of("https://x.example/the/and/is/are/was/this") == ""
    assert language_of("the code and `is are` was this") == "en"


@pytest.mark.parametrize(
    ("cwd", "home"),
    [
        ("/home/user", "/home/user"),
        ("/home/user/shop", "/home/user"),
        ("/Users/ana/a/b", "/Users/ana"),
        ("/root", "/root"),
        ("/home", ""),
        ("/srv/home/x", ""),
        ("", ""),
    ],
)
def test_home_is_told_from_the_folder(cwd, home):
    assert home_of(cwd) == home


def test_an_action_of_nothing_is_an_action():
    assert compare({"a": {}, "b": {}})["level"] == "L0"
