"""Where the checkout and the shared corpus are, for tests at any depth, and a disk that is full."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Real sessions with ground truth, beside a checkout that has them.
CORPUS = ROOT.parent / "shared" / "corpus"


def fill(disk: Path) -> Path:
    """Leave no byte free on a small disk; return the file that takes the room."""
    ballast = disk / "ballast"
    try:
        with ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return ballast
