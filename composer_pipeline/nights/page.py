"""How a night reads: its pictures, one screen of Markdown, and a page in the lake."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from composer_pipeline import __version__
from composer_pipeline.charts import bars, intervals, lines, markdown_image
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import count, dollars, table
from composer_pipeline.nights.canaries import Canary
from composer_pipeline.nights.night import Night, nights
from composer_pipeline.report.write import environment
from composer_pipeline.training.run import curve_charts

#: What the kinds of held-out states are called.
KINDS = {
    "new": "new states", "hard": "new mistakes", "own": "anchors: own successes",
    "easy": "anchors: easy", "recovery": "anchors: recovery", "gains": "anchors: earlier gains",
}  # fmt: skip
#: Columns of :func:`changes`.
CHANGES = ("held out", "before", "after", "change, 95 % interval", "states (sessions)")
_Table = tuple[str, Sequence[str], list[list[str]]]


def pictures(lake: Lake, story: Night) -> dict[str, tuple[str, str]]:
    """Return file name to title and SVG: what a night measured, and all nights up to it."""
    found = {}
    if story.moved:
        changes, right = {}, {}
        for kind, (before, after, e) in story.moved.items():
            name = KINDS[kind]
            changes[name] = (100 * e.mean, e.low and 100 * e.low, e.high and 100 * e.high)
            right[f"{name}, before"] = round(100 * before, 1)
            right[f"{name}, after"] = round(100 * after, 1)
        found["change.svg"] = ("Change in points, 95 % interval", intervals(changes))
        found["right.svg"] = ("Right actions", bars(right, unit=" %"))
    if used := {c.name + ", held" * c.holds: round(100 * share) for c, share in _used(story)}:
        found["canaries.svg"] = ("Canaries, % of limits", bars({"limit": 100} | used, unit=" %"))
    if story.run_dir and Path(story.run_dir).is_dir():
        for name, chart in curve_charts(Path(story.run_dir)).items():
            found[f"loss-{name.replace(' ', '-')}.svg"] = (f"Training: {name}", chart)
    told = [*(night for night in nights(lake) if night.night < story.night), story]
    found["nights.svg"] = ("All nights so far", _timeline(told))
    return found


def markdown(lake: Lake, story: Night) -> str:
    """Return one screen that says what was decided and why, and all numbers behind it."""
    drawn = [*pictures(lake, story).values()]
    return "\n\n".join([
        f"**{story.night}: {story.outcome}.** {'; '.join(story.why)}",
        ", ".join(f"{number} {name}" for name, number in _tiles(story).items()) + ".",
        " ".join(markdown_image(image, title) for title, image in drawn[:1] + drawn[1:][-1:]),
        *(f"**{name}**\n\n{table(head, rows)}" for name, head, rows in _tables(story)),
        "\n".join(f"- {note}" for note in _notes(story)),
    ])  # fmt: skip


def write_page(lake: Lake, story: Night) -> str:
    """Write ``reports/night-<day>.html``, which loads nothing; return its address."""
    name = f"reports/night-{story.night}.html"
    text = environment().get_template("night.html.j2").render(
        night=story, tiles=_tiles(story), tables=_tables(story),
        pictures=[*pictures(lake, story).values()], notes=_notes(story), version=__version__,
    )  # fmt: skip
    lake.put_bytes(name, text.encode())
    return f"{lake.url.rstrip('/')}/{name}"


def _timeline(told: Sequence[Night]) -> str:
    """Draw the current model's right actions by night; a dot is a candidate, by its outcome."""
    served: dict[str, list[tuple[float, float]]] = {"mistakes": [], "anchors": []}
    dots: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number, night in enumerate(told, 1):
        for name, line in served.items():
            both = _right(night, hard=name == "mistakes")
            if both and not line:
                line.append((number - 1, both[0]))
            if line:
                was, now = both or (line[-1][1],) * 2  # without a candidate, what is served stays
                line.append((number, now if night.outcome == "promoted" else was))
                dots[night.outcome].append((number, now))
    return lines(served, unit="% right; dots: candidates", x_unit="night", dots=dots)


def _right(night: Night, *, hard: bool) -> tuple[float, float] | None:
    """Return right actions of parent and candidate in per cent, of mistakes or all anchors."""
    wanted = {"hard"} if hard else KINDS.keys() - {"new", "hard"}
    some = [row for kind, row in night.moved.items() if kind in wanted]
    if not (states := sum(change.states for *_, change in some)):
        return None
    was = sum(before * change.states for before, _, change in some) / states
    now = sum(after * change.states for _, after, change in some) / states
    return 100 * was, 100 * now


def _used(story: Night) -> list[tuple[Canary, float]]:
    """Return the canaries that could compare, and which share of its limit each has used."""
    found = []
    for canary in story.canaries:
        if canary.tonight is not None and canary.usual is not None:
            rise, room = canary.tonight - canary.usual, canary.limit
            if canary.name == "usable":
                rise, room = 1 - canary.tonight / canary.usual, 1 - canary.limit
            found.append((canary, max(0.0, rise) / max(room, 0.01)))
    return found


def _tiles(story: Night) -> dict[str, str]:
    names = {"sessions": "new sessions", "held_out": "new states held out",
             "new": "new states to train on", "old": "old states beside them"}  # fmt: skip
    rows = {names[name]: count(story.rows[name]) for name in names if name in story.rows}
    simulated = " (simulated)" if story.simulated else ""
    return rows | {f"for the answers to the new states{simulated}": dollars(story.usd)}


def _tables(story: Night) -> list[_Table]:
    found: list[_Table] = [
        ("Right actions", CHANGES, changes(story)),
        ("Gates", ("gate", "passed", "why"),
         [[KINDS.get(g.name, g.name), "yes" if g.passed else "no", g.why] for g in story.gates]),
        ("Canaries", ("canary", "holds", "of its limit", "why"),
         [[c.name, "yes" if c.holds else "no", f"{u:.0%}", c.why] for c, u in _used(story)]),
    ]  # fmt: skip
    return [one for one in found if one[2]]


def changes(story: Night) -> list[list[str]]:
    """Return the right actions of parent and candidate by kind of held-out states, as text."""
    found = []
    for kind, (before, after, change) in story.moved.items():
        bounds = "too few sessions for an interval"
        if change.low is not None and change.high is not None:
            bounds = f"{change.low:+.1%} to {change.high:+.1%}"
        text = f"{change.mean:+.1%} ({bounds})"
        counts = f"{change.states} ({change.sessions})"
        found.append([KINDS[kind], f"{before:.1%}", f"{after:.1%}", text, counts])
    return found


def _notes(story: Night) -> list[str]:
    found = {
        "Rows trained on": [f"{count(number)} {name}" for name, number in story.tables.items()],
        "Losses": [f"{n} {a:.4f} to {b:.4f}" for n, (a, b) in story.losses.items()],
        "Time": [f"{step} {seconds:.0f} s" for step, seconds in story.seconds.items()],
        "Canaries that cannot compare": [c.name for c in story.canaries if c.usual is None],
        "Left out": story.notes,
    }
    notes = [f"{name}: {', '.join(what)}." for name, what in found.items() if what]
    notes += ["Accepted by hand: its states are new again."] * story.accepted
    if story.version is None:
        return [*notes, "No model was trained."]
    made = f"Version {story.version} comes from version {story.parent}; the optimizer restarted"
    return [*notes, f"{made}: its moments are not kept, and it warms up again."]
