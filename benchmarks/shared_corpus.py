"""Session files for a benchmark: given ones, the shared corpus, or the bundled samples."""

import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "corpus"
#: Unpacked once, kept between runs.
UNPACKED = ROOT / "build" / "bench-traces" / "corpus"


def source_files(folder: Path | None) -> tuple[Path, str]:
    """Return a folder of session files and what it is."""
    if folder is not None:
        return folder, f"{folder.name} (given)"
    if (SHARED / "claude-code-sessions.tar.xz").is_file():
        if not UNPACKED.is_dir():
            for name in ("claude-code-sessions", "claude-code-subagents"):
                with tarfile.open(SHARED / f"{name}.tar.xz", "r:xz") as archive:
                    archive.extractall(UNPACKED, filter="data")
        return UNPACKED, "the shared corpus"
    from composer_pipeline.testing.samples import sample_sessions_dir

    return sample_sessions_dir(), "the bundled sample sessions (the shared corpus is absent)"
