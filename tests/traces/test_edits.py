"""Which edit wrote a line, and which edits a session took back."""

from typing import Any

import pytest

from composer_pipeline.traces.edits import Author, Edits, undone

A = "/srv/p/a.py"
TEN = "\n".join(f"line number {i}" for i in range(1, 11))


def read(s: Any, call: str, text: str, path: str = A, first: int = 1, **rest: Any) -> None:
    s.call(f"m{call}", call, "Read", file_path=path, **rest)
    numbered = (f"{n:6d}→{line}" for n, line in enumerate(text.split("\n"), first))
    s.result(call, "\n".join(numbered))


def edit(s: Any, call: str, old: str, new: str, path: str = A, *, message: str = "") -> None:
    s.call(message or f"m{call}", call, "Edit", file_path=path, old_string=old, new_string=new)
    s.result(call, f"The file {path} has been updated successfully.")


def bash(s: Any, call: str, command: str, output: str = "", *, error: bool = False) -> None:
    s.call(f"m{call}", call, command=command)
    s.result(call, output, error=error)


class Blame:
    """Names of calls in place of authors."""

    def __init__(self, graph: Any, s: Any) -> None:
        self.graph = graph(s.data)[0]
        self.edits = Edits(self.graph, sorted(self.graph.active_nodes()))

    def call(self, author: Author | None) -> str | None:
        return author and self.graph.nodes[author.node].calls[author.call].id

    def of(self, number: int, source: str = "", path: str = A) -> tuple[str | None, bool]:
        author, sure = self.edits.lines(path, len(self.graph.nodes)).author(number, source)
        return self.call(author), sure

    def undone(self) -> set[str | None]:
        return {self.call(author) for author in undone(self.edits)}


@pytest.fixture
def s(script: Any) -> Any:
    s = script()
    s.user("go")
    return s


def test_a_file_whose_name_begins_with_a_dot_is_found(graph: Any, s: Any) -> None:
    edit(s, "ci", "on: push", "on: pull", "/srv/p/.github/ci.yml")
    edit(s, "env", "A=1", "A=2", "/srv/p/.env")
    edits = Blame(graph, s).edits
    assert edits.resolve("./.github/ci.yml", 99) == "/srv/p/.github/ci.yml"
    assert edits.resolve("../p/.env", 99) == "/srv/p/.env"
    assert edits.resolve("env", 99) is None


def test_lines_move_with_insertions_and_keep_their_authors(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "five", "line number 5", "line five of e1")
    edit(s, "insert", "line number 2\n", "line number 2\nnew one\nnew two\n")
    blame = Blame(graph, s)
    assert [blame.of(n)[0] for n in (2, 3, 4, 5, 6, 7, 8)] == [
        None, "insert", "insert", None, None, "five", None,
    ]  # fmt: skip


