"""The charts and drawings of the documents: ``make figures`` writes them below docs/images/.

Nothing is measured here: charts are drawn from ``benchmarks/results/``, and a figure that is no
longer there stops the script. The drawings of docs/concepts.md name what the code does.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "benchmarks")]

from compare import JOBS  # noqa: E402

from composer_pipeline.actions import ToolCall  # noqa: E402
from composer_pipeline.charts import (  # noqa: E402
    AMBER,
    BLUE,
    GREEN,
    GREY,
    RED,
    SOFT,
    WIDTH,
    bars,
    intervals,
    path,
    svg,
    text,
)
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.nights import page  # noqa: E402
from composer_pipeline.nights.night import nights  # noqa: E402
from examples.demo.nights import RECORDED  # noqa: E402
from examples.proof.report import (  # noqa: E402
    COMMITTED,
    LATER,
    PRIMARY,
    SECONDARY,
    claimed,
    read_summary,
)

FOLDER = ROOT / "docs" / "images"


def proof() -> dict[str, str]:
    """Return the chart of docs/proof.md."""
    found = read_summary(COMMITTED / "proof.json")
    where = {"hard": "all", "hard_uncovered": "not asked", LATER: "seen later"}
    rows = {}
    for question in (PRIMARY, *SECONDARY):
        if e := (found.primary | found.secondary).get(question.name):
            name = f"{question.arm} - {question.other}, {where[question.states]}"
            doubt = " ?" if e.excludes_zero and question.name not in claimed(found) else ""
            low, high = (None if end is None else 100 * end for end in (e.low, e.high))
            rows[name + doubt] = (round(100 * e.mean, 1), low, high)
    return {"proof": intervals(rows)}


def comparison() -> dict[str, str]:
    """Return a chart of each job of docs/comparison.md that has a picture."""
    return {
        job.picture: bars(
            {
                figure.tool: float(value.replace(",", "").rstrip(" x%"))
                for figure in job.figures
                if (value := figure.value()) != "not run"
            }
        )
        for job in JOBS
        if job.picture
    }


def box(y: float, label: str, colour: str = GREY, *, x: float = 0, width: float = WIDTH) -> str:
    """Return a framed line of text, 26 pixels high."""
    frame = f"M{x + 0.5},{y + 0.5} h{width - 1} v25 h{1 - width} z"
    return path(frame, colour, 1.5) + text(x + 10, y + 18, label)


def arrow(x: float, y: float, to: float) -> str:
    """Return an arrow down."""
    return path(f"M{x},{y} V{to - 1} m-4,-5 l4,5 l4,-5", SOFT, 1.5)


def state() -> str:
    """Return a path of turns, of which one is the state's action."""
    turns = ["user: the totals are wrong", "agent: Read totals.py", "result: 1 def total(rows): …"]
    parts = [box(32 * row, turn, x=26, width=WIDTH - 26) for row, turn in enumerate(turns)]
    parts += [
        path("M14,2 H8 V88 H14", BLUE, 1.5),
        text(26, 116, "above: what the agent saw", fill=SOFT),
        box(128, "agent: Edit totals.py", BLUE, x=26, width=WIDTH - 26),
        path("M14,130 H8 V152 H14", BLUE, 1.5),
        text(26, 174, "above: what it did, the action of the state", fill=SOFT),
        path("M26,200 h282 v26 h-282 z", GREY, 1).replace("/>", ' stroke-dasharray="4"/>'),
        text(36, 218, "result: tests fail. Edit again …", fill=SOFT),
        text(26, 246, "later turns are never in it", fill=SOFT),
    ]
    return svg(WIDTH, 252, parts)


def bash(command: str) -> ToolCall:
    """Return a command that an agent runs."""
    return ToolCall("Bash", {"command": command})


def grep(**options: object) -> ToolCall:
    """Return a search of an agent."""
    return ToolCall("Grep", {"pattern": "total", **options})


#: Level, what is equal, how two actions look, and these actions; a test asks the code.
LEVELS = (
    ("L0", "equal but for how it is written", "git diff --stat -w", "git diff -w --stat",
     bash("git diff --stat -w"), bash("git diff -w --stat")),
    ("L1", "equal effect", "Grep total", "Grep total, content with -n",
     grep(), grep(output_mode="content", **{"-n": True})),
    ("L2", "same tool, same target", "pytest tests", "pytest -x tests",
     bash("pytest tests"), bash("pytest -x tests")),
    ("L3", "same meaning", "a judge says so; paid, off by default", "", None, None),
    ("L4", "same class of tool", "pytest tests", "git status",
     bash("pytest tests"), bash("git status")),
)  # fmt: skip


