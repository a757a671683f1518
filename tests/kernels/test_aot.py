"""Every Triton kernel compiles for GPUs that are not here, without spills; addresses are 64 bits wide."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.kernels.jit import HAS_TRITON
from bert_mlperf.kernels.registry import KERNELS

ROOT = Path(__file__).resolve().parents[2]
KERNEL_FILES = sorted((ROOT / "kernels").glob("*.py"))


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_every_kernel_compiles_for_three_architectures_without_spills(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "bert_mlperf.kernels.aot"], env=environment, capture_output=True, text=True, timeout=600
    )
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [case.name for module in KERNELS.values() for case in module.aot_cases()]
    architectures = ("sm_80", "sm_90", "sm_100")
    assert [tuple(line[:2]) for line in lines] == [(name, arch) for name in cases for arch in architectures]
    assert all(line[5] == "0" and 8 <= int(line[3]) <= 255 for line in lines)


def test_an_unknown_kernel_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "bert_mlperf.kernels.aot", "attn"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and done.stderr.startswith(
        "error: no kernel is named attn, expected embedding_layer_norm"
    )


@pytest.mark.parametrize("file", KERNEL_FILES, ids=lambda path: path.name)
def test_program_ids_of_rows_are_64_bits_wide(file):
    """A program id that is multiplied by anything but a block size (a constant) must be cast first: tensors may have
    more than 2^31 elements. Those of column blocks and of blocks inside a sample are bounded by one row or sample."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and is_program_id(node.left):
            assert isinstance(node.right, ast.Name) and node.right.id.isupper(), ast.unparse(node)


def is_program_id(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.program_id"
