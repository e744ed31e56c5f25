"""What is known of files before an action, and what counts as a change."""

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.preferences.actions.canonical import mutates
from composer_pipeline.preferences.actions.levels import ActionContext, known_content
from composer_pipeline.preferences.actions.shell_parse import Place

PLACE = Place("/home/user/shop", "/home/user")


@pytest.mark.parametrize(
    "path", ["/home/user/shop/a.py", "a.py", "./a.py", "~/shop/a.py", "src/../a.py"]
)
def test_a_file_is_known_by_every_spelling_of_its_path(path):
    for spelling in ("/home/user/shop/a.py", "a.py"):
        context = ActionContext(PLACE, {spelling: "x = 1\n"})
        assert context.content(path) == "x = 1\n"
        assert context.content("b.py") is None


def test_an_edit_that_cannot_be_followed_makes_a_file_unknown():
    def prefix(*calls):
        blocks = []
        for number, (name, arguments, result) in enumerate(calls):
            call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": arguments}
            answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
            blocks += [
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [answer]},
            ]
        return blocks

    write = ("Write", {"file_path": "/a.py", "content": "x = 1\n"}, "written")
    edit = {"file_path": "/a.py", "new_string": "2"}
    followed = ("Edit", {**edit, "old_string": "1"}, "edited")
    lost = ("Edit", {**edit, "old_string": "what a hook had put there"}, "edited")
    assert known_content(prefix(write, followed)) == {"/a.py": "x = 2\n"}
    assert known_content(prefix(write, lost)) == {}


@pytest.mark.parametrize("command", [None, 3, ["rm", "-r", "x"]])
def test_a_command_that_is_no_text_may_do_anything(command):
    assert mutates(Action("", (ToolCall("Bash", {"command": command}),)))
