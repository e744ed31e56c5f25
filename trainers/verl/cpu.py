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


#: Members of verl's platform, by name.
_VALUES = {"device_name": "cpu", "vendor_name": "cpu", "device_module": _Device(
    get_device_name=lambda *_: "CPU", is_available=lambda: False, mem_get_info=lambda *_: (0, 1),
)}  # fmt: skip
_RETURNS: dict[str, Any] = {
    "is_available": True, "current_device": "cpu", "device_count": 1, "set_device": None,
    "synchronize": None, "set_allocator_settings": None, "empty_cache": None,
    "get_device_capability": (None, None), "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES", "profiler_start": None,
    "profiler_stop": None, "ray_resource_name": "CPU", "ray_noset_envvars": [],
    "is_ipc_supported": False, "cudart": None, "nvtx_range": contextlib.nullcontext(),
}  # fmt: skip


def _member(value: Any) -> Any:
    return lambda *_, **__: value


@cache
def register() -> None:
    """Register platform and engine; to be called before anything of ``verl.workers``."""
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    members = {name: property(_member(value)) for name, value in _VALUES.items()}
    members |= {name: _member(value) for name, value in _RETURNS.items()}
    seed = staticmethod(torch.manual_seed)
    cpu = type("Cpu", (PlatformBase,), {**members, "manual_seed": seed, "manual_seed_all": seed})
    PlatformRegistry.register(platform="cpu")(cpu)
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    known = {"model_type": "language_model", "backend": ["fsdp2"], "device": ["cpu"]}
    EngineRegistry.register(**known)(FSDPEngineWithLMHead)
