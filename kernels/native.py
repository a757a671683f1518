"""The C++ half of the CPU path (kernels/native/*.cpp), built at first use for this machine and loaded with ctypes.

The library goes to $XDG_CACHE_HOME/bert-mlperf (~/.cache without it), named by a hash of sources, flags, compiler and
CPU, and appears there in one rename, so ranks may build at once. It uses the OpenMP runtime that torch has loaded: two
runtimes would have two sets of threads on the same cores. Functions are called by `call("name", tensor, 3, 0.5)`:
tensors become pointers (None a null pointer), ints int64_t, floats double. Only contiguous memory is handed over: the
callers see to it.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_mlperf.kernels.dropout import Dropout

SOURCES = Path(__file__).parent / "native"
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-fopenmp",
)
BUILD_SECONDS = 300.0


class BuildError(Exception):
    """Why there is no library, as part of a sentence."""


@cache
def unavailable() -> str | None:
    """Why the native kernels cannot run here, or None; builds them if need be."""
    try:
        library()
    except BuildError as error:
        return str(error)
    return None


@cache
def library() -> ctypes.CDLL:
    """The loaded library. BuildError if it can be neither found nor built."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        raise BuildError("no C++ compiler is found (install g++ or set CXX)")
    path = None
    try:
        path = cache_folder() / f"kernels-{fingerprint(compiler)}.so"
        if not path.is_file():
            build(compiler, path)
        loaded = ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody's home folder
        raise BuildError(f"the library {path or 'of the kernels'} cannot be made or loaded ({error})") from error
    if not hasattr(loaded, "bias_gelu_forward_f32"):
        raise BuildError(f"{path} is not the library of the kernels; remove it")
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the library that returns nothing; the interpreter lock is free meanwhile."""
    torch.get_num_threads()  # gives a new thread (a lane's, say) torch's number of OpenMP threads
    getattr(library(), name)(*(_as_c(a) for a in arguments))


def masks(dropout: Dropout | None) -> tuple[int, int, Tensor | None, Tensor | None]:
    """Key, threshold, positions and samples for a function that drops."""
    if dropout is None:
        return 0, 0, None, None
    return dropout.key, dropout.threshold, dropout.positions_R, dropout.samples_R


def _as_c(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, Tensor):
        if argument.device.type != "cpu":
            raise ValueError(f"the native kernels are for the CPU, got a tensor on {argument.device}")
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    assert isinstance(argument, float), type(argument)
    return ctypes.c_double(argument)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-mlperf"


def sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def fingerprint(compiler: str) -> str:
    """16 hex digits of everything that the library is made from."""
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    digest.update(repr((FLAGS, version, _cpu(), torch.__version__)).encode())
    return digest.hexdigest()[:16]


def build(compiler: str, path: Path) -> None:
    """Compiles all sources into `path`. BuildError with the compiler's first complaint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    command = [compiler, *FLAGS, *map(str, sources()), "-o", str(unfinished), *_openmp()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode != 0:
            said = done.stderr[:200].strip() or f"exit code {done.returncode}, without a word"
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), said)
            raise BuildError(f"{compiler} cannot build it: {complaint}")
        unfinished.replace(path)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{compiler} took more than {BUILD_SECONDS:.0f} s to build it") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _openmp() -> list[str]:
    """The OpenMP library that torch has loaded, to be linked in place of the compiler's own."""
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.is_file() else ""
    loaded = re.findall(r"(/\S*/lib(?:gomp|iomp5)[^/\s]*\.so[^/\s]*)", text)
    return loaded[:1]


def _cpu() -> str:
    """What -march=native looks at."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else platform.processor()
    return "\n".join(
        sorted({line for line in text.splitlines() if line.startswith(("flags", "Features", "model name"))})
    )
