"""What a machine says of itself for an MLPerf system description: from /proc, /sys, psutil, NVML and packages.

Every source may be missing, unreadable or odd: then the fact is a text that a person must replace, never a guess.
"""

import os
import platform
import re
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_mlperf.config.description import MLPERF_FIELDS

TODO = "TODO: "
ASK = "you must fill"
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


@dataclass(frozen=True)
class Fact:
    """A value of a field and where it is from."""

    value: str | dict[str, str]
    source: str


def todo(what: str) -> Fact:
    """The marked text for what a machine cannot know."""
    return Fact(f"{TODO}{what}", ASK)


def machine_facts(*, root: Path = Path("/"), host: Any = None, nvml: Any = None) -> dict[str, Fact]:
    """The MLPerf fields that a machine can know, with TODO texts where this one does not.

    `root` holds /proc, /sys and /etc, `host` is the module psutil and `nvml` the module pynvml, each None where it is
    not installed. Raises nothing for what is missing or unreadable.
    """
    _ask(nvml, "nvmlInit")  # where it fails, so does every later question, and the facts say so
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
        _ask(nvml, "nvmlShutdown")


def processor_facts(root: Path, host: Any) -> dict[str, Fact]:
    """Model, counts, clock and caches; a count is that of the processors which are switched on."""
    info = _cpuinfo(root)
    packages = _packages(root)
    sockets = len(packages) or len(info.get("physical id", ()))
    cores = {str(len(cores)) for cores in packages.values()} or set(info.get("cpu cores", ()))
    source = CPU_FOLDER if packages else "proc/cpuinfo"
    offline = _text(root / CPU_FOLDER / "offline")
    counted = f"/{source}{f' (CPUs {offline} are offline)' if offline else ''}"
    logical = _ask(host, "cpu_count")
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
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        text, seen = " ".join(value.split()), values.setdefault(key.strip(), [])
        if text and text not in seen:
            seen.append(text)
    return values


def _cpus(root: Path) -> list[Path]:
    return [folder for folder in _entries(root / CPU_FOLDER) if re.fullmatch(r"cpu\d+", folder.name)]


def _packages(root: Path) -> dict[str, set[str]]:
    """For each processor its cores, a core named by the list of its threads."""
    packages: dict[str, set[str]] = {}
    for cpu in _cpus(root):
        package = _text(cpu / "topology/physical_package_id")
        core = _text(cpu / "topology/core_cpus_list") or _text(cpu / "topology/thread_siblings_list")
        if package and core:
            packages.setdefault(package, set()).add(core)
    return packages


def _processor_model(info: dict[str, list[str]]) -> Fact:
    if names := info.get("model name"):
        return Fact(" + ".join(names), "/proc/cpuinfo")
    part = ", ".join(f"{key} {' '.join(info[key])}" for key in ("CPU implementer", "CPU part") if info.get(key))
    return todo(f"name of the processor{f' ({part})' if part else ''}")


def _processor_clock(root: Path, info: dict[str, list[str]]) -> Fact:
    clocks = [_whole(_text(cpu / "cpufreq/cpuinfo_max_freq")) for cpu in _cpus(root)]  # kHz
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
        package = _text(cpu / "topology/physical_package_id")
        first = first or package
        for cache in _entries(cpu / "cache") if package == first else []:
            level, kind = _text(cache / "level"), _text(cache / "type")
            size = _kib(_text(cache / "size"))
            if level and size:
                label = f"L{level}{ {'Data': 'd', 'Instruction': 'i'}.get(kind, '') }"
                found.add((label, size, _text(cache / "shared_cpu_list") or cpu.name))
    if not found:
        return todo("caches of one processor, e.g. L2 64x 1 MiB, L3 256 MiB")
    counts = Counter((label, size) for label, size, _ in found)
    texts = (f"{label} {count}x {_size_text(size)}" for (label, size), count in sorted(counts.items()))
    return Fact(", ".join(texts), f"/{CPU_FOLDER}/cpu*/cache, one processor")


