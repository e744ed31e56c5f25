"""Windows of real prompts: how often an action's file is lost, and how fast they are made.

The peer is the policy that came before: the longest suffix of whole turns, found by rendering and
tokenising one more turn each time. Both cut the same prompts for the same tokenizer (SmolLM2),
with the tools offered that a replay would offer, in at most 2,048 tokens as in
``recipes/train/default.yaml``. An action *names a file* when one of its calls has a path of its
own; the file is *lost* when the whole prompt showed that path and the window does not. Without
the shared corpus the bundled sample sessions are used, which are short.

Usage: ``python benchmarks/windows.py [--corpus DIR] [--every N] [--peer-every N]``.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shared_corpus import source_files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from composer_pipeline.chat.convert import action_message as chat_action  # noqa: E402
from composer_pipeline.chat.convert import to_chat  # noqa: E402
from composer_pipeline.chat.tools import Toolsets  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.states.load import load_states  # noqa: E402
from composer_pipeline.traces.ingest import ingest  # noqa: E402
from composer_pipeline.training.chat_template import offered_tools  # noqa: E402
from composer_pipeline.training.models import load_tokenizer, resolve_model  # noqa: E402
from composer_pipeline.training.recipe import Data  # noqa: E402
from composer_pipeline.training.window_text import (  # noqa: E402  # noqa: E402  # noqa: E402
    Dropped,
    action_message,
    plain_message,
    shows,
    split_turns,
)
from composer_pipeline.training.windows import TOOLS_SHARE, Windows  # noqa: E402
from composer_pipeline.window import paths_of  # noqa: E402

BUILD = ROOT / "build" / "bench-traces"
#: Prompt tokens, and the largest share of file-naming actions that may lose their file.
BARS = {4096: 0.10, 16384: 0.03}

Cut = Callable[[list[Any], list[Any]], list[Any]]


def prompts(lake: Lake, every: int) -> Iterator[tuple[list[Any], list[Any], Any]]:
    """Yield (prompt, tools, action) of every ``every``-th state in chat form."""
    number = 0
    for day in lake.days("states"):
        states = list(load_states(lake, days=[day]))
        tools = Toolsets(lake, states)
        for state in states:
            number += 1
            if number % every == 0:
                talk = to_chat(state, tools=tools.of(state).tools)
                yield list(talk.messages), list(talk.tools), chat_action(state.action)


class Score:
    """What one policy did to the prompts under one budget."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.rows = self.refused = self.shortened = self.naming = self.lost = 0
        self.seconds = 0.0

    def add(self, prompt: list[Any], tools: list[Any], action: Any) -> None:
        """Cut one prompt and see what its action names."""
        started = time.process_time()
        try:
            window = self.cut(prompt, tools)
        except Dropped:
            self.refused += 1
            return
        finally:
            self.seconds += time.process_time() - started
            self.rows += 1
        whole = [plain_message(message) for message in prompt]
        self.shortened += sum(len(m["content"]) for m in window) < sum(
            len(m["content"]) for m in whole
        )
        paths = dict.fromkeys(paths_of(action_message([action])))
        self.naming += bool(paths)
        self.lost += any(not shows(window, path) and shows(whole, path) for path in paths)

    def share(self) -> float:
        """Return the share of file-naming actions whose file is lost."""
        return self.lost / max(1, self.naming)


def whole_turns(windows: Windows) -> Cut:
    """Return the peer: whole turns from the left, rendered again with each turn."""
    limits = windows.limits
    room = min(limits.max_tools_tokens, limits.max_prompt_tokens // TOOLS_SHARE)

    def over(messages: Sequence[Any], tools: Sequence[Any]) -> int:
        return len(windows.prompt_ids(messages, tools)) - limits.max_prompt_tokens

    def cut(prompt: list[Any], tools: list[Any]) -> list[Any]:
        system, turns = split_turns(prompt)
        first = windows.texts.shortened(system["content"], limits.max_prompt_tokens // 4)
        head = {**system, "content": first}
        last = turns[-1] if turns else []
        offered = offered_tools(windows.texts, tools, last, room)
        window = [head, *last]
        for start in range(len(turns) - 2, -1, -1):
            longer = [head, *(message for turn in turns[start:] for message in turn)]
            if over(longer, offered) > 0:
                break
            window = longer
        for _ in range(8):
            excess = over(window, offered)
            if excess <= 0:
                return window
            sizes = [windows.texts.count(message["content"]) for message in window]
            longest = max(range(len(window)), key=sizes.__getitem__)
            if sizes[longest] - excess < 16:
                break
            text = windows.texts.shortened(window[longest]["content"], sizes[longest] - excess - 8)
            window[longest] = {**window[longest], "content": text}
        raise Dropped("prompt does not fit")

    return cut


def main() -> int:
    """Print the figures; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder of session files")
    parser.add_argument("--lake", type=Path, help="a lake that holds them already")
    parser.add_argument("--every", type=int, default=4, help="take each N-th state")
    parser.add_argument("--peer-every", type=int, default=10, help="of these, for the peer")
    options = parser.parse_args()
    folder, what = source_files(options.corpus)
    with tempfile.TemporaryDirectory() as scratch:
        lake = Lake(options.lake or Path(scratch) / "lake")
        if options.lake is None:
            ingest(lake, [folder])
        return measure(lake, what, options.every, options.peer_every)


def measure(lake: Lake, what: str, every: int, peer_every: int) -> int:
    """Cut the prompts of a lake under both budgets with both policies, and print a table."""
    scores: dict[tuple[int, str], Score] = {}
    for tokens in BARS:
        windows = Windows(
            load_tokenizer(resolve_model("smollm2-135m")),
            Data(max_prompt_tokens=tokens, max_tools_tokens=2048),
        )
        ours = (lambda w: lambda prompt, tools: w.window(prompt, tools)[0])(windows)
        scores[tokens, "ours"] = Score(ours)
        scores[tokens, "ours on the peer's rows"] = Score(ours)
        scores[tokens, "whole turns (peer)"] = Score(whole_turns(windows))
    for number, (prompt, tools, action) in enumerate(prompts(lake, every)):
        for (_, name), score in scores.items():
            if name == "ours" or number % peer_every == 0:
                score.add(prompt, tools, action)
    print(f"{what}, every {every}th state, tokenizer SmolLM2\n")
    print("| prompt tokens | policy | rows | cut | refused | name a file | lose it | rows/CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    missed = 0
    for (tokens, name), s in scores.items():
        print(
            f"| {tokens} | {name} | {s.rows} | {s.shortened / max(1, s.rows):.0%} | {s.refused}"
            f" | {s.naming} | {s.lost} = {s.share():.1%} | {s.rows / max(1e-9, s.seconds):.1f} |"
        )
        missed += name == "ours" and s.share() > BARS[tokens]
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main())
