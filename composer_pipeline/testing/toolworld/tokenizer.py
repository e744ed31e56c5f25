"""The student's words: a tokenizer in which a whole phrase of the small world is one token.

Belongs here: the vocabulary. Does not belong here: chat templates; the student has the one that
TRL ships for Qwen2.5, so that prompts, spans and sampled answers go the way of a real model.
"""

import re
from pathlib import Path
from typing import Any

from composer_pipeline.testing.sample_sessions.authoring import REJECTED, STOPPED
from composer_pipeline.testing.toolworld.world import BUGS, FILES, PROJECT, SYMBOLS

PAD, END, START, UNKNOWN = "<|pad|>", "<|im_end|>", "<|im_start|>", "<unk>"
#: The system message of ``chat`` and the first words of a hint in ``training.windows``; a test
#: finds an unknown word where one of them changes.
SYSTEM = (
    "You are a coding agent that works in a user's repository through tools.\n"
    "Do the next step of the task: call the tools that it needs, or answer in text when the"
    " task is done or you need to ask.\n"
    f"Working directory: {PROJECT.cwd}\nPlatform: unknown"
)
HINT = "Feedback about the next step: "
TOOLS = ("Read", "Edit", "Bash", "Open")
_PHRASES = (
    "system\n", "user\n", "assistant\n", "\n", "\n\n",
    SYSTEM,
    "Fix ", " in ", ".py", ".", "?",
    '<tool_call>\n{"name": "',
    f'", "arguments": {{"file_path": "{PROJECT.cwd}/',
    '", "old_string": "', '", "new_string": "',
    '", "arguments": {"command": "pytest tests/test_',
    '"}}\n</tool_call>',
    "<tool_response>\n", "\n</tool_response>",
    "     1→", "The file has been updated.", "1 passed",
    "<tool_use_error>", "</tool_use_error>", "Error: No such tool available: Open. Use ",
    "PreToolUse:Edit hook error: ", "The test expects ",
    "Exit code 4\n", "ERROR: not found: tests/test_", "\nDid you mean tests/test_",
    REJECTED.rstrip(), STOPPED, "[Request interrupted by user for tool use]", "Run tests/test_",
    HINT,
)  # fmt: skip


def words() -> list[str]:
    """Return the vocabulary; a word's place is its id."""
    numbered = (("f", FILES), ("s", SYMBOLS), ("b", BUGS), ("w", BUGS))
    names = [f"{letter}{i}" for letter, count in numbered for i in range(count)]
    return [PAD, END, START, UNKNOWN, *_PHRASES, *TOOLS, *names]


def tokenizer() -> Any:
    """Return the tokenizer with its chat template."""
    import trl
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = words()
    plain = sorted(vocabulary[4:], key=len, reverse=True)
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, UNKNOWN))
    # The longest phrase first; what stands between phrases is one unknown word.
    pattern = Regex("|".join(map(re.escape, plain)))
    made.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    made.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, unk_token=UNKNOWN,
        additional_special_tokens=[START],
    )  # fmt: skip
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja"
    fast.chat_template = template.read_text(encoding="utf-8")
    return fast