def _kib(text: str) -> int:
    """'32K' or '8M' in KiB; 0 for anything else."""
    unit = {"K": 1, "M": 1024, "G": 1024**2}.get(text[-1:], 0)
    return _whole(text[:-1]) * unit


def _size_text(kib: int) -> str:
    return f"{kib} KiB" if kib % 1024 else f"{kib // 1024} MiB"


def memory_facts(root: Path, host: Any) -> dict[str, Fact]:
    """Capacity and modules: both from the firmware's table where it is readable, else the capacity that Linux uses."""
    modules = [module for entry in _entries(root / "sys/firmware/dmi/entries") if (module := _memory_module(entry))]
    if modules:
        capacity = Fact(f"{sum(mib for mib, _ in modules) / 1024:g} GiB", "/sys/firmware/dmi")
        return {
            "host_memory_capacity": capacity,
            "host_memory_configuration": Fact(_numbered(text for _, text in modules), "/sys/firmware/dmi"),
        }
    total = getattr(_ask(host, "virtual_memory"), "total", 0)
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


def storage_facts(root: Path) -> dict[str, Fact]:
    """The block devices of this host: no partitions, no images, nothing removable."""
    disks: list[tuple[int, str]] = []
    for folder in _entries(root / "sys/block"):
        size = _whole(_text(folder / "size")) * 512  # bytes
        if size > 0 and not re.fullmatch(NOT_STORAGE, folder.name) and _text(folder / "removable") != "1":
            disks.append((size, _disk_kind(folder)))
    if not disks:
        return {
            "host_storage_type": todo("kind of storage of a host, e.g. NVMe SSD"),
            "host_storage_capacity": todo("storage of a host, e.g. 2x 1.92 TB NVMe SSD"),
        }
    kinds = " + ".join(dict.fromkeys(kind for _, kind in disks))
    sizes = _numbered(f"{_disk_size(size)} {kind}" for size, kind in disks)
    return {
        "host_storage_type": Fact(kinds, "/sys/block (local disks only)"),
        "host_storage_capacity": Fact(sizes, "/sys/block (local disks only)"),
    }


def _disk_kind(folder: Path) -> str:
    if folder.name.startswith("nvme"):
        return "NVMe SSD"
    if re.match(r"vd|xvd", folder.name):
        return "virtual disk"
    return {"0": "SSD", "1": "HDD"}.get(_text(folder / "queue/rotational"), "disk")


def _disk_size(size: int) -> str:
    """Bytes in the decimal units of disks, to three digits."""
    return f"{size / 1e12:.3g} TB" if size >= 999.5e9 else f"{size / 1e9:.3g} GB"


def network_fact(root: Path, host: Any) -> Fact:
    """InfiniBand ports with their rate, then physical network cards with their speed."""
    cards = _network_cards(root, host)
    ports = [text for folder in _entries(root / "sys/class/infiniband") for text in _ports(root, folder, cards)]
    texts = ports + list(cards.values())
    if not texts:
        return todo("network between the hosts, e.g. 8x ConnectX-7 InfiniBand 400 Gb/s")
    return Fact(_numbered(texts, joiner=", "), "/sys/class/net, /sys/class/infiniband")


def _network_cards(root: Path, host: Any) -> dict[Path, str]:
    """Text of each network port by its folder, IP over InfiniBand left out."""
    stats = _ask(host, "net_if_stats") or {}
    cards = {}
    for folder in _entries(root / "sys/class/net"):
        if not (folder / "device").exists() or _text(folder / "type") == INFINIBAND:
            continue
        speed = max(_whole(_text(folder / "speed")), getattr(stats.get(folder.name), "speed", 0))  # Mb/s, -1 unknown
        cards[folder] = (
            f"{_device_name(root, folder / 'device')} Ethernet{f' {speed / 1000:g} Gb/s' if speed > 0 else ''}"
        )
    return cards


