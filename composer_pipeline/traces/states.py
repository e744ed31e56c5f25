"""One trajectory to rows of ``chains`` and ``states``, and its row of ``sessions``."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
import pyarrow as pa

from composer_pipeline.lake.parquet import column
from composer_pipeline.lake.schema import STATES
from composer_pipeline.redaction.redact import redact_text
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.traces.edits import Author, Edits, undone
from composer_pipeline.traces.fixups import fixup
from composer_pipeline.traces.graph_nodes import Node
from composer_pipeline.traces.messages import Chains, Composer, MessageStore, state_id_of
from composer_pipeline.traces.outcomes import (
    Facts,
    Failure,
    Outcome,
    corrections,
    failures_of,
    outcomes,
)
from composer_pipeline.traces.records import LineStats, encode, parse_time
from composer_pipeline.traces.trajectory import Trajectory
from composer_pipeline.traces.verdicts import Judge
from composer_pipeline.versions import PARSER_VERSION

#: Rows that are kept as objects until they become one Arrow table.
_BATCH_ROWS = 4096


Row = dict[str, Any]


class Rows:
    """The states of a day: objects that become Arrow tables a batch at a time."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: list[Row] = []
        self._tables: list[pa.Table] = []

    def add(self, row: Row) -> None:
        """Append a row."""
        self.count += 1
        self._rows.append(row)
        if len(self._rows) == _BATCH_ROWS:
            self._flush()

    def table(self) -> pa.Table:
        """Return all rows."""
        self._flush()
        return pa.concat_tables(self._tables)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        columns = [column([row.get(f.name) for row in rows], f.type) for f in STATES.schema]
        self._tables.append(pa.Table.from_arrays(columns, schema=STATES.schema))


#: Facts of a file that are columns of its session.
_SESSION_FACTS = """
    lines bad_lines glued_lines responses states states_active_path tool_calls tool_results
    tool_errors compactions roots branch_points
    """.split()  # noqa: SIM905  a line of names instead of a column


@dataclass(slots=True)
class Source:
    """Where a trajectory comes from: the manifest's facts about one file."""

    path: str
    session_id: str
    agent_id: str = ""
    sha256: str = ""
    embedded: bool = False  # a subagent in its parent's file
    parent_call: str | None = None  # the call that started it


@dataclass(slots=True)
class Extracted:
    """What one file contributes to its day."""

    source: Source
    first_row: int = 0  # its states are the day's rows from here on
    message_ids: list[str] = field(default_factory=list)  # a column of its states, as `n_messages`
    n_messages: list[int] = field(default_factory=list)
    chains: dict[str, list[int]] = field(default_factory=dict)  # numbers of messages
    session: Row = field(default_factory=dict)
    # message ids whose records come from another session's file
    copied: set[str] = field(default_factory=set)
    first_prompt: str = ""


