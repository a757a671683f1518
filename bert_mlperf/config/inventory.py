"""What a machine says of itself for an MLPerf system description: from /proc, /sys, psutil, NVML and packages.

Every source may be missing, unreadable or odd: then the fact is a text that a person must replace, never a guess.
Here are processors and memory; disks and networks are in inventory_devices, accelerators and software in
inventory_accelerators.
"""

import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from bert_mlperf.config.facts import Fact, ask, entries, numbered, text_of, todo, whole
from bert_mlperf.config.inventory_accelerators import accelerator_facts, software_facts
from bert_mlperf.config.inventory_devices import network_fact, storage_facts

CPU_FOLDER = "sys/devices/system/cpu"
MEMORY_KINDS = {0x18: "DDR3", 0x1A: "DDR4", 0x1E: "LPDDR4", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5"}
NOT_STORAGE = r"(loop|ram|zram|dm-|md|sr|fd|nbd|zd|rbd|mtdblock)\d+.*|nvme\d+c\d+n\d+"
INFINIBAND = "32"  # ARPHRD_INFINIBAND: the network card of an InfiniBand device
ACCELERATOR_CLASSES = ("0x0302", "0x1200")  # PCI: 3D controller, processing accelerator
NO_NVLINK = ("NVMLError_NotSupported", "NVMLError_InvalidArgument")  # this GPU has none, or none of this number
PACKAGE_ENDS = ("", "-cu13", "-cu12", "-cu11", "-cuda130", "-cuda120", "-cuda110")
PACKAGES = {
    "cuda_version": "nvidia-cuda-runtime",
    "cudnn_version": "nvidia-cudnn",
    "nccl_version": "nvidia-nccl",
    "dali_version": "nvidia-dali",
    "triton_version": "triton",
    "numpy_version": "numpy",
}


def machine_facts(*, root: Path = Path("/"), host: Any = None, nvml: Any = None) -> dict[str, Fact]:
    """The MLPerf fields that a machine can know, with TODO texts where this one does not.

    `root` holds /proc, /sys and /etc, `host` is the module psutil and `nvml` the module pynvml, each None where it is
    not installed. Raises nothing for what is missing or unreadable.
    """
    ask(nvml, "nvmlInit")  # where it fails, so does every later question, and the facts say so
    try:
        return {
            **processor_facts(root, host),
            **memory_facts(root, host),
            **storage_facts(root),
            "host_networking": network_fact(root, host),
            **accelerator_facts(root, nvml),
            **software_facts(root, nvml),
        }
    finally:
        ask(nvml, "nvmlShutdown")


def processor_facts(root: Path, host: Any) -> dict[str, Fact]:
    """Model, counts, clock and caches; a count is that of the processors which are switched on."""
    info = _cpuinfo(root)
    packages = _packages(root)
    sockets = len(packages) or len(info.get("physical id", ()))
    cores = {str(len(cores)) for cores in packages.values()} or set(info.get("cpu cores", ()))
    source = CPU_FOLDER if packages else "proc/cpuinfo"
    offline = text_of(root / CPU_FOLDER / "offline")
    counted = f"/{source}{f' (CPUs {offline} are offline)' if offline else ''}"
    logical = ask(host, "cpu_count")
    link = Fact("none", "one processor") if sockets == 1 else todo("link between the processors, e.g. UPI or xGMI")
    return {
        "host_processors_per_node": Fact(str(sockets), counted) if sockets else todo("processor sockets of a host"),
        "host_processor_model_name": _processor_model(info),
        "host_processor_core_count": Fact(min(cores), counted) if len(cores) == 1 else todo("cores of one processor"),
        "host_processor_vcpu_count": Fact(str(logical), "psutil") if logical else todo("logical processors of a host"),
        "host_processor_frequency": _processor_clock(root, info),
        "host_processor_caches": _caches(root),
        "host_processor_interconnect": link,
    }


def _cpuinfo(root: Path) -> dict[str, list[str]]:
    """The distinct values of every key of /proc/cpuinfo."""
    values: dict[str, list[str]] = {}
    for line in text_of(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        text, seen = " ".join(value.split()), values.setdefault(key.strip(), [])
        if text and text not in seen:
            seen.append(text)
    return values


def _cpus(root: Path) -> list[Path]:
    return [folder for folder in entries(root / CPU_FOLDER) if re.fullmatch(r"cpu\d+", folder.name)]


def _packages(root: Path) -> dict[str, set[str]]:
    """For each processor its cores, a core named by the list of its threads."""
    packages: dict[str, set[str]] = {}
    for cpu in _cpus(root):
        package = text_of(cpu / "topology/physical_package_id")
        core = text_of(cpu / "topology/core_cpus_list") or text_of(cpu / "topology/thread_siblings_list")
        if package and core:
            packages.setdefault(package, set()).add(core)
    return packages


def _processor_model(info: dict[str, list[str]]) -> Fact:
    if names := info.get("model name"):
        return Fact(" + ".join(names), "/proc/cpuinfo")
    part = ", ".join(f"{key} {' '.join(info[key])}" for key in ("CPU implementer", "CPU part") if info.get(key))
    return todo(f"name of the processor{f' ({part})' if part else ''}")


def _processor_clock(root: Path, info: dict[str, list[str]]) -> Fact:
    clocks = [whole(text_of(cpu / "cpufreq/cpuinfo_max_freq")) for cpu in _cpus(root)]  # kHz
    if highest := max(clocks, default=0):
        return Fact(f"{highest / 1e6:.2f} GHz", f"/{CPU_FOLDER}/cpu*/cpufreq/cpuinfo_max_freq")
    if stated := re.search(r"@ ?([\d.]+) ?GHz", " ".join(info.get("model name", ()))):
        return Fact(f"{stated[1]} GHz", "/proc/cpuinfo, in the name")
    return todo("clock of the processor, e.g. 2.60 GHz")


def _caches(root: Path) -> Fact:
    """Caches of the first processor: a cache is counted once, whatever number of CPUs share it."""
    found: set[tuple[str, int, str]] = set()
    first = ""
    for cpu in _cpus(root):
        package = text_of(cpu / "topology/physical_package_id")
        first = first or package
        for cache in entries(cpu / "cache") if package == first else []:
            level, kind = text_of(cache / "level"), text_of(cache / "type")
            size = _kib(text_of(cache / "size"))
            if level and size:
                label = f"L{level}{ {'Data': 'd', 'Instruction': 'i'}.get(kind, '') }"
                found.add((label, size, text_of(cache / "shared_cpu_list") or cpu.name))
    if not found:
        return todo("caches of one processor, e.g. L2 64x 1 MiB, L3 256 MiB")
    counts = Counter((label, size) for label, size, _ in found)
    texts = (f"{label} {count}x {_size_text(size)}" for (label, size), count in sorted(counts.items()))
    return Fact(", ".join(texts), f"/{CPU_FOLDER}/cpu*/cache, one processor")


def _kib(text: str) -> int:
    """'32K' or '8M' in KiB; 0 for anything else."""
    unit = {"K": 1, "M": 1024, "G": 1024**2}.get(text[-1:], 0)
    return whole(text[:-1]) * unit


def _size_text(kib: int) -> str:
    return f"{kib} KiB" if kib % 1024 else f"{kib // 1024} MiB"


def memory_facts(root: Path, host: Any) -> dict[str, Fact]:
    """Capacity and modules: both from the firmware's table where it is readable, else the capacity that Linux uses."""
    modules = [module for entry in entries(root / "sys/firmware/dmi/entries") if (module := _memory_module(entry))]
    if modules:
        capacity = Fact(f"{sum(mib for mib, _ in modules) / 1024:g} GiB", "/sys/firmware/dmi")
        return {
            "host_memory_capacity": capacity,
            "host_memory_configuration": Fact(numbered(text for _, text in modules), "/sys/firmware/dmi"),
        }
    total = getattr(ask(host, "virtual_memory"), "total", 0)
    seen = Fact(f"{total / 2**30:.1f} GiB", "psutil (without what the kernel reserves)")
    return {
        "host_memory_capacity": seen if total else todo("memory of a host, with its unit"),
        "host_memory_configuration": todo("memory modules of a host, e.g. 24x 96 GB DDR5 5600 MT/s"),
    }


def _memory_module(entry: Path) -> tuple[int, str] | None:
    """MiB and description of a memory module (SMBIOS structure of type 17); None for an empty slot or another type."""
    try:
        raw = (entry / "raw").read_bytes() if entry.name.startswith("17-") else b""
    except OSError:
        return None
    length = min(raw[1], len(raw)) if len(raw) > 1 else 0
    raw = raw[:length] + bytes(0x22 - min(length, 0x22))  # fields that an older table lacks are 0, which is "unknown"
    size, kind, top_speed = (struct.unpack_from(form, raw, at)[0] for form, at in (("<H", 12), ("B", 18), ("<H", 21)))
    mib = struct.unpack_from("<I", raw, 28)[0] & 0x7FFFFFFF if size == 0x7FFF else size
    speed = struct.unpack_from("<H", raw, 32)[0] or top_speed
    if size in (0, 0xFFFF) or size & 0x8000 or not mib:  # empty, unknown, or counted in KiB: no main memory of today
        return None
    words = [f"{mib / 1024:g} GiB", MEMORY_KINDS.get(kind, ""), f"{speed} MT/s" if 0 < speed < 0xFFFF else ""]
    return mib, " ".join(filter(None, words))