def _ports(root: Path, folder: Path, cards: Iterable[Path]) -> list[str]:
    """Text of each port of an InfiniBand device; one that is a network card too (RoCE) is not told twice."""
    device = folder / "device"
    roce = any(_resolved(card / "device") == _resolved(device) for card in cards)
    name = _device_name(root, device, fallback=_text(folder / "hca_type"))
    texts = []
    for port in _entries(folder / "ports"):
        layer = _text(port / "link_layer") or "InfiniBand"
        if layer == "InfiniBand" or not roce:
            up = "LinkUp" in _text(port / "phys_state")  # the rate of a port that is down is not its own
            texts.append(" ".join(filter(None, [name, layer, _text(port / "rate") if up else "(link down)"])))
    return texts


def _device_name(root: Path, device: Path, *, fallback: str = "") -> str:
    """Name of a PCI device from the table pci.ids where the system has one, else the fallback or its driver."""
    vendor, model = (_text(device / name).removeprefix("0x") for name in ("vendor", "device"))
    for table in ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids") if vendor and model else ():
        line = rf"^{re.escape(vendor)} +(.+)\n(?:[\t#].*\n)*?\t{re.escape(model)} +(.+)$"
        if found := re.search(line, _text(root / table), re.MULTILINE):
            return f"{found[1]} {found[2]}"
    driver = _resolved(device / "driver").name if (device / "driver").exists() else ""
    return fallback or (f"{driver} card" if driver else "unnamed card")


def accelerator_facts(root: Path, nvml: Any) -> dict[str, Fact]:
    """What NVML knows of the GPUs; "0" and "none" where there is neither NVML nor a PCI device that would want one."""
    fields = [name for name in MLPERF_FIELDS if name.startswith("accelerator_")]
    if count := _ask(nvml, "nvmlDeviceGetCount"):
        return _gpu_facts(nvml, count)
    on_bus = [
        _text(device / "class").startswith(ACCELERATOR_CLASSES) for device in _entries(root / "sys/bus/pci/devices")
    ]
    if any(on_bus):
        seen = f"of the accelerators: PCI shows {sum(on_bus)}, NVML none; is the driver loaded?"
        what = {name: name.removeprefix("accelerator_").replace("_", " ") for name in fields}
        return {"accelerators_per_node": todo(f"number {seen}")} | {
            name: todo(f"{what[name]} {seen}") for name in fields
        }
    return dict.fromkeys(fields, Fact("none", "NVML finds none")) | {
        "accelerators_per_node": Fact("0", "NVML finds none")
    }


def _gpu_facts(nvml: Any, count: int) -> dict[str, Fact]:
    gpus = [_ask(nvml, "nvmlDeviceGetHandleByIndex", number) for number in range(count)]
    names = [_string(_ask(nvml, "nvmlDeviceGetName", gpu)) for gpu in gpus]
    kinds = [found[0] if (found := re.search(r"(HBM|GDDR)\d\w*", name)) else "" for name in names]
    clocks = [_ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, getattr(nvml, "NVML_CLOCK_SM", 1)) for gpu in gpus]
    totals = [getattr(_ask(nvml, "nvmlDeviceGetMemoryInfo", gpu), "total", 0) for gpu in gpus]
    return {
        "accelerators_per_node": Fact(str(count), "NVML"),
        "accelerator_model_name": _alike(names, "name of the accelerator"),
        "accelerator_host_interconnect": _alike(
            [_pcie(nvml, gpu) for gpu in gpus], "link between accelerator and host"
        ),
        "accelerator_frequency": _alike([f"{clock} MHz" if clock else "" for clock in clocks], "clock, e.g. 1980 MHz"),
        "accelerator_on-chip_memories": todo("memories on the chip of the accelerator, e.g. L2 50 MiB"),
        "accelerator_memory_configuration": _alike(kinds, "kind of the accelerator's memory, e.g. HBM3"),
        "accelerator_memory_capacity": _alike(
            [f"{total / 2**30:.1f} GiB" if total else "" for total in totals], "memory of one accelerator, e.g. 80 GiB"
        ),
        **_link_facts(nvml, gpus),
    }


