"""Places of problems and results of runs, in the words of the programs that print them."""

import pytest

from composer_pipeline.traces.diagnostics import clean, diagnostics, failing_tests, run_result
from composer_pipeline.traces.outcomes import looks_failed, run_passed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cmd/a.go:3:9: undefined: cfg", ("cmd/a.go", 3, 9, "cfg")),
        ("./a.go:14:2: \"x/y/store\" imported and not used", ("a.go", 14, 2, "x/y/store")),
        ("[lint:go] pkg/a.go:9:1: missing cases (exhaustive)", ("pkg/a.go", 9, 1, "")),
        ("    store_test.go:88: got 3, want 4", ("store_test.go", 88, 0, "")),
        ('Traceback (most recent call last):\n  File "app/run.py", line 7, in main\n    load()\n'
         "NameError: name 'load' is not defined", ("app/run.py", 7, 0, "load")),
        ("app/run.py:7: error: Name 'x' is not defined  [name-defined]", ("app/run.py", 7, 0, "x")),
        ("app/run.py:1:8: F401 [*] `os` imported but unused", ("app/run.py", 1, 8, "os")),
        ("tests/test_a.py:12: AssertionError", ("tests/test_a.py", 12, 0, "")),
        ("src/a.ts(4,5): error TS2304: Cannot find name 'foo'.", ("src/a.ts", 4, 5, "foo")),
        ("src/a.ts:4:5 - error TS2339: Property 'bar' does not exist on type 'X'.",
         ("src/a.ts", 4, 5, "bar")),
        ("/w/src/a.ts\n  3:7  error  'x' is defined but never used  no-unused-vars",
         ("/w/src/a.ts", 3, 7, "x")),
        ("      at Object.<anonymous> (src/a.test.js:10:20)", ("src/a.test.js", 10, 20, "")),
        ("error[E0425]: cannot find value `foo` in this scope\n --> src/main.rs:2:5",
         ("src/main.rs", 2, 5, "foo")),
        ("thread 'main' panicked at src/lib.rs:9:10:", ("src/lib.rs", 9, 10, "")),
        ("src/A.java:5: error: cannot find symbol", ("src/A.java", 5, 0, "")),
        ("[ERROR] /w/src/A.java:[5,9] cannot find symbol", ("/w/src/A.java", 5, 9, "")),
        ("e: file:///w/A.kt:3:4 Unresolved reference", ("/w/A.kt", 3, 4, "")),
        ("A.cs(3,4): error CS0103: The name 'x' does not exist", ("A.cs", 3, 4, "")),
        ("a.c:3:4: error: use of undeclared identifier 'x'", ("a.c", 3, 4, "x")),
        ("# ./spec/a_spec.rb:12:in `block'\nrspec ./spec/a_spec.rb:10 # a\n"
         "app/a.rb:4:in `run': undefined method `go'", ("app/a.rb", 4, 0, "go")),
        ("PHP Parse error:  syntax error in /w/a.php on line 9", ("/w/a.php", 9, 0, "")),
        ("[warn] src/a.ts", ("src/a.ts", 0, 0, "")),
    ],
)  # fmt: skip
def test_one_place(text: str, expected: tuple[str, int, int, str]) -> None:
    found = diagnostics(text)
    assert expected in [(d.file, d.line, d.column, d.symbol) for d in found]


def test_the_line_that_is_shown_below_a_place_is_its_source() -> None:
    text = "a.go:7:3: error is not nil but it returns nil (nilerr)\n\t\treturn x, nil\n\t\t^"
    assert diagnostics(text)[0].source == "return x, nil"


def test_warnings_are_left_out_beside_errors_and_each_place_counts_once() -> None:
    text = "a.c:1:1: warning: unused\na.c:2:1: error: bad\na.c:2:1: error: bad"
    assert [(d.line, d.severity) for d in diagnostics(text)] == [(2, "error")]
    assert diagnostics("a.c:1:1: warning: unused")[0].severity == "warning"


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("(pass) it copes with 2 failed\nerror: boom\n 12 pass\n 0 fail\nRan 12 tests", True),
        (" 11 pass\n 1 fail\nRan 12 tests", False),
        ("==== 2 failed, 1 passed in 0.10s ====", False),
        ("3 passed, 1 warning in 0.10s", True),
        ("==== 1 passed, 2 errors in 1.00s ====", False),
        ("Tests:       1 failed, 5 passed, 6 total", False),
        ("Test Files  1 passed (1)\n     Tests  3 passed (3)", True),
        ("  5 passing (10ms)\n  1 failing", False),
        ("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured", True),
        ("5 examples, 0 failures", True),
        ("14 doctests, 297 tests, 11 failures", False),
        ("5 runs, 5 assertions, 0 failures, 1 errors, 0 skips", False),
        ("OK (5 tests, 9 assertions)", True),
        ("Tests: 5, Assertions: 9, Failures: 1.", False),
        ("Ran 3 tests in 0.1s\n\nOK", True),
        ("Ran 3 tests in 0.1s\n\nFAILED (failures=1)", False),
        ("[ERROR] Tests run: 5, Failures: 1, Errors: 0, Skipped: 0", False),
        ("Passed!  - Failed:     0, Passed:     5, Skipped: 0", True),
        ("# pass 3\n# fail 0", True),
        ("ok  \tx/y\t0.1s\nFAIL\tx/z [build failed]\nFAIL", False),
        ("ok  \tx/y\t0.1s\nok  \tx/z\t(cached)", True),
        ("BUILD SUCCESSFUL in 3s", True),
        ("  1 failed\n  3 passed (2.1s)", False),
        ("all is well", None),
    ],
)
def test_the_summary_of_a_runner_decides(text: str, passed: bool | None) -> None:
    found = run_result(text)
    assert (found.passed if found else None) is passed


def test_a_passing_run_is_no_failure_whatever_its_log_says() -> None:
    log = "(pass) retries\nerror: the pool has 2 failed tasks\nFAIL: told on purpose\n"
    passing, failing = log + " 12 pass\n 0 fail\n", log + " 11 pass\n 1 fail\n"
    assert not looks_failed("bun test", passing)
    assert looks_failed("bun test", failing)
    assert looks_failed("bun test; bun run lint", passing + 'error: script "lint" exited')
    assert (run_passed(passing, failed=False), run_passed(failing, failed=False)) == (
        True, False,
    )  # fmt: skip
    assert run_passed("ok  \tx/y\t0.1s\na.go:1:1: bad (lint)", failed=True) is True
    lost = "Exit code 1\n(eval):cd:1: no such file or directory: x"
    assert run_passed(lost, failed=True) is None


def test_what_hooks_print_before_a_commit_is_no_failure() -> None:
    log = "husky > pre-commit\nerror: 1 warning was ignored\n"
    assert not looks_failed("git commit -m x", log + "[main 1a2b3c4] x\n 1 file changed")
    assert looks_failed("git commit -m x", log)


def test_colours_and_progress_are_gone() -> None:
    text = "\x1b[31mFAIL\x1b[0m a\x1b]0;title\x07\n10%\r 50%\rdone\n[███░] 45% |██ |\n⠋ load\nend"
    assert clean(text) == "FAIL a\ndone\nend"
    assert clean("a\r\nb") == "a\nb"


def test_names_of_failed_tests() -> None:
    text = (
        "--- FAIL: TestA (0.0s)\nFAILED tests/t.py::test_b - x\n(fail) c > d [1.0ms]\n"
        "test e::f ... FAILED\n"
    )
    assert failing_tests(text) == ["TestA", "tests/t.py::test_b", "c > d", "e::f"]