def agreement() -> str:
    """Return the levels, the strictest first and widest."""
    parts = []
    for row, (level, what, one, other, *_) in enumerate(LEVELS):
        y = 54 * row
        parts += [
            path(f"M0,{y + 9} h{30 - 5 * row}", GREEN if row < 3 else GREY, 10),
            text(40, y + 14, f"{level}  {what}"),
            text(40, y + 32, f"{one}  ·  {other}" if other else one, fill=SOFT),
        ]
    return svg(WIDTH, 54 * len(LEVELS) - 10, parts)


def hint() -> str:
    """Return how an error becomes a row that trains without a teacher."""
    return svg(
        WIDTH,
        262,
        [
            box(0, "action: Edit totals.py", RED),
            arrow(20, 26, 50),
            box(50, "error: NameError: name 'rows'", AMBER),
            text(36, 42, "the run shows"),
            arrow(20, 76, 118),
            text(36, 101, "which is the hint to that action"),
            box(118, "frozen base model, told the hint", BLUE),
            arrow(20, 144, 186),
            text(36, 169, "scores the tokens of the action again"),
            box(186, "student, not told: learns the difference", GREEN),
            text(0, 234, "The row counts if the hint helps the recovery", fill=SOFT),
            text(0, 252, "more than it helps the mistake.", fill=SOFT),
        ],
    )


def outer_round() -> str:
    """Return a round of three replicas, of which one is late."""
    parts = []
    for row, (size, late) in enumerate(((150, False), (170, False), (236, True))):
        y = 24 + 34 * row
        parts += [
            text(0, y + 14, f"replica {row}"),
            f'<rect x="62" y="{y}" width="{size}" height="20" fill="{AMBER if late else BLUE}"/>',
        ]
        if not late:
            parts.append(path(f"M{62 + size},{y + 10} H250 V132 m-4,-5 l4,5 l4,-5", SOFT, 1.5))
    parts += [
        text(62, 14, "trains alone: some steps", fill=SOFT),
        box(134, "outer log: deltas of 0 and 1, then a commit"),
        arrow(20, 160, 184),
        text(36, 178, "mean of the deltas, outer optimizer", fill=SOFT),
        box(184, "the model of the next round, for all three", GREEN),
        text(0, 230, "Two are a quorum here: the late replica is left", fill=SOFT),
        text(0, 248, "out and begins the next round with the others.", fill=SOFT),
    ]
    return svg(WIDTH, 254, parts)


def night() -> str:
    """Return the steps of a night, and what can end it."""
    steps = (
        ("harvest, label", ""), ("buy answers under the ceiling", ""), ("pairs, dataset", ""),
        ("canaries: is the data as usual?", "held"), ("new rows + old rows", ""),
        ("train from the current version", ""), ("measure mistakes and anchors", ""),
        ("gates: better, and nowhere worse?", "refused"), ("promoted: models/current moves", ""),
    )  # fmt: skip
    parts, wide = [], WIDTH - 66
    for row, (label, end) in enumerate(steps):
        y = 40 * row
        last = row == len(steps) - 1
        parts.append(box(y, label, GREEN if last else BLUE if end else GREY, width=wide))
        parts += [] if last else [arrow(20, y + 27, y + 39)]
        if end:
            tip = f"M{wide},{y + 13} h8"
            parts += [path(tip, SOFT, 1.5), text(wide + 12, y + 17, end, fill=RED)]
    return svg(WIDTH, 40 * len(steps) - 14, parts)


def recorded_nights() -> dict[str, str]:
    """Return the charts of docs/nights.md, from what ``examples/demo/nights.py`` recorded."""
    lake = Lake(str(RECORDED))
    drawn = {str(told.outcome): page.pictures(lake, told) for told in nights(lake)}
    wanted = {
        "night-promoted": ("promoted", "change"), "night-held": ("held", "canaries"),
        "night-refused": ("worse", "change"), "nights": ("worse", "nights"),
    }  # fmt: skip
    return {name: drawn[one][f"{chart}.svg"][1] for name, (one, chart) in wanted.items()}


def pictures() -> dict[str, str]:
    """Return file name below docs/images/ to SVG."""
    drawings = {
        "state": state(), "agreement": agreement(), "hint": hint(), "outer-round": outer_round(),
        "night": night(),
    }  # fmt: skip
    charts = proof() | comparison() | recorded_nights()
    return {f"{name}.svg": image for name, image in (charts | drawings).items()}


if __name__ == "__main__":
    for name, image in pictures().items():
        (FOLDER / name).write_text(image + "\n", encoding="utf-8")