class Extractor:
    """Makes the rows of one file; its messages go to ``store``."""

    def __init__(self, trajectory: Trajectory, source: Source, store: MessageStore) -> None:
        if trajectory.contents.redactor is None:
            raise ValueError("a trajectory to store must be read with a redactor")
        self.graph = trajectory
        self.source = source
        self.compose = Composer(trajectory, store)
        self.out = Extracted(source)
        self.names = trajectory.contents.names
        self._hashes = store.hashes
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # of the nodes that are states
        self._replaced = "content-replacement" in trajectory.types
        self._snapshots = [
            (at, self.compose.snapshot("system", system), self.compose.snapshot("tools", tools))
            for at, system, tools in trajectory.snapshots
        ]

    def run(self, stats: LineStats, facts: Facts, states: Rows) -> Extracted:
        """Add the rows of the file's states to ``states``; return the rest."""
        self.out.first_row = states.count
        chains = Chains(self.graph, self.compose, (self.source.path, self.source.agent_id))
        requests = chains.requests()
        self.out.chains = chains.chains
        active = self.graph.active_nodes()
        self._numbers = {self._id(number): number for number in self.graph.states()}
        after, judged, culprits = self._judged(active)
        project = self._text(self.graph.first_cwd or "")
        for number in self._numbers.values():
            node = self.graph.nodes[number]
            row = self._state(node, after[number] or Outcome())
            row["agent"] = self._text(stats.agent)
            errors = judged.get(number, ())
            row |= (errors[0] if errors else {}) | culprits.get(number, {})
            row["more_failures"] = [encode(found).decode() for found in errors[1:]] or None
            row["chain_id"], row["n_messages"] = chains.chain_of[number], chains.before[number]
            row["on_active_path"] = number in active
            row["project"] = project
            if number in requests:
                row["chain_id"], row["n_messages"], system = requests[number]
                row["system_hash"] = self._hash(system) or row["system_hash"]
                row["action"] = self.compose.action(node)
                row["fidelity"], row["repaired"] = "exact_request", False
            states.add(row)
            self.out.message_ids.append(node.key)
            self.out.n_messages.append(row["n_messages"])
            if node.forked or node.context[1] not in (None, self.source.session_id):
                self.out.copied.add(node.key)
        self.out.first_prompt = self._text(self.graph.first_prompt())
        self.out.session = self._session(stats, facts, project)
        return self.out

    def _text(self, text: str) -> str:
        if (known := self._texts.get(text)) is not None:
            return known
        # Parquet holds UTF-8; a lone surrogate has no place in it.
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        clean = redact_text(clean, self.names)[0]
        if len(text) < 1000:
            self._texts[text] = clean
        return clean

    def _state(self, node: Node, after: Outcome) -> Row:
        version, _, cwd = node.context
        system_hash, tools_hash = (
            self._snapshot_before(node.first) if self._snapshots else (None, None)
        )
        fidelity = node.fidelity
        if fidelity is None:
            rendered = (node.attached or system_hash) and not self._replaced
            fidelity = "attachments_rendered" if rendered else "reconstructed"
            fidelity = "repaired" if node.repaired else fidelity
        return {
            "state_id": state_id_of(self.source.session_id, node.key),
            "session_id": self.source.session_id,
            "agent_id": self.source.agent_id,
            "message_id": node.key,
            "system_hash": system_hash,
            "tools_hash": tools_hash,
            "action": None,
            "fidelity": fidelity,
            "repaired": node.repaired,
            "cwd": self._text(cwd or ""),
            "model": self._text(node.models[0]) if node.models else None,
            "version": None if version is None else self._text(version),
            "ts": parse_time(node.timestamp),
            "input_tokens": node.input_tokens,
            "output_tokens": node.output_tokens,
            "turn": node.depth,
            "parser_version": PARSER_VERSION,
            **msgspec.structs.asdict(after),
        }

    def _judged(
        self, active: set[int]
    ) -> tuple[list[Outcome | None], dict[int, list[Row]], dict[int, Row]]:
        """Return the outcomes, the verdicts on states that failed, and what their culprits hold."""
        corrected = corrections(self.graph)
        edits = Edits(self.graph, sorted(active))
        after = outcomes(self.graph, active, undone(edits))
        judge = Judge(self.graph, edits, active)
        judged: dict[int, list[Row]] = {}
        for number in self._numbers.values():
            bad = (after[number] or Outcome()).tests_passed is False
            node = self.graph.nodes[number]
            if failed := failures_of(node, corrected.get(number), tests_failed=bad):
                judged[number] = self._verdicts(judge, number, failed)
        return after, judged, self._culprits(judge, judged)

    def _verdicts(self, judge: Judge, number: int, failures: list[Failure]) -> list[Row]:
        """Judge each call that failed; what only shows the fault of one before it is left out."""
        found: dict[Author | str | None, Row] = {}
        for failure in failures:
            judged = judge.judge(number, failure)
            verdict = {
                "error_kind": failure.kind,
                "hint": failure.hint or None,  # from the content store, hence redacted
                "hint_source": failure.source,
                "hint_call": failure.call if failure.hint else None,
                "verdict": judged.verdict,
                "verdict_reason": judged.reason,
                "verdict_evidence": judged.evidence,
                "culprit_state_id": self._id(judged.culprit.node) if judged.culprit else None,
                "culprit_call": judged.culprit.call if judged.culprit else None,
                "culprit_by": judged.by,
                "culprit_confidence": judged.confidence,
                "lesson": judged.lesson,
            }
            found.setdefault(judged.culprit if judged.by else judged.evidence, verdict)
        return list(found.values())

    def _culprits(self, judge: Judge, judged: dict[int, list[Row]]) -> dict[int, Row]:
        """Return what the states of culprits hold of the errors they caused."""
        notes: dict[int, Row] = {}
        for number, error in ((n, error) for n, found in judged.items() for error in found):
            if (node := self._numbers.get(error["culprit_state_id"] or "")) is None:
                continue
            culprit = notes.setdefault(node, {"caused_error": self._id(number)})
            if error["verdict"] == "revealed" and number in judge.active:
                self._fix(judge, number, node, error, culprit)
        return notes

    def _fix(self, judge: Judge, number: int, node: int, error: Row, culprit: Row) -> None:
        """Note at the culprit of an error turn how its edit should have been."""
        failed = self.graph.nodes[number].calls[error["hint_call"]]
        at = Author(node, error["culprit_call"])
        if "fixed_action" in culprit or (found := fixup(judge, at, number, failed)) is None:
            return
        action = orjson.loads(self.compose.action(self.graph.nodes[node]))
        action["tool_calls"][error["culprit_call"]]["arguments"] = found.arguments
        culprit["fixed_action"] = encode(action).decode()
        culprit["fixed_by"] = self._id(found.fixed_by)
        culprit["fix_verified_by"] = self._id(found.verified_by)
        between = (node < number <= found.fixed_by for number in self._numbers.values())
        culprit["fix_distance"] = sum(between)

    def _id(self, number: int) -> str:
        return state_id_of(self.source.session_id, self.graph.nodes[number].key)

    def _snapshot_before(self, at: int) -> tuple[str | None, str | None]:
        for position, system, tools in reversed(self._snapshots):
            if position < at:
                return self._hash(system), self._hash(tools)
        return None, None

    def _hash(self, number: int | None) -> str | None:
        return None if number is None else self._hashes[number].hex()

    def _session(self, stats: LineStats, facts: Facts, project: str) -> Row:
        nodes = [n for n in self.graph.nodes if n.kind == "response" and n.origin is None]
        return {
            "agent": self._text(stats.agent),
            "session_id": self.source.session_id,
            "agent_id": self.source.agent_id,
            "path": self.source.path,
            "sha256": self.source.sha256,
            "parent_call": self.source.parent_call,
            "redaction_version": redaction_version(),
            "project": project,
            "first_prompt": self.out.first_prompt[:500],
            "models": sorted(map(self._text, facts["models"])),
            "tools": sorted({self._text(call.name) for n in nodes for call in n.calls}),
            "first_ts": parse_time(self.graph.first_time),
            "last_ts": parse_time(self.graph.last_time),
            "repaired_states": facts["states_with_repaired_prefix"],
            "unknown_types": encode(
                {self._text(kind): count for kind, count in sorted(stats.unknown_types.items())}
            ).decode(),
            **{name: facts[name] for name in _SESSION_FACTS},
            "versions": sorted(map(self._text, facts["versions"])),
        }
