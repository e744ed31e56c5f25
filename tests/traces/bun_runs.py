# ruff: noqa: E501  the projects are a line each
"""Records what a real bun prints: ``python -m tests.traces.bun_runs BUN > FILE``, the JSON here.

BUN is the program, for example of npm's package ``@oven/bun-linux-x64-baseline``. Each project is
tested with each command, as an agent would type it; whether its tests pass says the exit code of a
plain ``bun test``. A record holds the command, what Claude Code would show and whether the call
failed (as a pipe hides), and the truth.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HEAD = 'import { test, it, expect, describe, beforeAll, mock } from "bun:test";\n'
GOOD = 'test("adds", () => expect(1 + 2).toBe(3));\n'
BAD = 'test("adds up", () => expect(1 + 2).toBe(4));\n'

#: Projects whose tests pass, by what they print on the way.
PASSING = {
    "plain": GOOD,
    "failed in a log": GOOD + 'test("b", () => { console.log("2 failed, retrying"); });\n',
    "error in a log": GOOD + 'test("b", () => { console.error("error: no such user\\n    at x.ts:3:7"); });\n',
    "FAIL in a log": GOOD + 'test("b", () => { console.log("FAIL  src/a.test.ts\\n1 failing"); });\n',
    "summary of another runner": GOOD + 'test("b", () => { console.log("Tests: 1 failed, 3 passed"); });\n',
    "traceback": GOOD + 'test("b", () => { console.error(new Error("boom").stack); });\n',
    "exit code in a log": GOOD + 'test("b", () => { console.log("Exit code 1"); });\n',
    "names of failures": 'describe("fail", () => { it("fails when the token is bad", () => { expect(() => { throw new Error("failed: 3"); }).toThrow("failed"); }); });\n',
    "skipped and to do": GOOD + 'test.skip("later", () => {});\ntest.todo("some day");\n',
    "expected to fail": GOOD + 'test.failing("known", () => { expect(1).toBe(2); });\n',
    "many": "".join(f'test("case {n}", () => expect({n}).toBe({n}));\n' for n in range(60)),
    "each": 'test.each([1, 2, 3])("%i errors", (n) => { expect(n).toBeGreaterThan(0); });\n',
    "snapshot": 'test("s", () => { expect({ failed: 2, errors: ["x"] }).toMatchInlineSnapshot(`\n{\n  "errors": [\n    "x",\n  ],\n  "failed": 2,\n}\n`); });\n',
    "slow": 'test("slow", async () => { await new Promise((r) => setTimeout(r, 120)); expect(1).toBe(1); });\n',
    "mock": 'const f = mock(() => { throw new Error("offline"); });\ntest("m", () => { expect(f).toThrow(); expect(f).toHaveBeenCalledTimes(1); });\n',
    "progress": GOOD + 'test("p", () => { for (const n of [10, 55, 100]) console.log(`${n}% [=====>   ] 1 failed`); });\n',
}  # fmt: skip
#: Projects whose tests fail, by how.
FAILING = {
    "assertion": GOOD + BAD,
    "thrown": GOOD + 'test("t", () => { throw new TypeError("x is undefined"); });\n',
    "rejected": 'test("r", async () => { await Promise.reject(new Error("nope")); });\n' + GOOD,
    "timeout": 'test("t", async () => { await new Promise(() => {}); }, 50);\n' + GOOD,
    "before all": 'describe("d", () => { beforeAll(() => { throw new Error("no database"); });\n' + GOOD + "});\n",
    "syntax": GOOD + "const = 3;\n",
    "import": 'import { x } from "./missing";\ntest("x", () => expect(x).toBe(1));\n' + GOOD,
    "outside of tests": GOOD + 'throw new Error("at the top");\n',
    "passes in a log": BAD + 'test("b", () => { console.log("12 passed\\nok all\\nPASS a.ts"); });\n',
    "most pass": BAD + "".join(f'test("case {n}", () => expect({n}).toBe({n}));\n' for n in range(40)),
    "expected to fail but passes": GOOD + 'test.failing("known", () => { expect(1).toBe(1); });\n',
}  # fmt: skip
COMMANDS = (
    "bun test",
    "bun test 2>&1",
    "bun test 2>&1 | tail -20",
    "bun test 2>&1 | tail -5",
    'bun test 2>&1 | grep -E "pass|fail|error" | tail -15',
    "bun run test",
    "bun run test 2>&1 | tail -30",
    "FORCE_COLOR=1 bun test",
    "bun test --bail",
    "bun test --coverage",
    "bun test src/app.test.ts",
    'bun test; echo "exit: $?"',
    "bun test src && echo done",
    "bun run lint && bun test",
    "bun test --timeout 4000 --only-failures",
)


def main(bun: str) -> None:
    """Run each command in each project and print the records."""
    records = []
    with TemporaryDirectory(dir="/tmp") as place:
        (path := Path(place) / "bin").mkdir()
        (path / "bun").symlink_to(Path(bun).resolve())
        env = {"PATH": f"{path}:{os.environ['PATH']}", "HOME": place, "LANG": "C.UTF-8"}
        for number, (name, body) in enumerate([*PASSING.items(), *FAILING.items()]):
            project = Path(place) / f"p{number}"
            (project / "src").mkdir(parents=True)
            (project / "src" / "app.test.ts").write_text(HEAD + body)
            (project / "src" / "other.test.ts").write_text(HEAD + GOOD)
            scripts = {"test": "bun test", "lint": "echo 0 errors"}
            (project / "package.json").write_text(json.dumps({"name": "app", "scripts": scripts}))
            passes = _run("bun test", project, env).returncode == 0
            if passes != (name in PASSING):
                raise SystemExit(f"{name}: bun test {'passes' if passes else 'fails'}")
            for command in COMMANDS:
                done = _run(command, project, env)
                shown = done.stdout.replace(f"{project}", "/app").rstrip("\n")
                if done.returncode:
                    shown = f"Exit code {done.returncode}\n{shown}"
                records.append(
                    {"project": name, "command": command, "failed": bool(done.returncode),
                     "shown": shown, "passes": passes}
                )  # fmt: skip
        version = _run("bun --version", Path(place), env).stdout.strip()
    head, *rows = ({"bun": version}, *records)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sys.stdout.write(f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n')


def _run(command: str, project: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", command]
    return subprocess.run(
        words, cwd=project, env=env, text=True, timeout=60, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
