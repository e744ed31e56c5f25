"""Whose mistake an error turn was: verdicts, culprits and lessons."""

import json
from typing import Any

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import build_hints, succeeded
from composer_pipeline.preferences.quality import leaks
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.verdicts import about_the_call, lesson_of, signature
from tests.traces.test_edits import TEN, A, bash, edit, read

TEST = "def test_a():\n    assert f() == 1\n"
RED = "Exit code 1\ntests/test_z.py:2: AssertionError: boom\n==== 1 failed in 0.1s ===="
GREEN = "==== 3 passed in 0.1s ===="


@pytest.fixture
def s(script: Any) -> Any:
    s = script()
    s.user("add a cache")
    return s


@pytest.fixture
def judged(lake: Lake, projects: Any) -> Any:
    def judge(s: Any) -> dict[str, tuple[str | None, str | None]]:
        """Return message to (verdict, message of the culprit)."""
        s.say("end", "done")
        ingest(lake, [s.write(projects)])
        states = {state.state_id: state for state in load_states(lake)}
        names = {state_id: state.message_id for state_id, state in states.items()}
        return {
            state.message_id: (state.verdict, names.get(state.culprit_state_id or ""))
            for state in states.values()
            if state.error_kind
        }

    return judge


def state(lake: Lake, message: str) -> Any:
    return next(state for state in load_states(lake) if state.message_id == message)


@pytest.mark.parametrize(
    ("command", "output", "verdict"),
    [
        ("cd src && pytest", "Exit code 1\n(eval):cd:1: no such file or directory: src", "mistake"),
        ("timeout 5 ls", "Exit code 127\nbash: line 1: timeout: command not found", "mistake"),
        ("tool --fsat", "Exit code 2\nerror: unexpected argument '--fsat' found", "mistake"),
        ("git push", "Exit code 128\nfatal: The branch x has no upstream branch.", "mistake"),
        ("gh api repos/x", "Exit code 1\ngh: Not Found (HTTP 404)", "mistake"),
        ("python - <<'E'\nimport foo\nE", 'Exit code 1\nTraceback (most recent call last):\n'
         '  File "<stdin>", line 1, in <module>\nModuleNotFoundError: No module named', "mistake"),
        ("mise run fmt", "Exit code 1\nConfig files in ~/x are not trusted.", "preexisting"),
        ("git merge main", "Exit code 1\nCONFLICT (content): Merge conflict in a", "preexisting"),
        ("curl https://x", "Exit code 6\ncurl: (6) Could not resolve host: x", "preexisting"),
        ("grep -rn cache src", "Exit code 1", "not_an_error"),
        ("./run-it", "Exit code 3\nsomething happened", "preexisting"),
        ("pytest", RED, "preexisting"),
    ],
)  # fmt: skip
def test_commands_before_any_edit(
    judged: Any, s: Any, command: str, output: str, verdict: str
) -> None:
    bash(s, "run", command, output, error=True)
    assert judged(s)["mrun"][0] == verdict


def test_an_unknown_failure_after_edits_is_unclear(judged: Any, s: Any) -> None:
    edit(s, "e", "a", "b")
    bash(s, "run", "./run-it", "Exit code 3\nsomething happened", error=True)
    assert judged(s) == {"mrun": ("unclear", None)}


