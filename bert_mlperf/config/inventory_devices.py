"""Disks and network cards of a machine, out of /sys and psutil."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_mlperf.config.facts import Fact, ask, entries, numbered, resolved, text_of, todo, whole

NOT_STORAGE = r"(loop|ram|zram|dm-|md|sr|fd|nbd|zd|rbd|mtdblock)\d+.*|nvme\d+c\d+n\d+"
INFINIBAND = "32"  # ARPHRD_INFINIBAND: the network card of an InfiniBand device


def storage_facts(root: Path) -> dict[str, Fact]:
    """The block devices of this host: no partitions, no images, nothing removable."""
    disks: list[tuple[int, str]] = []
    for folder in entries(root / "sys/block"):
        size = whole(text_of(folder / "size")) * 512  # bytes
        if size > 0 and not re.fullmatch(NOT_STORAGE, folder.name) and text_of(folder / "removable") != "1":
            disks.append((size, _disk_kind(folder)))
    if not disks:
        return {
            "host_storage_type": todo("kind of storage of a host, e.g. NVMe SSD"),
            "host_storage_capacity": todo("storage of a host, e.g. 2x 1.92 TB NVMe SSD"),
        }
    kinds = " + ".join(dict.fromkeys(kind for _, kind in disks))
    sizes = numbered(f"{_disk_size(size)} {kind}" for size, kind in disks)
    return {
        "host_storage_type": Fact(kinds, "/sys/block (local disks only)"),
        "host_storage_capacity": Fact(sizes, "/sys/block (local disks only)"),
    }


def _disk_kind(folder: Path) -> str:
    if folder.name.startswith("nvme"):
        return "NVMe SSD"
    if re.match(r"vd|xvd", folder.name):
        return "virtual disk"
    return {"0": "SSD", "1": "HDD"}.get(text_of(folder / "queue/rotational"), "disk")


def _disk_size(size: int) -> str:
    """Bytes in the decimal units of disks, to three digits."""
    return f"{size / 1e12:.3g} TB" if size >= 999.5e9 else f"{size / 1e9:.3g} GB"


def network_fact(root: Path, host: Any) -> Fact:
    """InfiniBand ports with their rate, then physical network cards with their speed."""
    cards = _network_cards(root, host)
    ports = [text for folder in entries(root / "sys/class/infiniband") for text in _ports(root, folder, cards)]
    texts = ports + list(cards.values())
    if not texts:
        return todo("network between the hosts, e.g. 8x ConnectX-7 InfiniBand 400 Gb/s")
    return Fact(numbered(texts, joiner=", "), "/sys/class/net, /sys/class/infiniband")


def _network_cards(root: Path, host: Any) -> dict[Path, str]:
    """Text of each network port by its folder, IP over InfiniBand left out."""
    stats = ask(host, "net_if_stats") or {}
    cards = {}
    for folder in entries(root / "sys/class/net"):
        if not (folder / "device").exists() or text_of(folder / "type") == INFINIBAND:
            continue
        speed = max(whole(text_of(folder / "speed")), getattr(stats.get(folder.name), "speed", 0))  # Mb/s, -1 unknown
        cards[folder] = (
            f"{_device_name(root, folder / 'device')} Ethernet{f' {speed / 1000:g} Gb/s' if speed > 0 else ''}"
        )
    return cards


def _ports(root: Path, folder: Path, cards: Iterable[Path]) -> list[str]:
    """Text of each port of an InfiniBand device; one that is a network card too (RoCE) is not told twice."""
    device = folder / "device"
    roce = any(resolved(card / "device") == resolved(device) for card in cards)
    name = _device_name(root, device, fallback=text_of(folder / "hca_type"))
    texts = []
    for port in entries(folder / "ports"):
        layer = text_of(port / "link_layer") or "InfiniBand"
        if layer == "InfiniBand" or not roce:
            up = "LinkUp" in text_of(port / "phys_state")  # the rate of a port that is down is not its own
            texts.append(" ".join(filter(None, [name, layer, text_of(port / "rate") if up else "(link down)"])))
    return texts


def _device_name(root: Path, device: Path, *, fallback: str = "") -> str:
    """Name of a PCI device from the table pci.ids where the system has one, else the fallback or its driver."""
    vendor, model = (text_of(device / name).removeprefix("0x") for name in ("vendor", "device"))
    for table in ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids") if vendor and model else ():
        line = rf"^{re.escape(vendor)} +(.+)\n(?:[\t#].*\n)*?\t{re.escape(model)} +(.+)$"
        if found := re.search(line, text_of(root / table), re.MULTILINE):
            return f"{found[1]} {found[2]}"
    driver = resolved(device / "driver").name if (device / "driver").exists() else ""
    return fallback or (f"{driver} card" if driver else "unnamed card")