def _pcie(nvml: Any, gpu: Any) -> str:
    """Generation and width that GPU and slot both can, e.g. 'PCIe Gen5 x16'; empty if NVML does not tell."""
    generation = _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu)
    width = _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu)
    return f"PCIe Gen{generation} x{width}" if generation and width else ""


def _link_facts(nvml: Any, gpus: list[Any]) -> dict[str, Fact]:
    """Links between the accelerators of a host, and whether they all go through NVSwitch."""
    fields = ("accelerator_interconnect", "accelerator_interconnect_topology")
    if len(gpus) == 1:
        return dict.fromkeys(fields, Fact("none", "one accelerator"))
    links = [_active_links(nvml, gpu) for gpu in gpus]
    switch = getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2)
    switched = all(
        numbers and _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, numbers[0]) == switch
        for gpu, numbers in zip(gpus, links, strict=True)
    )
    texts = [
        "" if numbers is None else f"NVLink, {len(numbers)} links per accelerator" if numbers else "PCIe (no NVLink)"
        for numbers in links
    ]
    topology = Fact("all through NVSwitch", "NVML") if switched else todo("topology of the links between accelerators")
    return dict(zip(fields, (_alike(texts, "link between the accelerators of a host"), topology), strict=True))


def _active_links(nvml: Any, gpu: Any) -> list[int] | None:
    """Numbers of the NVLinks of a GPU that are up; None if NVML does not tell."""
    active = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                active.append(link)
        except Exception as error:
            if type(error).__name__ not in NO_NVLINK:
                return None
    return active


def software_facts(root: Path, nvml: Any) -> dict[str, Fact]:
    """PyTorch, the packages below and beside it, Linux. Only what is installed is named."""
    torch, kernel = _package("torch"), _text(root / "proc/sys/kernel/osrelease")
    stack = {
        "python_version": platform.python_version(),
        **{name: _package(package) for name, package in PACKAGES.items()},
        "nvidia_kernel_driver": _string(_ask(nvml, "nvmlSystemGetDriverVersion")),
        "kernel_version": f"Linux {kernel}" if kernel else "",
    }
    stack["cuda_version"] = stack["cuda_version"] or _cuda_of_torch()
    release = _text(root / "etc/os-release") or _text(root / "usr/lib/os-release")
    pretty = re.search(r"^PRETTY_NAME=[\"']?(.+?)[\"']?$", release, re.MULTILINE)
    return {
        "framework": Fact(f"PyTorch {torch}", "installed package") if torch else todo("training framework and version"),
        "other_software_stack": Fact({name: text for name, text in stack.items() if text}, "installed packages, NVML"),
        "operating_system": Fact(pretty[1], "/etc/os-release") if pretty else todo("operating system and its version"),
    }


def _package(name: str) -> str:
    """Version of an installed package, which may have the CUDA version behind its name; empty if there is none."""
    for end in PACKAGE_ENDS:
        try:
            return metadata.version(name + end) or ""  # None where the package's record is broken
        except metadata.PackageNotFoundError:
            continue
    return ""


def _cuda_of_torch() -> str:
    """CUDA version that torch was built for, read from its file and not imported, which takes seconds."""
    try:
        file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", _text(file), re.MULTILINE)
    return found[1] if found else ""


def _ask(module: Any, function: str, *arguments: Any) -> Any:
    """What a function of psutil or NVML answers; None if module or function is missing or fails, however it does."""
    try:
        return getattr(module, function)(*arguments)
    except Exception:
        return None


def _alike(texts: list[str], what: str) -> Fact:
    """One text for all accelerators; different ones are counted, and an unknown one makes it a question."""
    if not all(texts):
        return todo(what)
    return Fact(texts[0] if len(set(texts)) == 1 else _numbered(texts), "NVML")


def _numbered(texts: Iterable[str], *, joiner: str = " + ") -> str:
    """'2x a + 1x b' for a, b, a."""
    return joiner.join(f"{number}x {text}" for text, number in Counter(texts).items())


def _string(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _text(path: Path) -> str:
    """Text of a file without the white space around it; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int:
    """A whole number, 0 for a text that is none."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else 0


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing if it is missing or cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))
