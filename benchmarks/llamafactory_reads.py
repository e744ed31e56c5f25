"""Does LLaMA-Factory's own converter take every row of ``export --format sharegpt``?

    composer-pipeline export --format sharegpt --out FOLDER
    python benchmarks/llamafactory_reads.py FOLDER

Installs LLaMA-Factory in an environment of its own below ``build/`` (it needs other versions of
torch, transformers and datasets than this project has), or takes one with ``--python``. For each
dataset that ``dataset_info.json`` names, the folder goes through ``get_dataset_list`` and
``align_dataset``; every row must keep its turns, both answers, its system prompt and its tools.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from peers import environment

VERSION = "0.9.5"

#: Runs there. Audio is not needed, and its library loads only beside the torch that it was built
#: for; a module without content stands in for one that does not load.
READ = """
import importlib.machinery, json, os, sys, types
os.environ["DISABLE_VERSION_CHECK"] = "1"
try:
    import torchaudio
except (ImportError, OSError):
    sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    sys.modules["torchaudio"].__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
from datasets import load_dataset
from llamafactory.data.converter import align_dataset
from llamafactory.data.formatter import FunctionFormatter, ToolFormatter
from llamafactory.data.parser import get_dataset_list

folder = sys.argv[1]
arguments = types.SimpleNamespace(
    streaming=False, preprocessing_num_workers=None, overwrite_cache=True, media_dir=folder
)
training = types.SimpleNamespace(local_process_index=0)
names = {"human": "user", "gpt": "assistant", "function_call": "function"}
calls = FunctionFormatter(slots=["{{content}}"], tool_format="qwen")
offered = ToolFormatter(tool_format="qwen")
for name in json.load(open(os.path.join(folder, "dataset_info.json"))):
    (described,) = get_dataset_list([name], folder)
    file = os.path.join(folder, described.dataset_name)
    rows = load_dataset("json", data_files=file, split="train")
    read = align_dataset(rows, described, arguments, training)
    kept = 0
    for row, got in zip(rows, read):
        def turn(turn):
            return {"content": turn["value"], "role": names.get(turn["from"], turn["from"])}
        answers = [turn(row["chosen"]), turn(row["rejected"])]
        kept += (
            got["_prompt"] == [turn(t) for t in row["conversations"]]
            and got["_response"] == answers
            and (got["_system"], got["_tools"]) == (row["system"], row["tools"])
        )
        offered.apply(content=got["_tools"])
        for message in got["_prompt"] + answers:
            if message["role"] == "function":
                calls.apply(content=message["content"])
    print(json.dumps({"dataset": name, "rows": len(rows), "kept": kept}))
"""


def main() -> None:
    """Print one line a dataset; end with 1 where a row was lost or changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what the export wrote")
    parser.add_argument("--python", help="interpreter of an environment that has LLaMA-Factory")
    asked = parser.parse_args()
    python = asked.python or str(environment({"llamafactory": VERSION}))
    done = subprocess.run(
        [python, "-c", READ, str(asked.folder)], stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    whole = all(result["rows"] == result["kept"] > 0 for result in results)
    sys.exit(0 if not done.returncode and results and whole else 1)


if __name__ == "__main__":
    main()
