"""Several hosts on this machine: a network namespace each, joined by a switch whose links are as fast as one wishes.

    host 0 [eth0 10.77.0.1] --- [switch: a bridge in a namespace of its own] --- [eth0 10.77.0.2] host 1

What a host sends passes a token bucket (tc tbf) at eth0, what it receives one at its port of the switch. Names carry
the process that made them, so leftovers of a killed one are found and removed. Everything outside these namespaces
stays as it is.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bert_mlperf.errors import UserError

PREFIX = "bertmlperf"
INTERFACE = "eth0"
COUNTERS = Path(f"/sys/class/net/{INTERFACE}/statistics")  # as a process inside the namespace sees it
_NAMESPACES = Path("/run/netns")
_BURST, _LATENCY = "256kb", "50ms"  # of the token buckets


@dataclass(frozen=True)
class Host:
    """One emulated host: its network namespace and the address of its eth0."""

    namespace: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


def why_not() -> str | None:
    """Why hosts cannot be emulated here, or None: a sentence."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"hosts are emulated with iproute2, whose {' and '.join(missing)} is not found; install iproute2."
    if os.geteuid() != 0:
        return f"hosts are emulated with network namespaces, which only root may make (this is user {os.geteuid()})."
    name = _name("probe")
    done = _ip("netns", "add", name, check=False)
    if done.returncode:
        return f"network namespaces cannot be made here: {_reason(done)}."
    _ip("netns", "delete", name, check=False)
    return None


@contextmanager
def emulated_hosts(number: int, *, mbit: float) -> Iterator[list[Host]]:
    """`number` hosts (2 to 250) whose links carry `mbit` Mbit/s in each direction; removed when the block is left,
    however it is left. UserError if there can be none."""
    assert 2 <= number <= 250
    reason = why_not()
    if reason is not None:
        raise UserError(reason)
    sweep()
    switch = _name("switch")
    hosts = [Host(_name(f"host{i}"), f"10.77.0.{i + 1}") for i in range(number)]
    try:
        _make_switch(switch)
        for port, host in enumerate(hosts):
            _plug_in(host, switch, port)
        set_link(hosts, mbit=mbit)
        yield hosts
    except subprocess.CalledProcessError as error:
        raise UserError(f"hosts cannot be emulated here: {' '.join(error.cmd)}: {_reason(error)}.") from error
    finally:
        for name in (*(host.namespace for host in hosts), switch):
            _ip("netns", "delete", name, check=False)


def set_link(hosts: Sequence[Host], *, mbit: float) -> None:
    """Limits all links to `mbit` Mbit/s in each direction from now on."""
    for port, host in enumerate(hosts):
        _limit(host.namespace, INTERFACE, mbit)
        _limit(_name("switch"), f"port{port}", mbit)


def sweep() -> list[str]:
    """Removes the namespaces of processes that are no more; their names."""
    try:
        names = [path.name for path in _NAMESPACES.iterdir() if path.name.startswith(f"{PREFIX}-")]
    except OSError:
        return []
    dead = [name for name in names if not Path(f"/proc/{name.split('-')[1]}").exists()]
    for name in dead:
        _ip("netns", "delete", name, check=False)
    return dead


def _name(part: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{part}"


def _make_switch(switch: str) -> None:
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
    _ip("-n", switch, "link", "set", "bridge0", "up")


def _plug_in(host: Host, switch: str, port: int) -> None:
    """Makes the host's namespace and joins its eth0 to the switch."""
    inside, plug = host.namespace, f"port{port}"
    _ip("netns", "add", inside)
    _ip("-n", inside, "link", "set", "lo", "up")
    _ip("-n", inside, "link", "add", INTERFACE, "type", "veth", "peer", "name", plug, "netns", switch)
    _ip("-n", inside, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    _ip("-n", switch, "link", "set", plug, "master", "bridge0", "up")
    _ip("-n", inside, "link", "set", INTERFACE, "up")


def _limit(namespace: str, interface: str, mbit: float) -> None:
    kbit = max(1, round(1000 * mbit))
    bucket = ("tbf", "rate", f"{kbit}kbit", "burst", _BURST, "latency", _LATENCY)
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *bucket)


def _ip(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return _run("ip", *arguments, check=check)


def _run(*command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """In a session of its own: Ctrl-C does not end the cleaning up."""
    return subprocess.run(command, check=check, capture_output=True, text=True, start_new_session=True)


def _reason(failed: "subprocess.CompletedProcess[str] | subprocess.CalledProcessError") -> str:
    return (failed.stderr or "").strip().rstrip(".").splitlines()[-1] if failed.stderr else f"exit {failed.returncode}"
