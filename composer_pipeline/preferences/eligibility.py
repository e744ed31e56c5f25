"""Which replies may vote on a state, and why the others may not.

Every usable reply is a voter, a control, or excluded with a reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.lake.store import Lake
from composer_pipeline.tool_names import steps_of

_CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`|https?://\S+", re.DOTALL)
_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af\u1100-\u11ff]"),
    "zh": re.compile("[\u4e00-\u9fff\u3400-\u4dbf]"),
    "ru": re.compile("[\u0400-\u04ff]"),
    "el": re.compile("[\u0370-\u03ff]"),
    "ar": re.compile("[\u0600-\u06ff]"),
    "he": re.compile("[\u0590-\u05ff]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
}
#: Frequent words that few other languages share. No library of the environment detects languages.
_WORDS = {
    "en": "the and is are was this that with for you have not but from will would should can been"
    " it to of all now what which your we they has",
    "es": "el los las una que para con por est\u00e1 esto pero como m\u00e1s hay este esta del ser"
    " tiene ahora todos han",
    "fr": "le les des une est et dans pour avec sur que qui pas sont cette nous vous mais plus tout"
    " maintenant du ces \u00eatre",
    "de": "der die das und ist nicht ein eine mit f\u00fcr auf den dem wird werden auch sich sind"
    " aber jetzt oder wurde alle kann",
    "pt": "os uma que para com n\u00e3o est\u00e1 isso mas como mais foi ser tem agora voc\u00ea"
    " s\u00e3o pelo todos dos das",
    "it": "il gli una che per con non \u00e8 questo sono della nel come pi\u00f9 ora ma anche"
    " tutti essere alla dei",
    "nl": "het een van en is niet met voor op zijn dat deze wordt maar ook nu naar alle heb kan",
    "pl": "nie jest si\u0119 na \u017ce do to oraz dla przez ale jak teraz wszystkie tylko jako",
    "tr": "bir ve bu i\u00e7in ile de\u011fil olarak daha ama \u015fimdi t\u00fcm olan gibi var",
}
_WORD_SETS = {language: frozenset(words.split()) for language, words in _WORDS.items()}
_LETTERS = re.compile(r"[^\W\d_]+")
#: Function words that identify a language, and by which factor it has to lead.
_HITS, _LEAD = 4, 2.0
_SCRIPT_LETTERS, _SCRIPT_SHARE = 4, 0.3


def language_of(text: str) -> str:
    """Return an ISO 639-1 code, or an empty string if the language is unclear."""
    text = _CODE.sub(" ", text)
    if not text.isascii():
        letters = sum(len(word) for word in _LETTERS.findall(text))
        counts = {name: len(script.findall(text)) for name, script in _SCRIPTS.items()}
        if counts["ja"]:
            counts["ja"] += counts.pop("zh")
        name = max(counts, key=lambda key: counts[key])
        if counts[name] >= max(_SCRIPT_LETTERS, _SCRIPT_SHARE * letters):
            return name
    words = _LETTERS.findall(text.lower())
    hits = {name: sum(map(known.__contains__, words)) for name, known in _WORD_SETS.items()}
    first, second = sorted(hits, key=lambda name: -hits[name])[:2]
    return first if hits[first] >= max(_HITS, _LEAD * hits[second]) else ""


#: Families of the agent that wrote the traces, if a state does not name its model.
STUDENT_FAMILIES = frozenset({"claude", "anthropic"})
#: Words of model and family names, by the model's origin.
LINEAGES: dict[str, frozenset[str]] = {
    "anthropic": frozenset({"anthropic", "claude", "opus", "sonnet", "haiku"}),
    "openai": frozenset({"openai", "gpt", "codex", "chatgpt", "o1", "o3", "o4"}),
    "google": frozenset({"google", "gemini", "gemma"}),
    "meta": frozenset({"meta", "llama"}),
    "qwen": frozenset({"qwen", "qwq", "alibaba"}),
    "deepseek": frozenset({"deepseek"}),
    "zai": frozenset({"glm", "zai", "zhipu", "z-ai"}),
    "moonshot": frozenset({"kimi", "moonshot", "moonshotai"}),
    "mistral": frozenset({"mistral", "mistralai", "devstral", "codestral", "magistral"}),
    "xai": frozenset({"xai", "grok"}),
    "minimax": frozenset({"minimax"}),
}
_LINEAGE_OF = {word: lineage for lineage, words in LINEAGES.items() for word in words}
_NAME_PARTS = re.compile(r"z-ai|[a-z]+\d*(?=$|[^a-z0-9])|[a-z]+")


def lineage_of(name: str) -> str:
    """Return the origin of a model by the first known word of its name, or an empty string."""
    return next(iter(lineages_of(name)), "")


def lineages_of(name: str) -> list[str]:
    """Return every origin in a model's name, in order; the name of a distillation has two."""
    found = [_LINEAGE_OF[p] for p in _NAME_PARTS.findall(name.lower()) if p in _LINEAGE_OF]
    return list(dict.fromkeys(found))


#: Training terms of replies, the strictest first; see the table ``replies``. A missing value
#: counts as unknown.
TERMS = ("enforced", "declared", "unknown", "not enforced")


@dataclass(frozen=True)
class Reply:
    """A usable reply of a teacher."""

    teacher: str
    family: str
    model: str
    action: Action
    tokens: int = 0
    cost_picodollars: int = 0
    simulated: bool = False
    control: bool = False
    training_terms: str | None = None
    licence: str = ""
    windowed: bool = False

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Reply":
        """Read a row of the table ``replies`` with status ok."""
        return Reply(
            teacher=str(row["teacher"]),
            family=str(row["family"]),
            model=str(row["model"]),
            action=Action.from_json(row["action"]),
            tokens=int(row.get("completion_tokens") or 0),
            cost_picodollars=int(row.get("cost_picodollars") or 0),
            simulated=bool(row.get("simulated")),
            control=bool(row.get("control")),
            training_terms=row.get("training_terms"),
            licence=str(row.get("licence") or ""),
            windowed=bool(row.get("windowed")),
        )


