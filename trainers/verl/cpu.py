"""Our registration of verl's FSDP2 engine for a CPU, for tests: upstream supports none."""

import contextlib
import os
import types
from functools import cache
from typing import Any

import torch


class _Device(types.SimpleNamespace):
    """Stands for ``torch.cuda``: what ``torch.cpu`` has, else a function that returns 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


_DEVICE = _Device(
    get_device_name=lambda *_: "CPU", is_available=lambda: False, mem_get_info=lambda *_: (0, 1)
)
#: Properties and methods of verl's platform, by name, with what they return; others return None.
_VALUES = {"device_name": "cpu", "vendor_name": "cpu", "device_module": _DEVICE}
_RETURNS: dict[str, Any] = {
    "is_available": True, "current_device": "cpu", "device_count": 1, "ray_resource_name": "CPU",
    "get_device_capability": (None, None), "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES", "ray_noset_envvars": [],
    "is_ipc_supported": False, "nvtx_range": contextlib.nullcontext(),
}  # fmt: skip


@cache
def register() -> None:
    """Register platform and engine; to be called before anything of ``verl.workers``."""
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    def returning(value: Any) -> Any:
        return lambda *_, **__: value

    members = {name: returning(None) for name in PlatformBase.__abstractmethods__}
    members |= {name: returning(value) for name, value in _RETURNS.items()}
    members |= {name: property(returning(value)) for name, value in _VALUES.items()}
    members |= dict.fromkeys(("manual_seed", "manual_seed_all"), staticmethod(torch.manual_seed))
    PlatformRegistry.register(platform="cpu")(type("Cpu", (PlatformBase,), members))
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    known = {"model_type": "language_model", "backend": ["fsdp2"], "device": ["cpu"]}
    EngineRegistry.register(**known)(FSDPEngineWithLMHead)
