"""Whose model a name is: the families of models, and the words that tell them.

Belongs here: names of models and families. Does not belong here: who may vote
(``preferences.agreement.eligibility``).
"""

import re

#: Families of the agent that wrote the traces, where a state does not name its model.
STUDENT_FAMILIES = frozenset({"claude", "anthropic"})


#: Words of model and family names that say whose model it is.
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
    """Return whose model a name is, by its first telling word; empty if it tells nothing."""
    return next(iter(lineages_of(name)), "")


def lineages_of(name: str) -> list[str]:
    """Return every lineage that a name tells of, in its order (distillations tell of two)."""
    found = [_LINEAGE_OF[p] for p in _NAME_PARTS.findall(name.lower()) if p in _LINEAGE_OF]
    return list(dict.fromkeys(found))