#: Columns of ``replies`` that a vote and its explanation read.
_REPLY_COLUMNS = [
    "state_id", "family", "model", "status", "detail", "action", "request_hash",
    "completion_tokens", "cost_picodollars", "simulated", "created_at", "control",
    "training_terms", "licence", "windowed",
]  # fmt: skip


def read_replies(lake: Lake, day: str) -> list[dict[str, Any]]:
    """Return a day's rows of the table ``replies``."""
    return lake.rows("replies", days=[day], columns=_REPLY_COLUMNS)


def reply_age(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sort key for the replies of a teacher to a state; the greatest is the newest."""
    return str(row["created_at"] or ""), str(row["request_hash"])


def is_usable(row: Mapping[str, Any]) -> bool:
    """Return True if a row of ``replies`` has an action."""
    return row["status"] == "ok" and row["action"] is not None


def usable_replies(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Reply]]:
    """Return state id to its usable replies, the newest of each teacher, sorted by teacher.

    Replies to the whole prompt and to a window of it are never in one vote: those of more families
    are returned, at a tie those to the whole.
    """
    newest: dict[tuple[str, bool, str], Mapping[str, Any]] = {}
    for row in sorted(filter(is_usable, rows), key=reply_age, reverse=True):
        key = (row["state_id"], bool(row.get("windowed")), row["teacher"])
        newest.setdefault(key, row)
    found: dict[str, list[Reply]] = {}
    for (state_id, _), group in groupby(sorted(newest.items()), key=lambda item: item[0][:2]):
        replies = [Reply.from_row(row) for _, row in group]
        known = found.setdefault(state_id, replies)
        if _families(replies) > _families(known):
            found[state_id] = replies
    return found


def _families(replies: Iterable[Reply]) -> int:
    return len({reply.family for reply in replies if not reply.control})


def reply_costs(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return state id to the billed cost of all its replies, in picodollars."""
    costs: Counter[str] = Counter()
    for row in rows:
        costs[row["state_id"]] += row["cost_picodollars"] or 0
    return costs


def is_control(reply: Reply, model: str | None) -> bool:
    """Return True if a reply is a control: bought as one, or of the agent's own family."""
    return reply.control or is_own(reply, model)


def is_own(reply: Reply, model: str | None) -> bool:
    """Return True if a reply comes from the family of the agent's model."""
    # The declared family decides, then the model's name: a distillation has the agent's in it.
    lineage = lineage_of(model or "") or "anthropic"
    return lineage in (lineage_of(reply.family), *lineages_of(reply.model))


def loosest_terms(replies: Iterable[Reply]) -> str:
    """Return the loosest training terms of some replies; ``unknown`` if there are none."""
    terms = {reply.training_terms or "unknown" for reply in replies} or {"unknown"}
    ranked = [*(term for term in TERMS if term in terms), *sorted(terms - set(TERMS))]
    return ranked[-1]


#: The argument that addresses the user or another agent, by tool.
_PROSE = {"AskUserQuestion": "questions", "ExitPlanMode": "plan", "Task": "prompt",
          "Agent": "prompt"}  # fmt: skip
_USER_TEXTS, _USER_CHARS = 4, 4000


@dataclass(frozen=True)
class Excluded:
    """A usable reply that may not vote; ``kind`` is ``empty`` or ``other_language``."""

    reply: Reply
    kind: str
    detail: str


def screen(
    messages: Sequence[Mapping[str, Any]], own: Action, replies: Iterable[Reply]
) -> tuple[list[Reply], list[Excluded]]:
    """Separate replies that are empty or in a language that the session does not use."""
    # Only words to the user or to another agent count: files may be in any language.
    kept: list[Reply] = []
    out: list[Excluded] = []
    spoken: frozenset[str] | None = None
    for reply in replies:
        if not reply.action.tool_calls and not reply.action.text.strip():
            out.append(Excluded(reply, "empty", "the reply has neither text nor a tool call"))
            continue
        language = language_of(prose_of(reply.action))
        if language and spoken is None:
            spoken = _spoken(messages, own)
        if language and spoken and language not in spoken:
            detail = f"the reply is in {language}, the session in {', '.join(sorted(spoken))}"
            out.append(Excluded(reply, "other_language", detail))
            continue
        kept.append(reply)
    return kept, out


def prose_of(action: Action) -> str:
    """Return the words of an action to the user or to another agent."""
    if not action.tool_calls:
        return action.text
    steps = steps_of(action.tool_calls)
    parts = [step.arguments.get(_PROSE.get(step.name, "")) for step in steps]
    return " ".join(str(part) for part in parts if part)


def _spoken(messages: Sequence[Mapping[str, Any]], own: Action) -> frozenset[str]:
    """Return the languages of the user's last texts and of the agent's action."""
    users = (_user_text(m.get("content")) for m in reversed(messages) if m.get("role") == "user")
    last = islice(filter(None, users), _USER_TEXTS)
    languages = {language_of(text[:_USER_CHARS]) for text in last} | {language_of(own.text)}
    return frozenset(languages - {""})


def _user_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [b.get("text") for b in content if isinstance(b, Mapping) and b.get("type") == "text"]
    plain = [p for p in parts if isinstance(p, str) and not p.lstrip().startswith("<")]
    return "\n".join(plain)
