"""What a commit has to change."""

from hashlib import sha256
from pathlib import Path

from composer_pipeline.publishing.hub import hashes_of


def test_a_file_that_was_written_again_has_another_hash(tmp_path: Path) -> None:
    """Hashes of a file are remembered for as long as it stays as it is."""
    file = tmp_path / "part.parquet"
    for content in (b"one", b"two"):
        new = tmp_path / "new"
        new.write_bytes(content)
        new.replace(file)
        assert hashes_of(file)[0] == sha256(content).hexdigest()
        assert hashes_of(file) == hashes_of(content)