def test_a_failed_edit_and_a_wrong_path_are_mistakes(judged: Any, s: Any) -> None:
    s.call("m1", "e", "Edit", file_path=A, old_string="a", new_string="b")
    s.result(
        "e", "<tool_use_error>String to replace not found in file.</tool_use_error>", error=True
    )
    s.call("m2", "r", "Read", file_path="/srv/p/none.py")
    s.result("r", "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    assert judged(s) == {"m1": ("mistake", "m1"), "m2": ("mistake", "m2")}


def test_what_the_user_named_is_no_mistake_of_the_agent(judged: Any, script: Any) -> None:
    s = script()
    s.user("read /srv/p/none.py")
    s.call("m2", "r", "Read", file_path="/srv/p/none.py")
    s.result("r", "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    assert judged(s) == {"m2": ("preexisting", None)}


def test_a_line_belongs_to_the_edit_that_wrote_it(judged: Any, s: Any, lake: Lake) -> None:
    read(s, "r", TEN)
    edit(s, "early", "line number 4", "early line")
    edit(s, "right", "line number 6", "line six\nbad line")
    edit(s, "late", "line number 9", "late line")
    edit(s, "above", "line number 1\n", "line number 1\ninserted\ninserted too\n")
    output = f"Exit code 1\n{A}:9:1: F821 undefined name `bad`"
    bash(s, "lint", "ruff check .", output, error=True)
    assert judged(s) == {"mlint": ("revealed", "mright")}
    found = state(lake, "mlint")
    assert (found.culprit_by, found.verdict_reason, found.culprit_call) == ("line", "content", 0)
    assert found.lesson == f"{A}:9:1: F821 undefined name `bad`"


def test_a_formatters_line_is_not_the_agents(judged: Any, s: Any, lake: Lake) -> None:
    read(s, "r", TEN)
    edit(s, "e", "line number 4", "line four")
    bash(s, "fmt", "ruff format .")
    read(s, "again", TEN.replace("line number 4", "line four").replace("number 8", "8 reformatted"))
    edit(s, "other", "hello", "world", "/srv/p/b.py")
    bash(s, "lint", "ruff check .", f"Exit code 1\n{A}:8:1: E501 line too long", error=True)
    judged(s)
    assert state(lake, "mlint").culprit_by != "line"


def test_a_removed_import_is_the_fault_of_the_removal(judged: Any, s: Any) -> None:
    read(s, "r", "import json\n\ndef f():\n    return json.dumps(1)")
    edit(s, "use", "    return json.dumps(1)", "    return '1'")
    edit(s, "other", "def f():", "def g():")
    bash(
        s,
        "lint",
        "ruff check .",
        f"Exit code 1\n{A}:1:8: F401 `json` imported but unused",
        error=True,
    )
    assert judged(s) == {"mlint": ("revealed", "muse")}


def test_a_changed_signature_breaks_an_untouched_caller(judged: Any, s: Any, lake: Lake) -> None:
    read(s, "r", "def load(path):\n    return path")
    edit(s, "sig", "def load(path):", "def load(path, mode):")
    edit(s, "other", "def start():", "def begin():", "/srv/p/c.py")
    output = (
        "Exit code 1\ntests/test_a.py:5: TypeError: load() missing 1 required positional argument:"
        " 'mode'\n==== 1 failed in 0.1s ===="
    )
    bash(s, "t", "pytest", output, error=True)
    assert judged(s) == {"mt": ("revealed", "msig")}
    assert (state(lake, "mt").culprit_by, state(lake, "mt").verdict_reason) == (
        "symbol", "propagation",
    )  # fmt: skip


def test_a_line_that_passed_before_is_not_to_blame(judged: Any, s: Any) -> None:
    s.call(
        "mw",
        "w",
        "Write",
        file_path="/srv/p/tests/test_a.py",
        content=TEST,
    )
    s.result("w", "File created")
    bash(s, "green", "pytest", GREEN)
    edit(s, "broke", "return 1", "return 2")
    output = "Exit code 1\ntests/test_a.py:2: AssertionError\n==== 1 failed in 0.1s ===="
    bash(s, "red", "pytest", output, error=True)
    assert judged(s) == {"mred": ("revealed", "mbroke")}


def test_a_red_phase_is_expected(judged: Any, s: Any) -> None:
    s.call(
        "mw",
        "w",
        "Write",
        file_path="/srv/p/tests/test_a.py",
        content=TEST,
    )
    s.result("w", "File created")
    s.say("mred", "Now verify that the new test fails first.")
    s.call("mred", "t", command="pytest")
    s.result(
        "t",
        "Exit code 1\ntests/test_a.py:2: AssertionError\n==== 1 failed in 0.1s ====",
        error=True,
    )
    assert judged(s) == {"mred": ("preexisting", None)}


def test_a_failure_seen_before_the_first_edit_was_there(judged: Any, s: Any) -> None:
    bash(s, "before", "pytest", RED, error=True)
    edit(s, "e", "hello world", "good bye", "/srv/p/unrelated.py")
    bash(s, "after", "pytest", RED, error=True)
    assert {verdict for verdict, _ in judged(s).values()} == {"preexisting"}


def test_a_failure_that_goes_away_by_itself_is_flaky(judged: Any, s: Any, lake: Lake) -> None:
    edit(s, "e", "hello world", "good bye", "/srv/p/unrelated.py")
    bash(
        s,
        "one",
        "pytest",
        RED,
        error=True,
    )
    bash(s, "two", "pytest", GREEN)
    assert judged(s) == {"mone": ("preexisting", None)}
    assert state(lake, "mone").verdict_reason == "flaky"


def test_a_subagents_edit_is_not_blamed_on_the_main_agent(judged: Any, s: Any) -> None:
    s.call("mt", "t", "Task", prompt="write it")
    s.result("t", "done")
    bash(
        s,
        "run",
        "pytest",
        f"Exit code 1\n{A}:4: AssertionError\n==== 1 failed in 0.1s ====",
        error=True,
    )
    assert judged(s) == {"mrun": ("unclear", None)}


def test_a_log_cut_off_before_a_passing_run_is_no_error(judged: Any, s: Any) -> None:
    edit(s, "e", "hello world", "good bye")
    bash(s, "cut", "bun test | head -3", "error: on purpose\nmore")
    bash(s, "whole", "bun test", " 3 pass\n 0 fail")
    assert judged(s) == {"mcut": ("not_an_error", None)}


def test_a_refused_call_is_the_users_choice(judged: Any, s: Any) -> None:
    bash(
        s,
        "no",
        "rm -rf x",
        "Permission for this tool use was denied. The user said: no",
        error=True,
    )
    assert judged(s) == {"mno": ("user_choice", None)}


def test_lessons_name_the_place_and_stay_short() -> None:
    noise = "\n".join(f"ok  \tpkg/{n}\t0.1s" for n in range(200))
    text = f"Exit code 1\n{noise}\na.go:3:1: bad thing (lint)\n\tx := 1\n\t^\n{noise}"
    assert lesson_of(text, ["a.go"]) == "a.go:3:1: bad thing (lint)\n\tx := 1\n\t^"
    assert len(lesson_of("error: x\n" * 500)) <= 600
    assert (
        lesson_of("Found 2 matches of the string\nString: a\nb") == "Found 2 matches of the string"
    )


def test_complaints_about_the_call() -> None:
    assert about_the_call("Exit code 1\nls: cannot access 'x': No such file or directory")
    assert not about_the_call("Exit code 1\nsomething happened")


def test_a_signature_is_the_check_without_options_and_filters() -> None:
    assert signature("cd x && go test ./... -run A -v 2>&1 | tail -5") == frozenset({"go test"})
    assert signature("mise run lint && mise run test") == frozenset(
        {"mise run lint", "mise run test"}
    )
    assert signature("ls -la") == frozenset()


def test_hints_stand_at_the_culprit_and_each_action_is_taught_once(
    judged: Any, s: Any, lake: Lake
) -> None:
    read(s, "r", TEN)
    edit(s, "one", "line number 4", "line four", message="both")
    edit(s, "two", "line number 7", "line seven", message="both")
    output = f"\x1b[31mExit code 1\x1b[0m\n{A}:7:1: F821 undefined name `x`"
    bash(s, "lint", "ruff check .", output, error=True)
    bash(s, "again", "ruff check .", output, error=True)
    bash(
        s,
        "wrong",
        "cd none",
        "Exit code 1\n(eval):cd:1: no such file or directory: none",
        error=True,
    )
    judged(s)
    build_hints(lake)
    names = {state.state_id: state.message_id for state in load_states(lake)}
    rows = {names[row["state_id"]]: row for row in lake.rows("hints")}
    assert sorted(rows) == ["both", "mwrong"]
    assert names[rows["both"]["error_state_id"]] == "mlint"
    assert rows["both"]["span_call"] == 1
    assert "line seven" in rows["both"]["span_text"]
    assert rows["both"]["text"] == f"{A}:7:1: F821 undefined name `x`"
    assert "\x1b" not in rows["both"]["whole"]
    assert [state(lake, name).caused_error is not None for name in ("both", "mlint", "mwrong")] == [
        True, False, True,
    ]  # fmt: skip
    assert not succeeded(state(lake, "both"))


@pytest.mark.parametrize(
    ("words", "taught"),
    [("use uv, not pip", True), ("no, keep Python", True), ("why not adding a test?", True),
     ("sorry, continue", False), ("Commit", False), ("you good there?", False)],
)  # fmt: skip
def test_only_words_that_say_what_to_do_instead_are_a_hint(
    judged: Any, s: Any, lake: Lake, words: str, taught: bool
) -> None:
    refusal = "The user doesn't want to proceed with this tool use. To tell you how to proceed,"
    bash(s, "no", "pip install x", f"{refusal} the user said:\n{words}", error=True)
    assert judged(s)["mno"][0] == "user_choice"
    assert build_hints(lake).hints == taught
    assert [row["text"] for row in lake.rows("hints")] == [words] * taught


def test_each_call_of_a_batch_is_judged_and_each_fault_once(
    judged: Any, s: Any, lake: Lake
) -> None:
    read(s, "r", TEN)
    edit(s, "one", "line number 4", "bad line")
    edit(s, "two", "hello", "worse line", "/srv/p/b.py")
    s.call("mall", "path", "Read", file_path="/srv/p/none.py")
    s.call("mall", "lint", command="ruff check .")
    s.call("mall", "again", command="ruff check a.py")
    s.call("mall", "types", command="pytest | tail -3")
    s.result("path", "<tool_use_error>File does not exist.</tool_use_error>", error=True)
    for call in ("lint", "again"):
        s.result(call, f"Exit code 1\n{A}:4:1: F821 undefined name `bad`", error=True)
    s.result("types", "/srv/p/b.py:1: AssertionError: worse\n==== 1 failed in 0.1s ====")
    assert judged(s) == {"mall": ("revealed", "mone")}
    found = state(lake, "mall")
    more = [json.loads(text) for text in found.more_failures]
    names = {each.state_id: each.message_id for each in load_states(lake)}
    assert [
        (
            error["error_kind"],
            error["verdict"],
            error["hint_call"],
            names[error["culprit_state_id"]],
        )
        for error in more
    ] == [("tool_error", "mistake", 0, "mall"), ("soft_failure", "revealed", 3, "mtwo")]
    assert (found.hint_call, more[0]["lesson"]) == (1, "File does not exist.")
    caused = {names[each.state_id] for each in load_states(lake) if each.caused_error}
    assert caused == {"mone", "mtwo", "mall"}
    build_hints(lake)
    hints = {names[row["state_id"]]: row for row in lake.rows("hints")}
    assert {name: (row["span_call"], row["verdict"]) for name, row in hints.items()} == {
        "mone": (0, "revealed"), "mall": (0, "mistake"), "mtwo": (0, "revealed"),
    }  # fmt: skip
    assert {row["error_state_id"] for row in hints.values()} == {found.state_id}
    assert leaks(lake, "hints") == []


def test_a_batch_of_one_failure_has_no_more(judged: Any, s: Any, lake: Lake) -> None:
    bash(s, "x", "ls none", "Exit code 1\nls: none: No such file or directory", error=True)
    judged(s)
    assert state(lake, "mx").more_failures is None


def test_a_batch_that_the_user_refuses_is_one_refusal(judged: Any, s: Any, lake: Lake) -> None:
    for call in ("one", "two"):
        s.call("mboth", call, command=f"rm {call}")
    for call in ("one", "two"):
        refusal = "The user doesn't want to proceed with this tool use; the user said:\nuse git rm"
        s.result(call, refusal, error=True)
    assert judged(s) == {"mboth": ("user_choice", "mboth")}
    assert state(lake, "mboth").more_failures is None
