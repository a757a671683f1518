"""Compiles every Triton kernel at its BERT-Large shapes for GPUs that are not there, and reads what it costs.

    python -m bert_mlperf.kernels.aot [KERNEL ...]       a table: registers, shared memory, spills per architecture

Needs Triton (not its interpreter) and no GPU: Triton makes PTX, the ptxas it brings makes machine code and says what
it used.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CAPABILITIES = (80, 90, 100)  # A100, H100/H200, B200


@dataclass(frozen=True)
class AotCase:
    """One compilation: a Triton function with its types and constants."""

    name: str  # e.g. "dropout_add_layer_norm forward"
    function: Any  # the @jit function
    signature: Mapping[str, str]  # argument -> type: "*bf16", "*i32", "i32", "i64", "fp32"; constants are left out
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    divisible_by_16: tuple[str, ...] = ()  # arguments: pointers always are


@dataclass(frozen=True)
class Usage:
    """What one kernel uses on one architecture."""

    registers: int  # of a thread
    shared_bytes: int  # of a block
    spill_bytes: int  # of a thread, stores and loads


def compile_case(case: AotCase, capability: int) -> Usage:
    """Compiles for sm_<capability> and asks ptxas."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: case.signature.get(name, "constexpr") for name in case.function.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(case.function.arg_names)
        if signature[name].startswith("*") or name in case.divisible_by_16
    }
    source = ASTSource(case.function, signature, dict(case.constants), aligned)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spills = assemble(compiled.asm["ptx"], capability)
    return Usage(registers, compiled.metadata.shared, spills)


def assemble(ptx: str, capability: int) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from ptxas -v."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        architecture = f"sm_{capability}{'a' if capability >= 90 else ''}"
        command = [ptxas(), "-v", f"--gpu-name={architecture}", str(file), "-o", str(Path(folder) / "kernel.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", said))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    return registers, spills


@cache
def ptxas() -> str:
    """The assembler that Triton brings."""
    import triton.backends.nvidia as nvidia

    found = sorted((Path(nvidia.__file__).parent / "bin").glob("ptxas*"))
    blackwell = [p for p in found if "blackwell" in p.name]
    return str((blackwell or found)[0])


def all_cases(kernels: list[str]) -> list[AotCase]:
    from bert_mlperf.kernels.registry import KERNELS

    unknown = sorted(set(kernels) - set(KERNELS))
    if unknown:
        raise SystemExit(f"error: no kernel is named {unknown[0]}, expected {', '.join(KERNELS)}")
    return [case for name, module in KERNELS.items() if not kernels or name in kernels for case in module.aot_cases()]


def main(arguments: list[str]) -> None:
    """Prints the table in Markdown; exit code 1 if any kernel spills."""
    print("| kernel | architecture | warps | registers | shared memory, KiB | spilled bytes |")
    print("|---|---|---|---|---|---|")
    spilled = False
    for case in all_cases(arguments):
        for capability in CAPABILITIES:
            usage = compile_case(case, capability)
            spilled |= usage.spill_bytes > 0
            numbers = (case.num_warps, usage.registers, f"{usage.shared_bytes / 1024:.1f}", usage.spill_bytes)
            print(f"| {case.name} | sm_{capability} | {' | '.join(map(str, numbers))} |", flush=True)
    sys.exit(int(spilled))


if __name__ == "__main__":
    main(sys.argv[1:])
