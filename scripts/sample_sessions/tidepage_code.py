"""The code base of ``tidepage`` as every session finds it, and commands that sessions share."""

from scripts.sample_sessions.calls import Project, bash

CLOCK = """\
export function localHour(iso, zone) {
  const date = new Date(iso);
  return date.getHours();
}

export function label(iso, zone) {
  return `${localHour(iso, zone)}:00`;
}
"""

CLOCK_TEST = """\
import { expect, test } from "vitest";
import { localHour } from "../src/clock.js";

test("uses the zone of the harbour", () => {
  expect(localHour("2026-11-16T05:00:00Z", "Atlantic/Reykjavik")).toBe(5);
});
"""

TABLE = """\
import { label } from "./clock.js";

export function row(tide) {
  return `<tr><td>${label(tide.at, tide.zone)}</td><td>${tide.height}</td></tr>`;
}

export function table(tides) {
  return tides.map(row).join("");
}
"""

FETCH = """\
const BASE = "https://tides.example.net/v2";

export async function fetchTides(station) {
  const reply = await fetch(`${BASE}/stations/${station}/tides`);
  return (await reply.json()).tides;
}
"""

TIDEPAGE = Project(
    "tidepage",
    "/home/mira",
    "/home/mira/code/tidepage",
    {
        "src/clock.js": CLOCK,
        "src/table.js": TABLE,
        "src/fetch.js": FETCH,
        "src/style.css": "table { border-collapse: collapse; }\ntd { padding: 2px; }\n",
        "test/clock.test.js": CLOCK_TEST,
        "test/table.test.js": 'import { test } from "vitest";\n\ntest.todo("renders a row");\n',
        "index.html": '<!doctype html>\n<link rel="stylesheet" href="src/style.css">\n'
        '<table id="tides"></table>\n',
        "package.json": '{\n  "name": "tidepage",\n  "scripts": { "test": "vitest run" }\n}\n',
    },
)
VITEST_CLOCK = bash("npx vitest run test/clock.test.js")
VITEST_TABLE = bash("npx vitest run test/table.test.js")
VITEST_FETCH = bash("npx vitest run test/fetch.test.js")
STATUS = bash("git status --short")

ISSUE = "mcp__tracker__get_issue"
