"""Which implementation is chosen, what is refused, and what happens when one cannot do what it is asked."""

from typing import get_args

import pytest
import torch

from bert_mlperf.config import system
from bert_mlperf.kernels import native, registry
from bert_mlperf.kernels.registry import IMPLEMENTATIONS, KERNELS, select
from bert_mlperf.kernels.unsupported import Unsupported

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(registry, "_said", set())


def test_the_system_file_names_the_same_kernels_and_implementations():
    assert set(get_args(system.Kernel)) == set(KERNELS)
    assert get_args(system.Implementation) == ("auto", *IMPLEMENTATIONS)


def test_every_operation_has_a_reference_and_known_implementations():
    for kernel, module in KERNELS.items():
        for implementations in module.OPERATIONS.values():
            assert "reference" in implementations, kernel
            assert set(implementations) <= set(IMPLEMENTATIONS), kernel
        assert len({frozenset(i) for i in module.OPERATIONS.values()}) == 1, kernel


def test_automatically_the_native_kernels_run_on_the_cpu(capfd):
    assert set(select(CPU).names.values()) == {"native"}
    assert capfd.readouterr().err == ""


def test_without_a_compiler_the_reference_runs_and_one_line_per_kernel_says_so(monkeypatch, capfd):
    monkeypatch.setattr(native, "unavailable", lambda: "no C++ compiler is found")
    for _ in range(2):
        assert set(select(CPU).names.values()) == {"reference"}
    lines = capfd.readouterr().err.splitlines()
    assert lines == [f"kernels  {k}: reference instead of native: no C++ compiler is found" for k in KERNELS]


def test_kernels_are_chosen_one_by_one_and_the_others_automatically():
    names = select(CPU, {"attention": "reference", "lamb": "triton"}).names
    assert names == {k: {"attention": "reference", "lamb": "triton"}.get(k, "native") for k in KERNELS}


def test_a_name_that_only_some_kernels_know_is_for_them(monkeypatch):
    monkeypatch.setattr(registry, "unavailable", lambda implementation, device: None)
    names = select(CPU, "library").names
    assert names["attention"] == "library" and names["bias_gelu"] == "native"


@pytest.mark.parametrize(
    "choice, sentence",
    [
        ("fast", "run.kernels is 'fast', expected auto or one of reference, native"),
        ({"attn": "native"}, "run.kernels names attn, expected one of embedding_layer_norm"),
        ({"attention": "fast"}, "run.kernels is 'fast', expected auto"),
        ({"lamb": "library"}, "run.kernels: lamb has no 'library', expected one of reference"),
        ("library", "run.kernels is 'library' for attention, but it is for CUDA; choose another or auto"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_sentence(choice, sentence):
    with pytest.raises(ValueError, match=sentence):
        select(CPU, choice)


def test_triton_on_the_cpu_needs_the_interpreter(monkeypatch):
    monkeypatch.setattr(registry, "is_interpreted", lambda: False)
    with pytest.raises(ValueError, match=r"on the CPU it runs in the interpreter only \(TRITON_INTERPRET=1\)"):
        select(CPU, "triton")
    monkeypatch.setattr(registry, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=r"Triton is not installed \(pip install triton\)"):
        select(CPU, "triton")


def test_native_kernels_are_for_the_cpu_and_triton_is_what_cuda_gets():
    with pytest.raises(ValueError, match="it is for the CPU"):
        select(torch.device("cuda"), "native")
    assert set(select(torch.device("cuda")).names.values()) == {"triton"}


def test_what_is_unsupported_is_done_by_the_reference_and_said_once(monkeypatch, capfd):
    def refuses(x, bias):
        raise Unsupported("width 5 is odd")

    operations = KERNELS["bias_gelu"].OPERATIONS["bias_gelu"]
    monkeypatch.setitem(operations, "native", refuses)
    kernels, x, bias = select(CPU), torch.randn(3, 5), torch.randn(5)
    expected = operations["reference"](x, bias)
    for _ in range(2):
        assert torch.equal(kernels.bias_gelu(x, bias), expected)
    assert capfd.readouterr().err == "kernels  bias_gelu: reference instead of native: width 5 is odd\n"
