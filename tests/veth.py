"""A cable between this network namespace and that of a process: a pair of veth devices, by rtnetlink. Needs root.

Ours gets an address in 198.18.0.0/15, which is set aside for tests of networks; theirs is called ``gpumon-test`` and
is for the process to configure. Both go with the process's namespace.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

DEVICE = b"gpumon-test"
_NEWLINK, _REQUEST_ACK_CREATE = 16, 0x1 | 0x4 | 0x400 | 0x200
_IFNAME, _LINKINFO, _NET_NS_PID, _INFO_KIND, _INFO_DATA, _VETH_PEER = 3, 18, 19, 1, 2, 1


def connect(pid: int, address: str) -> None:
    """Lay the cable, and take the address on our end of it. Raises OSError."""
    ours = f"gpumon{os.getpid() % 100_000}".encode()
    peer = struct.pack("BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    peer += _attribute(_IFNAME, DEVICE + b"\0") + _attribute(_NET_NS_PID, struct.pack("I", pid))
    veth = _attribute(_INFO_KIND, b"veth") + _attribute(_INFO_DATA, _attribute(_VETH_PEER, peer))
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    body += _attribute(_IFNAME, ours + b"\0") + _attribute(_LINKINFO, veth)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(struct.pack("IHHII", 16 + len(body), _NEWLINK, _REQUEST_ACK_CREATE, 1, 0) + body)
        error = struct.unpack_from("i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(-error, os.strerror(-error))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, text in ((0x8916, address), (0x891C, "255.255.255.252")):  # SIOCSIFADDR, SIOCSIFNETMASK
            fcntl.ioctl(control, request, struct.pack("16sH2x4s8x", ours, socket.AF_INET, socket.inet_aton(text)))
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", ours, 0x41))  # SIOCSIFFLAGS: up, running


def _attribute(kind: int, data: bytes) -> bytes:
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("HH", 4 + len(data), kind) + data + padding
