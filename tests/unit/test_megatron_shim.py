"""The shim rewrites device constants and nothing else."""

from __future__ import annotations

import sys
import types
from importlib import metadata

import pytest

from leto.core.errors import ConfigError
from leto.megatron import cpu_shim

SOURCE = '''
DEVICE = "cuda"
KINDS = ("torch.cuda.HalfTensor", ("cuda", 3))

def inner(device="cuda"):
    """Runs on cuda."""
    def deepest():
        return device in {"cuda", "meta"}, "cuda:0", "not cuda"
    return deepest()
'''


def execute(source: str) -> dict[str, object]:
    code = cpu_shim._rewrite_code(compile(source, "a_module.py", "exec"))
    names: dict[str, object] = {}
    exec(code, names)
    return names


def test_exact_constants_are_rewritten_wherever_they_hide() -> None:
    names = execute(SOURCE)
    assert names["DEVICE"] == "cpu"
    assert names["KINDS"] == ("torch.HalfTensor", ("cpu", 3))
    inner = names["inner"]
    assert isinstance(inner, types.FunctionType)
    assert inner() == (True, "cuda:0", "not cuda")
    assert inner("meta")[0] is True
    assert inner.__doc__ == "Runs on cuda."


def test_only_megatron_core_is_rewritten() -> None:
    finder = cpu_shim._Finder()
    assert finder.find_spec("json") is None
    assert finder.find_spec("megatron.corelike") is None


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, cpu_shim._Finder)])
    monkeypatch.setattr(cpu_shim.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(metadata, "version", lambda _: "0.17.0")
    with pytest.raises(ConfigError, match=r"megatron-core 0\.17\.0 is installed; without a GPU only 0\.16\.1 is supported"):
        cpu_shim.install_without_cuda()


def test_a_megatron_that_is_there_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, cpu_shim._Finder)])
    monkeypatch.setattr(cpu_shim.torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "megatron.core", types.ModuleType("megatron.core"))
    with pytest.raises(ConfigError, match=r"megatron\.core was imported before leto\.megatron"):
        cpu_shim.install_without_cuda()


def test_nothing_is_patched_where_cuda_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_shim.torch.cuda, "is_available", lambda: True)
    before = list(sys.meta_path)
    cpu_shim.install_without_cuda()
    assert sys.meta_path == before
