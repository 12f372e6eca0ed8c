"""Linux namespaces of a node: isolated processes, mounts and network.

Everything that a node leaves behind (containers, mounts, interfaces, packet filter rules) belongs to these
namespaces, and the kernel removes all of it when their first process ends, even when the test process is
killed."""

import itertools
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .daemon import Daemon, DaemonFailed, plain_environment
from .programs import program

_COMMAND_SECONDS = 60.0
_START_SECONDS = 10.0
_MOST_CLUSTERS = 64


class CommandFailed(Exception):
    """A command during the set-up of a node failed; the text has its output."""


def run(command: Sequence[str | Path], *, timeout: float = _COMMAND_SECONDS) -> str:
    """Run a command and return its output. Raises CommandFailed on failure or after `timeout` seconds."""
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=plain_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{shown}: not done after {timeout:g} s") from error
    if done.returncode != 0:
        raise CommandFailed(f"{shown}: exit {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


@dataclass(frozen=True)
class _Link:
    """Network interface of this machine. The kernel gives no second interface the same index."""

    name: str
    index: int | None


def _interface_index(name: str) -> int | None:
    """Return the index of a network interface of this machine; None: no interface has the name."""
    try:
        return int(Path("/sys/class/net", name, "ifindex").read_text())
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Addresses:
    """Addresses of one of several clusters on a machine; none is visible outside the machine."""

    number: int

    @property
    def link(self) -> str:
        """Name of the network interface on the machine's side."""
        return f"kubealign{self.number}"

    @property
    def machine(self) -> str:
        """Address at which the node and its pods reach the machine, and with it the API server."""
        return f"10.97.{self.number}.1"

    @property
    def node(self) -> str:
        """Address at which the machine reaches the node, and pods reach the DNS server."""
        return f"10.97.{self.number}.2"

    @property
    def pods(self) -> str:
        return f"10.98.{self.number}.0/24"

    @property
    def services(self) -> str:
        return f"10.99.{self.number}.0/24"


class NodeNamespaces:
    """Namespaces with one idle process, and a network link to the machine.

    The machine and the node, its pods and their Services reach each other by address. A second node of a
    cluster is connected with the first by `join`; then both reach the machine at the addresses of either."""

    def __init__(self, folder: Path) -> None:
        unshare = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            "--mount",
            "--net",
            "--",
        ]
        self._holder = Daemon("node-namespaces", [*unshare, program("pause")], folder / "namespaces.log")
        self._first: int | None = None
        self._addresses: Addresses | None = None
        self._made_link: _Link | None = None

    @property
    def addresses(self) -> Addresses:
        if self._addresses is None:
            raise DaemonFailed("the namespaces of the node were not opened")
        return self._addresses

    def open(self) -> None:
        """Create the namespaces and the link. Raises CommandFailed or DaemonFailed."""
        self._holder.start()
        self._holder.wait_until(self._has_first, "the first process of the namespaces", _START_SECONDS)
        self._addresses = self._link()
        self._private_folders()

    def join(self, other: "NodeNamespaces") -> None:
        """Link these namespaces with those of `other`, whose cluster this node joins; both must be open.

        The link is direct, so pods of both nodes reach each other without packets through this machine."""
        mine, theirs = self.addresses, other.addresses
        names = f"to-{theirs.number}", f"to-{mine.number}"
        peer = ["peer", "name", names[1], "netns", str(other._first)]
        self.run("ip", "route", "add", theirs.machine, "via", mine.machine)
        other.run("ip", "route", "add", mine.machine, "via", theirs.machine)
        self.run("ip", "route", "add", theirs.services, "via", mine.machine)
        # Made outside: the process identifiers are those of this machine.
        ends = ["ip", "link", "add", names[0], "netns", str(self._first), "type", "veth", *peer]
        run(ends)
        for spaces, name, near, far in ((self, names[0], mine, theirs), (other, names[1], theirs, mine)):
            spaces.run("ip", "address", "add", f"{near.node}/32", "peer", f"{far.node}/32", "dev", name)
            spaces.run("ip", "link", "set", name, "up")
            spaces.run("ip", "route", "add", far.pods, "via", far.node, "dev", name, "src", near.node)

    def close(self) -> None:
        """End every process inside and wait until all are gone; the kernel removes the rest."""
        first, self._first = self._first, None
        # The kernel ends the first process with its parent, and all others with the first.
        self._holder.kill()
        deadline = time.monotonic() + _COMMAND_SECONDS
        while first is not None and Path(f"/proc/{first}").exists():
            if time.monotonic() > deadline:
                raise DaemonFailed(f"waited {_COMMAND_SECONDS:g} s for the end of the node's processes")
            time.sleep(0.02)
        link, self._made_link = self._made_link, None
        # The kernel removes the link too, a little later. Then another cluster may have a link of that name.
        if link is not None and _interface_index(link.name) == link.index:
            subprocess.run(["ip", "link", "del", link.name], check=False, capture_output=True)

    def command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs `command` inside.

        `command` ends with the process that the command line starts."""
        if self._first is None:
            raise DaemonFailed("the namespaces of the node are not open")
        enter = ["nsenter", f"--target={self._first}", "--pid", "--mount", "--net", "--"]
        return [*enter, "setpriv", "--pdeathsig=KILL", "--", *map(str, command)]

    def run(self, *command: str | Path, timeout: float = _COMMAND_SECONDS) -> str:
        """Run a command inside and return its output. Raises CommandFailed."""
        return run(self.command(*command), timeout=timeout)

    def show(self, folder: Path, at: str) -> None:
        """Mount a folder of the machine at the path `at` inside; both are created where missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.run("mkdir", "-p", at)
        self.run("mount", "--bind", folder, at)

    def _has_first(self) -> bool:
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        # Before the process has become `pause` it may still be mounting.
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "pause":
            self._first = int(children[0])
        return self._first is not None

    def _link(self) -> Addresses:
        """Create the link; its creation reserves the name, and with it the addresses, atomically."""
        for number in itertools.count():
            here = Addresses(number)
            peer = ["peer", "name", "uplink", "netns", str(self._first)]
            try:
                run(["ip", "link", "add", here.link, "type", "veth", *peer])
                break
            except CommandFailed as error:
                if "File exists" not in str(error) or number >= _MOST_CLUSTERS:
                    raise
        self._made_link = _Link(here.link, _interface_index(here.link))
        run(["ip", "address", "add", f"{here.machine}/30", "dev", here.link])
        run(["ip", "link", "set", here.link, "up"])
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{here.node}/30", "dev", "uplink")
        self.run("ip", "link", "set", "uplink", "up")
        # No default route: a pull from a registry fails at once instead of waiting.
        self.run("ip", "route", "add", here.services, "via", here.machine)
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for network in (here.pods, here.services):
            run(["ip", "route", "add", network, "via", here.node])
        return here

    def _private_folders(self) -> None:
        """Mount private folders over the fixed paths that programs write to."""
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for folder in ("/var/lib", "/var/log"):
            upper = f"/run/private{folder}"
            layers = f"lowerdir={folder},upperdir={upper}/upper,workdir={upper}/work"
            self.run("mkdir", "-p", f"{upper}/upper", f"{upper}/work")
            self.run("mount", "-t", "overlay", "overlay", "-o", layers, folder)
