import argparse
import errno
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_mlperf import cli_system
from bert_mlperf.config import inventory_accelerators
from bert_mlperf.config.description import MLPERF_FIELDS, SystemDescription
from bert_mlperf.config.facts import Fact
from bert_mlperf.config.inventory import machine_facts
from bert_mlperf.errors import UserError
from tests.config import files

PCI_IDS = """# a comment
15b3  Mellanox Technologies
\t0001  Another
\t1021  MT2910 Family [ConnectX-7]
\t\t15b3 0001  A board
8086  Intel Corporation
\t1021  Of another vendor
"""


def put(root: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def cpu(number: int, *, package: int, core: str, l3: str) -> dict[str, str]:
    """Files of one CPU; the two threads of a core share L1 and L2."""
    folder = f"sys/devices/system/cpu/cpu{number}"
    content = {
        f"{folder}/topology/physical_package_id": f"{package}\n",
        f"{folder}/topology/core_cpus_list": f"{core}\n",
        f"{folder}/cpufreq/cpuinfo_max_freq": f"{3_700_000 + number}\n",
    }
    kinds = (("1", "Data", "48K", core), ("1", "Instruction", "32K", core), ("2", "Unified", "2048K", core))
    for index, (level, kind, size, shared) in enumerate((*kinds, ("3", "Unified", "107520K", l3))):
        cache = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
        content |= {f"{folder}/cache/index{index}/{name}": f"{text}\n" for name, text in cache.items()}
    return content


def disk(name: str, *, sectors: int, rotational: str = "0", removable: str = "0") -> dict[str, str]:
    folder = f"sys/block/{name}"
    return {
        f"{folder}/size": f"{sectors}\n",
        f"{folder}/queue/rotational": rotational,
        f"{folder}/removable": removable,
    }


def card(name: str, *, speed: str, kind: str = "1", device: str = "0x1021") -> dict[str, str]:
    folder = f"sys/class/net/{name}"
    return {
        f"{folder}/speed": speed,
        f"{folder}/type": kind,
        f"{folder}/device/vendor": "0x15b3\n",
        f"{folder}/device/device": device,
    }


def port(name: str, *, layer: str, state: str = "5: LinkUp") -> dict[str, str]:
    folder = f"sys/class/infiniband/{name}"
    return {
        f"{folder}/hca_type": "MT4129\n",
        f"{folder}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        f"{folder}/ports/1/link_layer": layer,
        f"{folder}/ports/1/phys_state": state,
    }


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two processors of two cores with two threads each, two kinds of disks and two networks."""
    root = tmp_path / "machine"
    for number in range(8):
        first = number % 4
        put(
            root, cpu(number, package=first // 2, core=f"{first},{first + 4}", l3="0-1,4-5" if first < 2 else "2-3,6-7")
        )
    put(root, disk("nvme0n1", sectors=3_750_748_848) | disk("nvme1n1", sectors=3_750_748_848))
    put(root, disk("sda", sectors=937_703_088, rotational="1") | disk("loop0", sectors=99) | disk("dm-0", sectors=99))
    put(root, disk("sdb", sectors=60_000_000, removable="1") | disk("nvme0c0n1", sectors=99) | disk("sdc", sectors=0))
    put(
        root,
        card("eth0", speed="25000\n") | card("ib0", speed="400000", kind="32") | port("mlx5_0", layer="InfiniBand"),
    )
    put(
        root, {"sys/class/net/lo/speed": "", "sys/class/net/bond0/speed": "100000", "usr/share/hwdata/pci.ids": PCI_IDS}
    )
    put(root, {"proc/cpuinfo": "processor : 0\nmodel name\t: Intel(R)  Xeon(R) 8480C\n" * 8})
    put(
        root, {"proc/sys/kernel/osrelease": "6.1.0-generic\n", "etc/os-release": 'ID=x\nPRETTY_NAME="An OS 12.1 LTS"\n'}
    )
    return root


def host(*, speeds: dict[str, int] | None = None) -> SimpleNamespace:
    """A psutil."""
    return SimpleNamespace(
        cpu_count=lambda: 8,
        virtual_memory=lambda: SimpleNamespace(total=500 * 2**30),
        net_if_stats=lambda: {name: SimpleNamespace(speed=speed) for name, speed in (speeds or {}).items()},
    )


class NVMLError_NotSupported(Exception):  # noqa: N801, N818 - the name in pynvml
    pass


class FakeNvml:
    """A pynvml with some GPUs; functions in `broken` fail, and every one does before nvmlInit."""

    NVML_CLOCK_SM = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    def __init__(self, *names: str, links: int = 18, broken: tuple[str, ...] = ()) -> None:
        self.names, self.links, self.broken, self.users = names, links, broken, 0

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name.startswith("nvml") and (name in get("broken") or (name != "nvmlInit" and get("users") == 0)):
            raise RuntimeError(name)
        return get(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str | bytes:  # noqa: N802
        return self.names[gpu].encode() if gpu else self.names[gpu]  # older ones answer with bytes

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, clock: int) -> int:  # noqa: N802
        return {1: 1980}[clock]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80 * 2**30)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:  # noqa: N802
        return 16

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:  # noqa: N802
        if link >= self.links:
            raise NVMLError_NotSupported
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:  # noqa: N802
        return 2

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"


def values(root: Path, **modules: Any) -> dict[str, Any]:
    return {name: fact.value for name, fact in machine_facts(root=root, **modules).items()}


def test_processors_are_counted_from_their_topology(machine: Path) -> None:
    found = values(machine, host=host())
    assert found["host_processors_per_node"] == "2"
    assert found["host_processor_core_count"] == "2"
    assert found["host_processor_vcpu_count"] == "8"
    assert found["host_processor_model_name"] == "Intel(R) Xeon(R) 8480C"
    assert found["host_processor_frequency"] == "3.70 GHz"
    assert found["host_processor_caches"] == "L1d 2x 48 KiB, L1i 2x 32 KiB, L2 2x 2 MiB, L3 1x 105 MiB"
    assert found["host_processor_interconnect"].startswith("TODO: ")


def test_processors_without_topology_are_counted_from_cpuinfo(tmp_path: Path) -> None:
    lines = "model name : CPU @ 2.60GHz\nphysical id : {}\ncpu cores : 24\n\n"
    put(tmp_path, {"proc/cpuinfo": lines.format(0) * 2 + lines.format(1) * 2})
    found = values(tmp_path)
    assert found["host_processors_per_node"] == "2"
    assert found["host_processor_core_count"] == "24"
    assert found["host_processor_frequency"] == "2.60 GHz"


def test_unequal_processors_are_asked_for_and_offline_cpus_told(machine: Path) -> None:
    put(
        machine, {"sys/devices/system/cpu/cpu7/topology/core_cpus_list": "7", "sys/devices/system/cpu/offline": "8-9\n"}
    )
    facts = machine_facts(root=machine)
    assert facts["host_processor_core_count"] == Fact("TODO: cores of one processor", "you must fill")
    assert "CPUs 8-9 are offline" in facts["host_processors_per_node"].source


def test_an_arm_processor_has_numbers_and_no_name(tmp_path: Path) -> None:
    put(tmp_path, {"proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\n"})
    found = values(tmp_path)
    expected = "TODO: name of the processor (CPU implementer 0x41, CPU part 0xd40)"
    assert found["host_processor_model_name"] == expected


def test_disks_are_told_by_kind_and_size_without_what_is_none(machine: Path) -> None:
    found = values(machine)
    assert found["host_storage_type"] == "NVMe SSD + HDD"
    assert found["host_storage_capacity"] == "2x 1.92 TB NVMe SSD + 1x 480 GB HDD"


def test_a_virtual_disk_is_no_hdd_although_it_says_so(tmp_path: Path) -> None:
    put(tmp_path, disk("vda", sectors=2_000_000, rotational="1"))
    assert values(tmp_path)["host_storage_capacity"] == "1x 1.02 GB virtual disk"


def test_networks_are_named_and_infiniband_is_told_once(machine: Path) -> None:
    name = "Mellanox Technologies MT2910 Family [ConnectX-7]"
    expected = f"1x MT4129 InfiniBand 400 Gb/sec (4X NDR), 1x {name} Ethernet 25 Gb/s"
    assert values(machine)["host_networking"] == expected


def test_an_ethernet_port_with_rdma_is_told_once(machine: Path) -> None:
    put(machine, port("mlx5_1", layer="Ethernet"))
    assert "MT4129 Ethernet" in values(machine)["host_networking"]
    (machine / "sys/class/infiniband/mlx5_1/device").symlink_to(machine / "sys/class/net/eth0/device")
    assert "MT4129 Ethernet" not in values(machine)["host_networking"]


def test_a_link_that_is_down_has_no_rate(tmp_path: Path) -> None:
    put(tmp_path, port("mlx5_0", layer="InfiniBand", state="6: LinkErrorRecovery") | card("eth0", speed="-1"))
    assert values(tmp_path)["host_networking"] == "1x MT4129 InfiniBand (link down), 1x unnamed card Ethernet"


def test_a_driver_names_a_card_and_psutil_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, card("eth0", speed="1") | {"sys/bus/drivers/some_net/bind": ""})
    (tmp_path / "sys/class/net/eth0/device/driver").symlink_to(tmp_path / "sys/bus/drivers/some_net")
    read = Path.read_text

    def refuse(path: Path, **options: Any) -> str:
        if path.name == "speed":
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert values(tmp_path)["host_networking"] == "1x some_net card Ethernet"
    assert values(tmp_path, host=host(speeds={"eth0": 2500}))["host_networking"] == "1x some_net card Ethernet 2.5 Gb/s"


def module(*, size: int, extended: int = 0, kind: int = 0x22, speed: int = 4800, length: int = 0x22) -> bytes:
    raw = bytearray(0x28)
    raw[:2] = 17, length
    for form, at, value in (
        ("<H", 12, size),
        ("B", 18, kind),
        ("<H", 21, 5600),
        ("<I", 28, extended),
        ("<H", 32, speed),
    ):
        struct.pack_into(form, raw, at, value)
    return bytes(raw) + b"some text\0"


def modules(root: Path, *raws: bytes) -> None:
    for number, raw in enumerate(raws):
        put(root, {f"sys/firmware/dmi/entries/17-{number}/raw": ""})
        (root / f"sys/firmware/dmi/entries/17-{number}/raw").write_bytes(raw)


def test_memory_is_that_of_the_modules_where_they_are_readable(machine: Path) -> None:
    assert values(machine, host=host())["host_memory_capacity"] == "500.0 GiB"
    assert values(machine, host=host())["host_memory_configuration"].startswith("TODO: ")
    modules(machine, module(size=0x7FFF, extended=98_304), module(size=0x7FFF, extended=98_304), module(size=0), b"")
    found = values(machine, host=host())
    assert found["host_memory_capacity"] == "192 GiB"
    assert found["host_memory_configuration"] == "2x 96 GiB DDR5 4800 MT/s"


def test_a_short_memory_table_lacks_what_it_does_not_say(tmp_path: Path) -> None:
    modules(tmp_path, module(size=16_384, kind=0x07, length=0x15), module(size=0x8400), module(size=0xFFFF))
    assert values(tmp_path)["host_memory_configuration"] == "1x 16 GiB"


def test_gpus_are_told_by_nvml() -> None:
    nvml = FakeNvml(*["NVIDIA H100 80GB HBM3"] * 8)
    found = values(Path("/nonexistent"), nvml=nvml)
    assert found["accelerators_per_node"] == "8"
    assert found["accelerator_model_name"] == "NVIDIA H100 80GB HBM3"
    assert found["accelerator_memory_configuration"] == "HBM3"
    assert found["accelerator_memory_capacity"] == "80.0 GiB"
    assert found["accelerator_frequency"] == "1980 MHz"
    assert found["accelerator_host_interconnect"] == "PCIe Gen5 x16"
    assert found["accelerator_interconnect"] == "NVLink, 18 links per accelerator"
    assert found["accelerator_interconnect_topology"] == "all through NVSwitch"
    assert found["accelerator_on-chip_memories"].startswith("TODO: ")
    assert found["other_software_stack"]["nvidia_kernel_driver"] == "570.1"
    assert nvml.users == 0


def test_gpus_of_two_kinds_without_nvlink() -> None:
    found = values(Path("/nonexistent"), nvml=FakeNvml("A", "B", "A", links=0))
    assert found["accelerator_model_name"] == "2x A + 1x B"
    assert found["accelerator_interconnect"] == "PCIe (no NVLink)"
    assert found["accelerator_interconnect_topology"].startswith("TODO: ")


def test_one_gpu_without_a_name_makes_the_names_a_question() -> None:
    found = values(Path("/nonexistent"), nvml=FakeNvml("A HBM3", ""))
    assert found["accelerators_per_node"] == "2"
    assert found["accelerator_model_name"] == "TODO: name of the accelerator"
    assert found["accelerator_memory_configuration"].startswith("TODO: ")


def test_one_gpu_has_no_link_to_another() -> None:
    assert values(Path("/nonexistent"), nvml=FakeNvml("A"))["accelerator_interconnect"] == "none"


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "accelerator_model_name"),
        ("nvmlDeviceGetMaxClockInfo", "accelerator_frequency"),
        ("nvmlDeviceGetMemoryInfo", "accelerator_memory_capacity"),
        ("nvmlDeviceGetMaxPcieLinkWidth", "accelerator_host_interconnect"),
        ("nvmlDeviceGetNvLinkState", "accelerator_interconnect"),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", "accelerator_interconnect_topology"),
    ],
)
def test_a_property_that_nvml_refuses_is_asked_for(function: str, field: str) -> None:
    whole = values(Path("/nonexistent"), nvml=FakeNvml("A HBM3", "A HBM3"))
    found = values(Path("/nonexistent"), nvml=FakeNvml("A HBM3", "A HBM3", broken=(function,)))
    changed = {name for name in whole if whole[name] != found[name]}
    assert field in changed
    assert all(found[name].startswith("TODO: ") for name in changed)


@pytest.mark.parametrize("nvml", [None, FakeNvml("A", broken=("nvmlInit",)), FakeNvml()])
def test_without_nvml_there_is_no_accelerator(tmp_path: Path, nvml: Any) -> None:
    found = values(tmp_path, nvml=nvml)
    assert found["accelerators_per_node"] == "0"
    assert {value for name, value in found.items() if name.startswith("accelerator_")} == {"none"}


def test_accelerators_on_the_bus_without_a_driver_are_no_none(tmp_path: Path) -> None:
    put(
        tmp_path, {f"sys/bus/pci/devices/0000:0{n}:00.0/class": text for n, text in enumerate(("0x030200", "0x020000"))}
    )
    found = values(tmp_path)
    assert found["accelerators_per_node"].startswith("TODO: number of the accelerators: PCI shows 1, NVML none")
    assert found["accelerator_model_name"].startswith("TODO: ")


def test_software_is_what_is_installed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.8.0", "nvidia-nccl-cu12": "2.27.3", "nvidia-cudnn-cu13": "9.1", "numpy": "2.2"}

    def version(name: str) -> str:
        if name not in installed:
            raise inventory_accelerators.metadata.PackageNotFoundError(name)
        return installed[name]

    file = machine / "torch_version.py"
    file.write_text("from typing import Optional\n__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(inventory_accelerators.metadata, "version", version)
    monkeypatch.setattr(
        inventory_accelerators.metadata, "distribution", lambda name: SimpleNamespace(locate_file=lambda path: file)
    )
    found = values(machine)
    stack = found["other_software_stack"]
    assert found["framework"] == "PyTorch 2.8.0"
    assert found["operating_system"] == "An OS 12.1 LTS"
    assert stack.pop("python_version").startswith("3.")
    assert stack == {
        "cuda_version": "12.8",
        "cudnn_version": "9.1",
        "nccl_version": "2.27.3",
        "numpy_version": "2.2",
        "kernel_version": "Linux 6.1.0-generic",
    }
    file.write_text("cuda: Optional[str] = None\n")
    assert "cuda_version" not in values(machine)["other_software_stack"]


def test_a_machine_that_says_nothing_is_asked_everything(tmp_path: Path) -> None:
    broken = SimpleNamespace(cpu_count=lambda: 1 / 0, virtual_memory=lambda: None, net_if_stats=lambda: None)
    found = values(tmp_path, host=broken)
    known = {name for name in found if name.startswith("accelerator")} | {"framework", "other_software_stack"}
    assert {name for name, value in found.items() if not str(value).startswith("TODO: ")} == known
    assert len(found) > len(known)


def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory_accelerators, "_package", lambda name: "")


@pytest.mark.parametrize("odd", [b"", b"\xff\xfe\0", b"-1\n", b"9" * 40, None], ids=str)
def test_no_odd_file_stops_it(machine: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes | None) -> None:
    no_packages(monkeypatch)
    modules(machine, module(size=1024))
    expected = values(machine, host=host()).keys()
    for file in [path for path in machine.rglob("*") if path.is_file() and not re.search("/cpu[1-7]/", str(path))]:
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(odd) if odd is not None else file.mkdir()  # a folder cannot be read as a file
        found = values(machine, host=host())
        assert found.keys() == expected
        assert all(value and isinstance(value, str | dict) for value in found.values()), file
        file.unlink() if odd is not None else file.rmdir()
        file.write_bytes(content)


@pytest.fixture
def run(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command `system`, which sees the machine above."""
    no_packages(monkeypatch)
    monkeypatch.setattr(cli_system, "machine_facts", lambda **modules: machine_facts(root=machine, host=host()))
    parser = argparse.ArgumentParser()
    cli_system.add_system(parser.add_subparsers())
    return lambda *words: cli_system.run_system(parser.parse_args(["system", *map(str, words)]))


def test_init_prints_json_and_the_table_apart(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init", "--nodes", 4, "--submitter", "Example") == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert tuple(record) == MLPERF_FIELDS
    assert record["number_of_nodes"] == "4"
    assert record["cooling"] == "TODO: cooling of the system, e.g. air"
    rows = {line.split()[0]: line for line in err.splitlines() if line.strip()}
    assert rows["submitter"].split()[1:] == ["Example", "--submitter"]
    assert rows["cooling"].rstrip().endswith("you must fill")
    assert "There is no run section" in err
    questions = sum(str(value).startswith("TODO: ") for value in record.values())
    assert f"{questions} fields say TODO" in err


def test_init_writes_what_loads_once_the_questions_are_answered(run: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    options = ("--nodes", 1, "--submitter", "E", "--division", "closed", "--status", "Preview", "--template")
    template = files.write(
        tmp_path,
        files.small() | {"cooling": "air", "host_processor_model_name": "x", "site": "here", "hw_notes": "old"},
    )
    assert run("init", "--out", out, *options, template) == 0
    record = json.loads(out.read_text())
    assert list(record) == [*MLPERF_FIELDS, "site", "run"]
    assert record["run"] == files.small()["run"]
    assert record["cooling"] == "air"
    assert record["host_processor_model_name"] == "Intel(R) Xeon(R) 8480C"
    assert record["system_name"] == "mine"
    assert record["status"] == "Preview"
    assert record["site"] == "here"
    assert record["hw_notes"] == "old"
    SystemDescription.model_validate(record)


def test_init_overwrites_nothing(run: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    out.write_text("precious")
    with pytest.raises(UserError, match="exists and is not overwritten"):
        run("init", "--out", out)
    assert out.read_text() == "precious"
    with pytest.raises(UserError, match="exists and is not overwritten"):
        cli_system.write_new(out, "{}")
    dangling = tmp_path / "link.json"
    dangling.symlink_to(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match="exists and is not overwritten"):
        run("init", "--out", dangling)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--nodes", "0"), "--nodes is 0, expected"),
        (("--name", " "), "--name is empty"),
        (("--out", "a name.json"), "without a space"),
        (("--out", "name.txt"), "expected <name>.json"),
        (("--out", "no/such/folder/name.json"), "the folder no/such/folder does not exist"),
        (("--template", "no-such.json"), "no-such.json does not exist"),
    ],
)
def test_init_refuses_in_a_sentence(run: Callable[..., int], words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run("init", *words)


def test_init_refuses_a_template_with_a_number(run: Callable[..., int], tmp_path: Path) -> None:
    template = files.write(tmp_path, files.small() | {"cooling": 5})
    with pytest.raises(UserError, match=r"cooling is 5 \(a whole number\), expected a string"):
        run("init", "--template", template)


def test_torch_and_nvml_are_not_imported_before_they_are_asked() -> None:
    code = "import sys, bert_mlperf.cli_system; sys.exit(bool({'torch', 'pynvml', 'psutil'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
