"""Devices: found without torch, one for each replica."""

import importlib.metadata
import os
import stat

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training.plan import Device, device_of_each, devices, host_memory

SMI = "#!/bin/sh\necho '0, GPU-aa, 24564'\necho '1, GPU-bb, 81559'\n"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A machine with two GPUs and a torch that was built for them."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.13.0+cu130")


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [("0", 24564), ("1", 81559)]),
        ("1", [("1", 81559)]),
        ("GPU-bb,0", [("GPU-bb", 81559), ("0", 24564)]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [("0", 24564)]),
    ],
)
def test_visible_devices_in_torchs_order(smi, visible, found):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices(environ) == [Device(name, mib * 2**20) for name, mib in found]


def test_a_torch_for_the_cpu_uses_no_device(smi, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.13.0+cpu")
    assert devices({}) == []


def test_each_replica_has_a_device_of_its_own_and_one_replica_sees_one(smi):
    two = devices({})
    assert device_of_each(2, two) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    # With both visible TRL would wrap the model in DataParallel.
    assert device_of_each(1, two) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    assert device_of_each(3, []) == [{}, {}, {}]


def test_more_replicas_than_devices_name_the_field(smi):
    with pytest.raises(InputError, match=r"diloco\.replicas: 3 replicas .* 2 are visible"):
        device_of_each(3, devices({}))


def test_this_machine_has_memory():
    assert host_memory() > 2**26


def test_each_process_of_a_replica_has_a_device_of_its_own():
    four = [Device(str(i), None) for i in range(4)]
    assert device_of_each(2, four, processes=2) == [
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"},
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"ranks\.processes: 2 x 3 processes need a device each"):
        device_of_each(2, four, processes=3)
