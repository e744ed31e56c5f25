"""Levels of agreement: a hand-written table, and the properties that hold for all pairs."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.errors import InputError
from composer_pipeline.preferences.vote_rows import compare

CWD, HOME = "/home/ana/shop", "/home/ana"
SOURCE = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


def act(*calls, text=""):
    return {"text": text, "tool_calls": [{"name": n, "arguments": a} for n, a in calls]}


def say(text):
    return {"text": text, "tool_calls": []}


def one(tool, **args):
    return act((tool, args))


def sh(command, **extra):
    return act(("Bash", {"command": command, **extra}))


read = partial(one, "Read")
grep = partial(one, "Grep")


def edit(old, new, path="a.py", **extra):
    return act(("Edit", {"file_path": path, "old_string": old, "new_string": new, **extra}))


R, G, W = ("Read", {"file_path": "a.py"}), ("Grep", {"pattern": "x"}), ("Glob", {"pattern": "*.py"})

CASES = [
    # Bash: display, cd, quotes, order
    ("L0", False, sh("ls -la src"), sh("ls -al src")),
    ("L0", False, sh("ls", description="List"), sh("ls", timeout=5000)),
    ("L0", False, sh("pytest tests/a.py 2>&1 | tail -n 20"), sh("pytest tests/a.py")),
    ("L0", False, sh("pytest -q || true"), sh("pytest -q")),
    ("L0", False, sh("pytest -q; echo done"), sh("pytest -q")),
    ("L2", False, sh("pytest tests/a.py -x"), sh("pytest tests/a.py -q")),
    ("L0", False, sh(f"cd {CWD} && npm test"), sh("npm test")),
    ("L0", False, sh("cd ~/shop && npm test"), sh("npm test")),
    ("L4", False, sh("cd web && npm test"), sh("npm test")),
    ("L0", False, sh("grep -rn 'total' src"), sh('grep -rn "total" src')),
    ("L0", False, sh(f"cat {CWD}/a.py"), sh("cat a.py")),
    ("L0", False, sh("git   status"), sh("git status\n")),
    ("L0", False, sh("git status\r\n"), sh("git status")),
    # a trimmer that feeds a program, or hides a status, is none
    ("L4", False, sh("pytest | tail -5 | grep FAIL"), sh("pytest | grep FAIL")),
    ("L4", True, sh("pytest | tail -5 && git push"), sh("pytest && git push")),
    ("L1", True, sh("pytest | tail -5 && git push"), sh("pytest | tail -9 && git push")),
    ("L4", True, sh("pytest; echo $(rm x)"), sh("pytest")),
    ("L4", True, sh("pytest; echo ok > log"), sh("pytest")),
    ("L4", False, sh("grep -c x f | head -1; ls"), sh("grep -c x f")),
    ("L0", False, sh("npm test |& tail -3"), sh("npm test |& tail -3")),
    # L2 and L4 of commands
    ("L4", False, sh("pytest tests/a.py"), sh("pytest tests/b.py")),
    ("L4", False, sh("pytest"), sh("pytest tests/b.py")),
    ("L2", False, sh("python -m pytest tests/a.py"), sh("pytest tests/a.py")),
    ("L2", False, sh("timeout 60 pytest tests/a.py"), sh("pytest tests/a.py")),
    ("L2", False, sh("npx vitest run a.test.js"), sh("vitest run a.test.js --silent")),
    ("L2", False, sh("CI=1 npm test"), sh("npm test")),
    ("L4", False, sh("npm run lint"), sh("npm run build")),
    ("L4", True, sh("git stash drop"), sh("git stash pop")),
    ("L2", True, sh("git commit -m 'one'"), sh("git commit -m 'two'")),
    ("L4", True, sh("git add a.py"), sh("git add -A")),
    ("L4", True, sh("cp a b"), sh("cp b a")),
    ("L2", True, sh("rm a b"), sh("rm -f b a")),
    ("L2", False, sh("sed -n 1,9p a.py"), sh("sed -n 10,20p a.py")),
    ("L4", False, sh("cat a.py"), sh("cat b.py")),
    ("L4", False, sh("gh pr view 3"), sh("gh pr list")),
    ("L4", True, sh("cat > a.txt <<'E'\nx\nE"), sh("cat > b.txt <<'E'\nx\nE")),
    ("L2", True, sh("cat > a.txt <<'E'\nx\nE"), sh("cat > a.txt <<'E'\ny\nE")),
    ("L2", False, sh("npm run dev", run_in_background=True), sh("npm run dev")),
    ("L4", False, sh("find . -name '*.py'"), sh("find . -name '*.go'")),
    # globs and quotes are not the same
    ("L4", True, sh("rm *.log"), sh("rm '*.log'")),
    # mutating or not
    ("L0", False, sh("ruff check src"), sh("ruff check src")),
    ("L0", True, sh("ruff check --fix src"), sh("ruff check --fix src")),
    ("L0", True, sh("ruff format src"), sh("ruff format src")),
    ("L0", False, sh("git log -3"), sh("git log -3")),
    ("L0", True, sh("git fetch"), sh("git fetch")),
    ("L0", True, sh("sed -i s/a/b/ f"), sh("sed -i s/a/b/ f")),
    ("L0", True, sh("pip install x"), sh("pip install x")),
    ("L0", True, sh("ls > out.txt"), sh("ls > out.txt")),
    ("L0", False, sh("ls > /dev/null"), sh("ls > /dev/null")),
    ("L0", True, sh("docker run x"), sh("docker run x")),
    ("L0", True, sh("./deploy.sh"), sh("./deploy.sh")),
    ("L0", True, sh("for f in a b; do rm $f; done"), sh("for f in a b; do rm $f; done")),
    ("L0", False, sh("cargo test import::t"), sh("cargo test import::t")),
    ("L0", True, sh("find . -name x -delete"), sh("find . -name x -delete")),
    ("L0", False, sh("mise run test"), sh("mise run test")),
    ("L0", True, sh("mise run deploy"), sh("mise run deploy")),
    ("L0", True, sh("mix format"), sh("mix format")),
    # a heredoc that bashlex cannot read; a line that no parser reads
    ("L0", True, sh("git commit -m \"$(cat <<'EOF'\nhi\nEOF\n)\""),
     sh("git commit -m \"$(cat <<'EOF'\nhi\nEOF\n)\"")),
    ("L0", True, sh("echo 'open"), sh("echo 'open")),
    # Read
    ("L0", False, read(file_path="a.py"), read(file_path=f"{CWD}/a.py", offset=1, limit=2000)),
    ("L0", False, read(file_path="~/shop/./a.py"), read(file_path="a.py")),
    ("L1", False, read(file_path="a.py", offset=1, limit=10),
     read(file_path="a.py", offset=10, limit=10)),
    ("L2", False, read(file_path="a.py", offset=1, limit=10),
     read(file_path="a.py", offset=11, limit=10)),
    ("L4", False, read(file_path="a.py"), read(file_path="A.py")),
    # Grep and Glob
    ("L1", False, grep(pattern="x", **{"-n": True, "output_mode": "content"}), grep(pattern="x")),
    ("L0", False, grep(pattern="x", path=CWD), grep(pattern="x")),
    ("L2", False, grep(pattern="x", glob="*.py"), grep(pattern="x", type="js")),
    ("L4", False, grep(pattern="x"), grep(pattern="y")),
    ("L4", False, grep(pattern="x", path="src"), grep(pattern="x", path="web")),
    ("L0", False, one("Glob", pattern="*.py", path="src"), one("Glob", pattern="src/*.py")),
    ("L4", False, one("Glob", pattern="*.py"), grep(pattern="x")),
    # Edit
    ("L0", True, edit("a", "b"), edit("a", "b", replace_all=False)),
    ("L1", True, edit("a  \nb", "c"), edit("a\nb", "c")),
    ("L2", True, edit("  a", "b"), edit("a", "b")),
    ("L2", True, edit("a", "b"), edit("a", "c")),
    ("L4", True, edit("a", "b"), edit("a", "b", path="b.py")),
    ("L1", True, edit("def f():\n    return 1", "def f():\n    return 2", "m.py"),
     edit("f():\n    return 1", "f():\n    return 2", "m.py")),
    ("L2", True, edit("    return 1", "    return 2", "m.py"),
     edit("def f():\n    return 1", "def f():\n    return 2", "m.py")),
    ("L1", True, edit("def g", "def h", "m.py"),
     one("MultiEdit", file_path="m.py", edits=[{"old_string": "def g", "new_string": "def h"}])),
    ("L0", True, one("Write", file_path="n.py", content="x\n"),
     one("Write", file_path="n.py", content="x")),
    ("L2", True, one("Write", file_path="n.py", content="x"),
     one("Write", file_path="n.py", content="y")),
    ("L4", True, edit("a", "b"), one("Write", file_path="a.py", content="b")),
    # other tools
    ("L0", False, one("TodoWrite", todos=[{"content": "a", "status": "pending"}]),
     one("TodoWrite", todos=[{"content": "b", "status": "pending"}])),
    ("L2", False, one("TodoWrite", todos=[{"content": "a", "status": "pending"}]),
     one("TodoWrite", todos=[{"content": "a", "status": "completed"}])),
    ("L0", False, one("Task", prompt="look", description="a"),
     one("Agent", prompt="look", description="b")),
    ("L0", True, one("Task", prompt="fix the test"), one("Task", prompt="fix the test")),
    ("L2", False, one("WebFetch", url="https://a.io/x", prompt="p"),
     one("WebFetch", url="https://a.io/y", prompt="q")),
    ("L4", False, one("WebFetch", url="https://a.io/x"), one("WebFetch", url="https://b.io/x")),
    ("L2", False, one("mcp__t__get_issue", id="T-1"),
     one("mcp__t__get_issue", id="T-1", full=True)),
    ("L4", False, one("mcp__t__get_issue", id="T-1"), one("mcp__t__get_issue", id="T-2")),
    ("L0", True, one("mcp__t__create_issue", title="x"), one("mcp__t__create_issue", title="x")),
    ("none", False, one("mcp__t__get_issue", id="T-1"), sh("curl https://t.io/T-1")),
    # texts
    ("L0", False, say("All done.\n"), say("All done.")),
    ("L4", False, say("Done."), say("It works now.")),
    ("L4", False, say("Shall I push?"), say("Which branch?")),
    ("none", False, say("Shall I push?"), say("Pushed.")),
    ("none", False, say("Done."), sh("ls")),
    ("L4", False, say("Which one?"), one("AskUserQuestion", questions=[])),
    ("none", False, say("ＡＢ"), sh("ls")),
    ("L4", False, say("ＡＢ"), say("AB")),
    ("L0", False, say("caf\u00e9"), say("cafe\u0301")),
    # classes
    ("none", True, read(file_path="a.py"), edit("a", "b")),
    ("none", False, read(file_path="a.py"), sh("cat a.py")),
    # parallel calls
    ("L0", False, act(R, G), act(G, R)),
    ("L0", False, act(R, text="I will look."), act(R)),
    ("L4", False, act(R, G), act(R)),
    ("L4", False, act(R, G), act(R, W)),
    ("none", False, act(R, G), sh("ls")),
    ("L1", False, act(("Read", {"file_path": "a.py", "limit": 5}), G), act(G, R)),
    ("L4", False, act(R, ("Bash", {"command": "ls"})), act(R, G)),
]  # fmt: skip


def line(a, b):
    return {"a": a, "b": b, "cwd": CWD, "home": HOME, "context": {f"{CWD}/m.py": SOURCE}}


@pytest.mark.parametrize(("level", "mutating", "a", "b"), CASES)
def test_table(level, mutating, a, b):
    got = compare(line(a, b))
    back = compare(line(b, a))
    assert (got["level"], got["mutating"]) == (level, mutating), got["why"]
    assert (back["level"], back["mutating"]) == (level, mutating)
    assert got["why"]


def test_table_is_large_enough():
    assert len(CASES) >= 60
    assert {case[0] for case in CASES} == {"L0", "L1", "L2", "L4", "none"}


_actions = st.sampled_from([side for case in CASES for side in case[2:]])


@settings(max_examples=300)
@given(_actions, _actions)
def test_symmetric_and_reflexive(a, b):
    assert compare(line(a, b))["level"] == compare(line(b, a))["level"]
    assert compare(line(a, b))["mutating"] == compare(line(b, a))["mutating"]
    assert compare(line(a, a))["level"] == "L0"


_words = st.text(st.sampled_from("ab .|&;<>()$'\"`\\\n{}*!#=-/~é"), max_size=24)


@settings(max_examples=300)
@given(_words, _words)
def test_any_command_is_read_symmetrically(a, b):
    left, right = sh(a), sh(b)
    assert compare(line(left, right))["level"] == compare(line(right, left))["level"]
    assert compare(line(left, left))["level"] == "L0"


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ({"b": say("x")}, "'a'"),
        ({"a": say("x"), "b": {"tool_calls": [{"arguments": {}}]}}, "'b'"),
        ({"a": say("x"), "b": say("x"), "cwd": 3}, "'cwd'"),
        ({"a": say("x"), "b": say("x"), "context": {"/a": 1}}, "'context'"),
        ({"a": say("x"), "b": say("x"), "c": 1}, "'c'"),
    ],
)
def test_bad_lines_name_the_field(record, names):
    with pytest.raises(InputError, match=names):
        compare(record)


def test_null_fields_and_unknown_place():
    record = {"a": {"tool_calls": [{"name": "Read", "arguments": {"file_path": "/x/a"}}]},
              "b": {"text": None, "tool_calls": [{"name": "Read", "arguments":
                                                  {"file_path": "/x/../x/a"}}]},
              "cwd": None, "home": None, "context": None}  # fmt: skip
    assert compare(record)["level"] == "L0"
    assert json.dumps(compare(record))
