"""Names of repositories: what the client would refuse is refused, in one sentence."""

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.errors import InputError
from composer_pipeline.publishing.hub import check_repo


@pytest.mark.parametrize(
    "repo",
    ["me/a--b", "me/a..b", "me/rows.git", "me/.git", "me/-a", "me/a.", "m--e/a", "me/é", "me/a:b"],
)
def test_a_name_that_the_client_rejects(repo: str) -> None:
    with pytest.raises(InputError, match="is not OWNER/NAME: each has 1 to 96"):
        check_repo(repo)


def test_a_name_that_is_too_long() -> None:
    check_repo(f"me/{'a' * 96}")
    with pytest.raises(InputError, match="1 to 96 letters"):
        check_repo(f"me/{'a' * 97}")


@given(st.from_regex(r"\A[ab._-]{1,6}/[ab._-]{1,6}(\.git)?\Z"))
def test_what_we_accept_the_client_accepts(repo: str) -> None:
    try:
        check_repo(repo)
    except InputError:
        with pytest.raises(HFValidationError):
            validate_repo_id(repo)
    else:
        validate_repo_id(repo)
