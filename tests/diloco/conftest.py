import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOY = Path(__file__).with_name("toy_replica.py")


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """The module ``toy_replica``, which tests also run as a script."""
    spec = importlib.util.spec_from_file_location("toy_replica", TOY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toy_replica"] = module
    spec.loader.exec_module(module)
    return module