def test_an_edit_owns_only_the_lines_that_differ(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(
        s, "e", "line number 3\nline number 4\nline number 5", "line number 3\nfour\nline number 5"
    )
    blame = Blame(graph, s)
    assert [blame.of(n)[0] for n in (3, 4, 5)] == [None, "e", None]


def test_the_last_edit_of_a_line_owns_it(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "early", "line number 4", "line four early")
    edit(s, "late", "line four early", "line four late")
    edit(s, "beside", "line number 6", "line six")
    assert Blame(graph, s).of(4) == ("late", True)


def test_two_edits_of_one_response_are_told_apart(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "one", "line number 4", "line four", message="both")
    edit(s, "two", "line number 7", "line seven", message="both")
    blame = Blame(graph, s)
    assert (blame.of(4)[0], blame.of(7)[0]) == ("one", "two")


def test_what_a_formatter_wrote_is_nobodys(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four\nline   four and a half")
    bash(s, "fmt", "gofmt -w .")
    assert Blame(graph, s).of(4)[1] is False
    read(s, "again", TEN.replace("line number 4", "line four\nline four, and a half"))
    blame = Blame(graph, s)
    assert (blame.of(4), blame.of(5)) == (("e", True), (None, True))


def test_an_edit_by_a_subagent_is_not_the_main_agents(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four")
    s.call("mt", "t", "Task", prompt="rewrite it")
    s.result("t", "done")
    assert Blame(graph, s).of(4)[1] is False
    assert Blame(graph, s).of(4, "line four") == ("e", True)
    read(s, "again", TEN.replace("line number 4", "line four of the subagent"))
    assert Blame(graph, s).of(4) == (None, True)


def test_the_shown_line_corrects_the_number(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four")
    assert Blame(graph, s).of(9, "line four") == ("e", True)
    assert Blame(graph, s).of(4, "something else") == (None, False)


def test_new_files_here_documents_and_appended_lines(graph: Any, s: Any) -> None:
    s.call("w", "w", "Write", file_path=A, content="first line\nsecond line\n")
    s.result("w", "File created")
    bash(s, "append", f"cat >> {A} << 'EOF'\nthird line\nEOF")
    bash(s, "doc", "cd sub && cat > b.py <<EOF\nfile b\nEOF")
    blame = Blame(graph, s)
    assert [blame.of(n)[0] for n in (1, 2, 3)] == ["w", "w", "append"]
    assert blame.edits.resolve("sub/b.py", 99) is None  # the folder of a document is not followed
    assert blame.of(1, path="/srv/p/b.py")[0] == "doc"


def test_a_renamed_file_keeps_its_lines(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four")
    bash(s, "mv", "git mv a.py src/b.py")
    edit(s, "later", "line number 9", "line nine", "/srv/p/src/b.py")
    blame = Blame(graph, s)
    assert [blame.of(n, path="/srv/p/src/b.py")[0] for n in (4, 9)] == ["e", "later"]
    assert blame.edits.resolve("src/b.py", 99) == "/srv/p/src/b.py"


def test_the_snippet_of_a_result_places_an_edit_of_an_unread_file(graph: Any, s: Any) -> None:
    s.call(
        "me", "e", "Edit", file_path=A, old_string="old call", new_string="new call\nsecond call"
    )
    shown = "   40→before\n   41→new call\n   42→second call\n   43→after"
    s.result("e", f"The file {A} has been updated. Here's the result of running `cat -n`:\n{shown}")
    blame = Blame(graph, s)
    assert [blame.of(n)[0] for n in (40, 41, 42, 43)] == [None, "e", "e", None]


def test_git_checkout_gives_lines_back(graph: Any, s: Any) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four")
    bash(s, "undo", "git checkout -- a.py")
    assert Blame(graph, s).of(4) == (None, False)
    assert Blame(graph, s).undone() == {"e"}


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["git checkout -- a.py"], {"e"}),
        (["git restore a.py"], {"e"}),
        (["git restore --staged a.py"], set()),
        (["git checkout -- b.py"], set()),
        (["git checkout other-branch"], set()),
        (["git reset --hard"], {"e"}),
        (["git stash"], {"e"}),
        (["git stash", "git stash pop"], set()),
        (["git stash && make test; git stash pop"], set()),
        (["git stash list"], set()),
        (["git commit -am x", "git checkout -- a.py"], set()),
        (["git commit -am x", "git checkout HEAD~1 -- a.py"], {"e"}),
        (["git commit -am x", "git reset --hard HEAD~1"], {"e"}),
        (["git checkout a.py 2>/dev/null || echo none"], set()),
        (["echo 'git reset --hard'"], set()),
    ],
)
def test_undo_by_git(graph: Any, s: Any, commands: list[str], expected: set[str]) -> None:
    edit(s, "e", "line number 4", "line number four of four")
    for number, command in enumerate(commands):
        bash(s, f"g{number}", command)
    assert Blame(graph, s).undone() == expected


def test_an_undo_that_the_file_contradicts_is_none(graph: Any, s: Any) -> None:
    edit(s, "e", "line number 4", "line number four of four")
    bash(s, "g", "git stash")
    read(s, "r", "line number four of four", first=4, offset=4, limit=1)
    assert Blame(graph, s).undone() == set()


def test_an_edit_back_takes_an_edit_back_until_it_is_made_again(graph: Any, s: Any) -> None:
    edit(s, "there", "old words here", "new words here")
    edit(s, "back", "new words here", "old words here")
    assert Blame(graph, s).undone() == {"there"}
    edit(s, "again", "old words here", "new words here")
    assert Blame(graph, s).undone() == {"back"}
