"""What would be asked: which states, in which order, and the exact body for each teacher.

A replay sends these questions, a plan estimates them.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from composer_pipeline.chat.convert import Conversion, to_chat, wire_messages
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.lake.parquet import column
from composer_pipeline.lake.place import check_days
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import NOTHING, Pico
from composer_pipeline.redaction.user_rules import redaction_version
from composer_pipeline.teachers.catalogue import CatalogueCheck, terms_of
from composer_pipeline.teachers.ledger.values import Call
from composer_pipeline.teachers.request import Request, serialise, settings_sent, worst_case
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.versions import CONVERTER_VERSION
from composer_pipeline.window import Message, Overhead, Turn, fit, turns_of, without_middle

if TYPE_CHECKING:
    from composer_pipeline.states.state import TraceState

#: Bytes of a body that make one token, for estimates and for the limits of context and window.
BYTES_PER_TOKEN = 4
#: The JSON around a message, and around a call with its result, in such tokens.
_JSON = Overhead(message=12, call=34)
#: Attempts to meet a window's budget; texts are measured well, so that the first mostly does.
_ATTEMPTS = 6
#: How much of its budget a cut window should fill.
_FILLED = 0.97


class Question(msgspec.Struct, frozen=True):
    """One request to one teacher; for ``key`` and ``digest`` see ``teachers.request``."""

    body: bytes
    key: str
    digest: str
    #: Worst case.
    amount: Pico
    call: Call
    #: Why it will not be sent although it could be, and why it must not be sent.
    skip: str = ""
    refuse: str = ""
    #: Worst case of the bytes alone, where ``amount`` is less because the prompt before them was
    #: measured.
    unanchored: Pico = NOTHING

    @property
    def to_recover(self) -> Pico:
        """What another run must reserve to fetch the answer, should this one lose it."""
        return max(self.amount, self.unanchored)


def too_long(teacher: Teacher, size: int) -> str:
    """Return why a body of ``size`` bytes is not sent to a teacher; empty where it may be."""
    tokens = size // BYTES_PER_TOKEN + teacher.max_tokens
    if tokens <= teacher.context_length:
        return ""
    return f"context_length: about {tokens} tokens, {teacher.name} takes {teacher.context_length}"


class _Bytes:
    """Counts a text by the bytes of its JSON: a teacher's tokenizer is not known."""

    def count(self, text: str) -> int:
        return -(-(len(orjson.dumps(text)) - 2) // BYTES_PER_TOKEN)

    def shortened(self, text: str, tokens: int) -> str:
        size = self.count(text)
        half = max(1, (tokens - 4) * len(text) // (2 * size)) if size else 0
        return text if size <= tokens else without_middle(text, half, len(text) - half)


class Cutter:
    """Cuts prompts to a window, as training cuts them; their calls keep ids and results."""

    def __init__(self) -> None:
        self._texts = _Bytes()
        self._turns: dict[tuple[int, ...], Turn] = {}

    def cut(self, messages: Sequence[Message], room: int) -> list[Message] | None:
        """Return the messages whose JSON on the wire has at most ``room`` bytes.

        ``messages`` begin with the system message; those of one object may not change. ``None``
        where not even the shortest task and last turn fit.
        """
        sized = [self._sized(turn) for turn in turns_of(messages[1:])]
        aim = int(_FILLED * room) // BYTES_PER_TOKEN
        for _ in range(_ATTEMPTS if aim > 0 else 0):
            kept, _ = fit(self._texts, _JSON, messages[0], sized, aim)
            size = len(orjson.dumps(wire_messages(kept)))
            if size <= room:
                return kept
            aim = int(_FILLED * aim * room / size)
        return None

    def _sized(self, turn: list[Message]) -> Turn:
        key = tuple(map(id, turn))  # the turn is kept, so that no other gets its address
        if key not in self._turns:
            self._turns[key] = Turn(self._texts, turn, _JSON)
        return self._turns[key]


class Questions:
    """The questions of one run; the filters are those of ``replay``."""

    def __init__(
        self,
        lake: Lake,
        teacher_set: TeacherSet,
        *,
        days: Sequence[str] | None = None,
        teachers: Sequence[str] | None = None,
        sessions: Collection[str] | None = None,
        states: Collection[str] | None = None,
        max_states: int | None = None,
        only_on_active_path: bool = False,
    ) -> None:
        from composer_pipeline.states.load import StatesOnDemand

        self.teacher_set = teacher_set
        self.teachers = teacher_set.select(None if teachers is None else list(teachers))
        if max_states is not None and max_states < 1:
            raise InputError("--max-states must be at least 1")
        known_days = lake.days("states")
        # A backfill names its days, and a day without a session is no error.
        if not known_days and days is None:
            raise InputError(f"lake {lake.url} has no states; ingest sessions first")
        self.days = known_days if days is None else sorted({*check_days(days)} & {*known_days})
        admits = lru_cache(1024)(teacher_set.projects.admits)
        first = None
        if max_states is not None:
            first = partial(
                sessions_of_first,
                max_states,
                sessions=sessions,
                admits=admits,
                only_on_active_path=only_on_active_path,
            )
        # Each state once, though a lake may hold it twice; messages are read by session.
        loaded = StatesOnDemand(lake, self.days, first).states
        self._toolsets = Toolsets(lake, loaded)
        self.states = [
            state
            for state in loaded
            if (sessions is None or state.session_id in sessions)
            and (states is None or state.state_id in states)
            and admits(state.project)
            and (state.on_active_path or not only_on_active_path)
        ]
        self._cut = max_states is not None
        if max_states is not None:
            self.states.sort(key=lambda s: (not _went_wrong(s), _when(s), s.state_id))
            self.states = self.states[:max_states]
        #: What the catalogue says of each teacher, where there is one; provenance.
        self.catalogue_checks: Mapping[str, CatalogueCheck] = {}
        self._settings = {
            teacher.name: settings_sent(teacher, endpoint.name, api=endpoint.api)
            for teacher in self.teachers
            for endpoint in [teacher_set.endpoint_of(teacher)]
        }
        self._conversions: dict[tuple[str, int | None], Conversion] = {}
        self._clean: set[bytes] = set()
        self._lake = lake
        #: Day -> whether the current rules have redacted it.
        self._redacted: dict[str, bool] = {}

    @property
    def selected_days(self) -> list[str]:
        """The days of the selected states, and of all states where nothing cuts their number."""
        return sorted({state.day for state in self.states}) if self._cut else self.days

    def chains(self) -> list[list["TraceState"]]:
        """Return the states of each session in time order, sessions in time order.

        Asked in this order, each request starts with the previous one, which the
        provider's prompt cache then holds.
        """
        sessions: dict[str, list[TraceState]] = {}
        for state in sorted(self.states, key=lambda s: (_when(s), s.n_messages, s.state_id)):
            sessions.setdefault(state.session_id, []).append(state)
        return list(sessions.values())

    def pin_tools(self) -> None:
        """Store the tools of the selected states for good; call it before anything is asked."""
        self._toolsets.pin(self.states)

    def build(self, state: "TraceState", teacher: Teacher) -> Question:
        """Build the question about a state for a teacher; nothing is sent."""
        conversion = self._convert(state, teacher.window)
        request, endpoint = self.request(state, teacher), self.teacher_set.endpoint_of(teacher)
        body = request.body
        windowed = "windowed" in conversion.flags
        meta = self.meta(teacher, self.toolset(state), windowed=windowed)
        call = Call(state.state_id, teacher.name, state.session_id, state.day, meta)
        refuse = ""
        skip = too_long(teacher, len(body))
        if "window_too_small" in conversion.flags:
            skip = f"window_tokens: {teacher.window} do not hold task and last turn"
        if not skip and conversion.flags.get("action_in_prefix"):
            refuse = "action_in_prefix"
        elif not skip and self._has_secret(conversion):
            refuse = "secret"
        return Question(
            body,
            request.key(endpoint.name),
            request.digest(endpoint.name),
            worst_case(teacher, body),
            call,
            skip,
            refuse,
        )

    def request(self, state: "TraceState", teacher: Teacher) -> Request:
        """Return the request about a state; it is not scanned for secrets."""
        api = self.teacher_set.endpoint_of(teacher).api
        conversion = self._convert(state, teacher.window)
        return serialise(teacher, conversion, state.session_id, api=api)

    def toolset(self, state: "TraceState") -> Toolset:
        """Return the tools that a state is asked with."""
        return self._toolsets.of(state)

    def meta(self, teacher: Teacher, toolset: Toolset, *, windowed: bool = False) -> dict[str, Any]:
        """Return ``Call.meta``: what is recorded of a question beside its bytes."""
        return {
            "family": teacher.family,
            "control": teacher.control,
            "model": teacher.model,
            **({"served_as": teacher.served_as} if teacher.served_as else {}),
            "simulated": self.teacher_set.endpoint_of(teacher).simulated,
            "schema_source": toolset.source,
            "converter_version": CONVERTER_VERSION,
            "windowed": windowed,
            "toolset": toolset.digest,
            "settings": self._settings[teacher.name],
            **terms_of(teacher, self.catalogue_checks.get(teacher.name)),
        }

    def has_secret(self, state: "TraceState") -> bool:
        """Return True if a state shows a secret; only for a plan."""
        # What the current rules have redacted is not scanned a second time; build() does that to
        # every byte that is sent.
        day = state.day
        if day not in self._redacted:
            table = self._lake.read("messages", days=[day], columns=["redaction_version"])
            versions = set(table["redaction_version"].unique().to_pylist())
            self._redacted[day] = versions <= {redaction_version()}
        return not self._redacted[day] and self._has_secret(self._convert(state))

    def _convert(self, state: "TraceState", window: int | None = None) -> Conversion:
        key = (state.state_id, window)
        known = self._conversions.get(key)
        if known is None:
            if window is None:
                known = to_chat(state, tools=self._toolsets.of(state).tools)
            else:
                known = self._window_of(self._convert(state), window)
            # Teachers walk a session at about the same pace; keep what they share.
            if len(self._conversions) > 512:
                self._conversions.clear()
            self._conversions[key] = known
        return known

    def _window_of(self, whole: Conversion, window: int) -> Conversion:
        room = window * BYTES_PER_TOKEN - len(orjson.dumps(whole.tools))
        if len(orjson.dumps(wire_messages(whole.messages))) <= room:
            return whole
        kept = Cutter().cut(whole.messages, room)
        flag = "windowed" if kept else "window_too_small"
        return msgspec.structs.replace(
            whole, messages=kept or whole.messages[:1], flags={**whole.flags, flag: 1}
        )

    def _has_secret(self, conversion: Conversion) -> bool:
        """Scan every part of the body once; parts are shared along a session."""
        from composer_pipeline.redaction.redact import find_secrets

        for part in [*conversion.messages, *conversion.tools]:
            digest = hashlib.blake2b(orjson.dumps(part), digest_size=16).digest()
            if digest in self._clean:
                continue
            # The whole message, decoded: its keys tell what its values are.
            if find_secrets(part):
                return True
            self._clean.add(digest)
        return False


def sessions_of_first(
    number: int,
    rows: pa.Table,
    *,
    sessions: Collection[str] | None,
    admits: Callable[[str], bool],
    only_on_active_path: bool,
) -> set[str]:
    """Return the sessions of the first states: failed actions first, then by time and id."""
    # Of a state that is stored twice the last row counts.
    last = {state: at for at, state in enumerate(rows["state_id"].to_pylist())}
    if len(last) < len(rows):
        rows = rows.take(pa.array(sorted(last.values()), pa.int64()))
    projects = [name for name in pc.unique(rows["project"]).to_pylist() if admits(name)]
    kept = pc.is_in(rows["project"], value_set=column(projects, pa.string()))
    if sessions is not None:
        wanted = column(list(sessions), pa.string())
        kept = pc.and_(kept, pc.is_in(rows["session_id"], value_set=wanted))
    if only_on_active_path:
        kept = pc.and_(kept, rows["on_active_path"])
    rows = rows.filter(kept)
    keys = pa.table(
        {"fine": pc.invert(_went_wrong_in(rows)), "ts": rows["ts"], "state_id": rows["state_id"]}
    )
    order = pc.sort_indices(
        keys, sort_keys=[(name, "ascending", "at_start") for name in keys.column_names]
    )
    return set(rows["session_id"].take(order[:number]).to_pylist())


def _went_wrong(state: "TraceState") -> bool:
    """Return True if an action caused an error, or the user refused it."""
    if state.caused_error is not None:
        return True
    return state.error_kind is not None and state.verdict in (None, "user_choice")


def _went_wrong_in(rows: pa.Table) -> pa.ChunkedArray:
    """Return :func:`_went_wrong` of the rows of ``states``."""
    judged = pc.equal(pc.fill_null(rows["verdict"], "user_choice"), "user_choice")
    refused = pc.and_(pc.is_valid(rows["error_kind"]), judged)
    return pc.or_(pc.is_valid(rows["caused_error"]), refused)


def _when(state: "TraceState") -> float:
    return ts.timestamp() if (ts := state.ts) else 0.0  # a row makes its time at each access
