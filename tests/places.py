"""Where the checkout and the shared corpus are, for tests at any depth."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Real sessions with ground truth, beside a checkout that has them.
CORPUS = ROOT.parent / "shared" / "corpus"
