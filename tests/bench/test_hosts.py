"""Emulated hosts: made, joined, limited and always removed. Skipped where namespaces cannot be made."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_mlperf.bench import hosts as hosts_module
from bert_mlperf.bench.hosts import PREFIX, Host, emulated_hosts, set_link, sweep, why_not
from bert_mlperf.cli import main
from bert_mlperf.errors import UserError

REASON = why_not()
with_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def namespaces(process: int) -> list[str]:
    folder = Path("/run/netns")
    return [p.name for p in folder.iterdir() if p.name.startswith(f"{PREFIX}-{process}-")] if folder.exists() else []


def output(host: Host, *command: str) -> str:
    return subprocess.run(host.command(command), check=True, capture_output=True, text=True).stdout


@with_namespaces
def test_hosts_have_a_limited_link_and_are_removed():
    with emulated_hosts(2, mbit=100) as made:
        assert len(namespaces(os.getpid())) == 3  # two hosts and the switch
        for host in made:
            link = json.loads(output(host, "ip", "-json", "address", "show", "eth0"))[0]
            assert host.address in [a["local"] for a in link["addr_info"]]
            assert "rate 100Mbit" in output(host, "tc", "qdisc", "show", "dev", "eth0")
        set_link(made, mbit=7)
        assert "rate 7Mbit" in output(made[1], "tc", "qdisc", "show", "dev", "eth0")
    assert namespaces(os.getpid()) == []


@with_namespaces
def test_hosts_reach_each_other():
    connect = "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=10).sendall(b'x')"
    listen = (
        "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); print(s.accept()[0].recv(1))"
    )
    with emulated_hosts(2, mbit=100) as (first, second):
        server = subprocess.Popen(first.command([sys.executable, "-c", listen]), stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None and server.stdout.readline() == "up\n"
        output(second, sys.executable, "-c", connect, first.address)
        assert server.communicate(timeout=10)[0] == "b'x'\n"


@with_namespaces
def test_hosts_are_removed_after_an_error_inside_and_while_they_are_made(monkeypatch):
    with pytest.raises(ZeroDivisionError), emulated_hosts(2, mbit=100):
        raise ZeroDivisionError
    assert namespaces(os.getpid()) == []
    monkeypatch.setattr(hosts_module, "_BURST", "nonsense")
    with pytest.raises(UserError, match=r"hosts cannot be emulated here: tc .* nonsense"), emulated_hosts(2, mbit=100):
        pass
    assert namespaces(os.getpid()) == []


SLEEP = """
import time
from bert_mlperf.bench.hosts import emulated_hosts
from bert_mlperf.train.stop import raising_when_stopped
with raising_when_stopped(), emulated_hosts(2, mbit=100):
    print("made", flush=True)
    time.sleep(60)
"""


def sleeping() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "made\n"
    assert len(namespaces(process.pid)) == 3
    return process


@with_namespaces
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_process_leaves_nothing(signum):
    process = sleeping()
    process.send_signal(signum)
    process.wait(timeout=20)
    assert namespaces(process.pid) == []


@with_namespaces
def test_what_a_killed_process_left_is_swept_and_that_of_a_living_one_is_not():
    killed, living = sleeping(), sleeping()
    try:
        killed.kill()
        killed.wait()
        assert len(namespaces(killed.pid)) == 3
        assert {name.split("-")[1] for name in sweep()} == {str(killed.pid)}
        assert namespaces(killed.pid) == [] and len(namespaces(living.pid)) == 3
    finally:
        living.terminate()
        living.wait(timeout=20)


def test_without_root_or_tools_a_sentence_says_so(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(hosts_module.shutil, "which", lambda tool: f"/sbin/{tool}")
    assert main(["bench", "comm"]) == 2
    assert capsys.readouterr().err == (
        "error: hosts are emulated with network namespaces, which only root may make (this is user 1000).\n"
    )
    monkeypatch.setattr(hosts_module.shutil, "which", lambda tool: None)
    assert why_not() == "hosts are emulated with iproute2, whose ip and tc is not found; install iproute2."
