"""The top of the card: what it is, a picture, code that trains, and one pair as people read it.

Belongs here: what a reader sees without scrolling far. Does not belong here: numbers on quality
(``card.quality``).
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from composer_pipeline.markdown import code, count, fenced, image, table
from composer_pipeline.publishing.card import Facts, Source
from composer_pipeline.training.models import SMOLLM2

#: The model of the snippet where the dataset was cut for none that the Hub has.
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

TEMPLATE = "chat_template.jinja"
#: A text of the example is cut here.
_SHOWN = 700
#: About so many characters have the task and both actions of the example.
_EXAMPLE = 400

_SNIPPET = """\
from datasets import load_dataset
from huggingface_hub import hf_hub_download
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer

repo, model = "{repo}", "{model}"
rows = load_dataset(repo, "pairs_8k", split="train")
tokenizer = AutoTokenizer.from_pretrained(model)
# A template that hides tool calls makes both sides equal. This one shows them.
template = hf_hub_download(repo, "{template}", repo_type="dataset")
tokenizer.chat_template = open(template, encoding="utf-8").read()
trainer = DPOTrainer(
    model=model,
    args=DPOConfig(output_dir="dpo", max_length=8192, max_steps=2, learning_rate=5e-5,
                   per_device_train_batch_size=1, logging_steps=1, bf16=False),
    train_dataset=rows,
    processing_class=tokenizer,
)
kept = trainer.train_dataset
equal = sum(row["chosen_ids"] == row["rejected_ids"] for row in kept)
print(f"{{len(kept)}} of {{len(rows)}} rows kept, {{equal}} with equal sides")
trainer.train()
print([log["rewards/margins"] for log in trainer.state.log_history if "rewards/margins" in log])
"""

_WHOLE = """\
from datasets import load_dataset

rows = load_dataset("{repo}", "pairs", split="train")
print(rows[0]["task"], rows[0]["chosen_text"], rows[0]["rejected_text"], sep="\\n\\n")
"""


def opening(repo: str, facts: Facts) -> Iterator[str]:
    """Yield the title, two lines on what this is, and the picture."""
    yield f"# {repo.split('/')[1]}"
    yield (
        f"{count(facts.of('pairs'))} preference pairs for coding agents, from"
        f" {count(len(facts.sessions))} recorded sessions: at a state that an agent was in,"
        " several models were asked what they would do.\n"
        "Where model families agree with each other and not with the agent, their action is"
        " `chosen` and the agent's is `rejected`."
    )
    yield image("assets/funnel.png", "From states of sessions to pairs; the numbers are below")
    if facts.simulated:
        yield (
            f"> **Simulated.** {count(facts.simulated)} of {count(facts.marked)} rows come from"
            " simulated teachers: scripts that answer over the real protocol, for demonstrations"
            " and tests. No model was asked. Do not train a model for use on them."
        )


def training(repo: str, facts: Facts, tokenizer: str) -> Iterator[str]:
    """Yield code that loads and trains."""
    yield "## Load and train"
    if not facts.of("pairs_8k"):
        yield fenced(_WHOLE.format(repo=repo).rstrip(), "python")
        yield (
            "The messages need `datasets>=5` (`List(Json())`). Prompts of agents are long, and"
            " trainers drop or cut what is longer than they expect: TRL's `DPOTrainer` keeps no"
            " row above `max_length` (1,024 unless told otherwise). Set it, and use a chat"
            " template that shows tool calls; this dataset was built without prompts cut to a"
            " window (`pairs_8k`)."
        )
        return
    model, whose = _model(tokenizer)
    text = _SNIPPET.format(repo=repo, model=model, template=TEMPLATE)
    yield fenced(text.rstrip(), "python")
    yield (
        "`pairs_8k` has the prompts cut in whole turns, so that prompt and action have at most"
        f" 8,192 tokens under {whose} and `{TEMPLATE}` of this repository; with another"
        " tokenizer check the rows kept. `pairs` has every prompt whole."
        " Needs `datasets>=5` and `trl>=1.16`."
    )


def _model(tokenizer: str) -> tuple[str, str]:
    """Return the model of the snippet, and whose tokens were counted; a path is named nowhere."""
    if tokenizer == SMOLLM2:
        return MODEL, f"the tokenizer of {code(MODEL)}"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", tokenizer) and not Path(tokenizer).exists():
        return tokenizer, f"the tokenizer of {code(tokenizer)}"
    return MODEL, "a tokenizer of the publisher's own"


def example(files: Iterable[Source]) -> Iterator[str]:
    """Yield one pair as a person reads it: gold, of two tools, and neither long nor trivial."""
    found = _telling(files)
    if found is None:
        return
    models = ", ".join(code(name) for name in dict.fromkeys(found["chosen_models"] or []))
    yield "## One pair"
    yield f"**The task**\n\n{fenced(_cut(found['task']))}"
    rejected = code(found["rejected_model"] or "not recorded")
    did = fenced(_cut(found["rejected_text"]))
    yield f"**What the agent did** ({rejected}), `rejected`\n\n{did}"
    yield f"**What {models} did**, `chosen`\n\n{fenced(_cut(found['chosen_text']))}"
    yield (
        f"The prompt is what the agent saw at turn {found['turn']}. Tier `{found['tier']}`:"
        f" {found['n_agree']} of {found['n_families']} families agree. What the trace says of the"
        f" agent's action: `{found['outcome']}`."
    )


def _telling(files: Iterable[Source]) -> dict[str, Any] | None:
    columns = ["task", "chosen_text", "rejected_text", "chosen_models", "rejected_model", "tier",
               "turn", "n_agree", "n_families", "outcome", "pair_id", "tool_chosen",
               "tool_rejected"]  # fmt: skip
    best: tuple[Any, ...] = ()
    for file in files:
        if (file.config, file.split) != ("pairs", "train"):
            continue
        for batch in pq.ParquetFile(file.local).iter_batches(batch_size=4096, columns=columns):
            for row in batch.to_pylist():
                size = sum(len(row[name] or "") for name in columns[:3])
                key = (
                    row["tier"] != "gold",
                    row["tool_chosen"] == row["tool_rejected"],
                    row["outcome"] != "student_bad",
                    abs(size - _EXAMPLE),
                    row["pair_id"],
                )
                if not best or key < best[0]:
                    best = (key, row)
    return best[1] if best else None


def _cut(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


def contents(facts: Facts) -> Iterator[str]:
    """Yield the table of configurations with their rows."""
    from composer_pipeline.dataset.splits import SPLITS
    from composer_pipeline.publishing.card import WHAT

    yield "## What is in it"
    yield table(
        ["configuration", "a row is", *SPLITS],
        [
            [code(config), what, *(count(facts.rows.get((config, s), 0)) for s in SPLITS)]
            for config, what in WHAT.items()
            if facts.of(config)
        ],
    )
    if facts.traces:
        yield (
            f"`traces/` holds the sessions whole, in {count(facts.traces)}"
            f" {'file' if facts.traces == 1 else 'files'} of Pi's session format, for the Hub's"
            " viewer: redacted like the rows, and in no configuration. Do not train on them;"
            " sessions of both splits are there."
        )
    if facts.days:
        repositories = len(facts.repositories)
        yield (
            f"Sessions of {min(facts.days)} to {max(facts.days)}, from {count(repositories)}"
            f" {'repository' if repositories == 1 else 'repositories'}."
        )
