"""Accelerators of a machine, out of NVML, and the software that is installed."""

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_mlperf.config.description import MLPERF_FIELDS
from bert_mlperf.config.facts import Fact, alike, ask, entries, string, text_of, todo

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


def accelerator_facts(root: Path, nvml: Any) -> dict[str, Fact]:
    """What NVML knows of the GPUs; "0" and "none" where there is neither NVML nor a PCI device that would want one."""
    fields = [name for name in MLPERF_FIELDS if name.startswith("accelerator_")]
    if count := ask(nvml, "nvmlDeviceGetCount"):
        return _gpu_facts(nvml, count)
    on_bus = [
        text_of(device / "class").startswith(ACCELERATOR_CLASSES) for device in entries(root / "sys/bus/pci/devices")
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
    gpus = [ask(nvml, "nvmlDeviceGetHandleByIndex", number) for number in range(count)]
    names = [string(ask(nvml, "nvmlDeviceGetName", gpu)) for gpu in gpus]
    kinds = [found[0] if (found := re.search(r"(HBM|GDDR)\d\w*", name)) else "" for name in names]
    clocks = [ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, getattr(nvml, "NVML_CLOCK_SM", 1)) for gpu in gpus]
    totals = [getattr(ask(nvml, "nvmlDeviceGetMemoryInfo", gpu), "total", 0) for gpu in gpus]
    return {
        "accelerators_per_node": Fact(str(count), "NVML"),
        "accelerator_model_name": alike(names, "name of the accelerator"),
        "accelerator_host_interconnect": alike([_pcie(nvml, gpu) for gpu in gpus], "link between accelerator and host"),
        "accelerator_frequency": alike([f"{clock} MHz" if clock else "" for clock in clocks], "clock, e.g. 1980 MHz"),
        "accelerator_on-chip_memories": todo("memories on the chip of the accelerator, e.g. L2 50 MiB"),
        "accelerator_memory_configuration": alike(kinds, "kind of the accelerator's memory, e.g. HBM3"),
        "accelerator_memory_capacity": alike(
            [f"{total / 2**30:.1f} GiB" if total else "" for total in totals], "memory of one accelerator, e.g. 80 GiB"
        ),
        **_link_facts(nvml, gpus),
    }


def _pcie(nvml: Any, gpu: Any) -> str:
    """Generation and width that GPU and slot both can, e.g. 'PCIe Gen5 x16'; empty if NVML does not tell."""
    generation = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu)
    width = ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu)
    return f"PCIe Gen{generation} x{width}" if generation and width else ""


def _link_facts(nvml: Any, gpus: list[Any]) -> dict[str, Fact]:
    """Links between the accelerators of a host, and whether they all go through NVSwitch."""
    fields = ("accelerator_interconnect", "accelerator_interconnect_topology")
    if len(gpus) == 1:
        return dict.fromkeys(fields, Fact("none", "one accelerator"))
    links = [_active_links(nvml, gpu) for gpu in gpus]
    switch = getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", 2)
    switched = all(
        numbers and ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, numbers[0]) == switch
        for gpu, numbers in zip(gpus, links, strict=True)
    )
    texts = [
        "" if numbers is None else f"NVLink, {len(numbers)} links per accelerator" if numbers else "PCIe (no NVLink)"
        for numbers in links
    ]
    topology = Fact("all through NVSwitch", "NVML") if switched else todo("topology of the links between accelerators")
    return dict(zip(fields, (alike(texts, "link between the accelerators of a host"), topology), strict=True))


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
    torch, kernel = _package("torch"), text_of(root / "proc/sys/kernel/osrelease")
    stack = {
        "python_version": platform.python_version(),
        **{name: _package(package) for name, package in PACKAGES.items()},
        "nvidia_kernel_driver": string(ask(nvml, "nvmlSystemGetDriverVersion")),
        "kernel_version": f"Linux {kernel}" if kernel else "",
    }
    stack["cuda_version"] = stack["cuda_version"] or _cuda_of_torch()
    release = text_of(root / "etc/os-release") or text_of(root / "usr/lib/os-release")
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
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text_of(file), re.MULTILINE)
    return found[1] if found else ""
