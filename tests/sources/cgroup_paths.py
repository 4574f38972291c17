"""Where container runtimes put a container of a pod: /proc/<pid>/cgroup by runtime, driver and version of cgroups.

Written after the conventions of the kubelet and of each runtime; ``{uid}`` is the pod's uid, ``{uid_}`` the same as
systemd slices have it, ``{id}`` the container's id, ``{outer}`` that of the container around a nested node.
"""

from __future__ import annotations

LAYOUTS = {
    "containerd systemd v2": (
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-containerd-{id}.scope\n"
    ),
    "containerd systemd v2 guaranteed": "0::/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{id}.scope\n",
    "containerd cgroupfs v2": "0::/kubepods/besteffort/pod{uid}/{id}\n",
    "containerd systemd driver without systemd": "0::/kubepods-besteffort-pod{uid_}.slice:cri-containerd:{id}\n",
    "containerd cgroupfs v1": (
        "12:memory:/kubepods/burstable/pod{uid}/{id}\n"
        "4:cpu,cpuacct:/kubepods/burstable/pod{uid}/{id}\n"
        "1:name=systemd:/kubepods/burstable/pod{uid}/{id}\n"
    ),
    "containerd systemd v1 hybrid": (
        "9:memory:/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{id}.scope\n"
        "3:cpu,cpuacct:/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{id}.scope\n"
        "1:name=systemd:/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{id}.scope\n"
        "0::/system.slice/containerd.service\n"
    ),
    "cri-o systemd v2": (
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/crio-{id}.scope\n"
    ),
    "cri-o systemd v2 delegated": "0::/kubepods.slice/kubepods-pod{uid_}.slice/crio-{id}.scope/container\n",
    "cri-o cgroupfs v1": "8:memory:/kubepods/pod{uid}/crio-{id}\n1:name=systemd:/kubepods/pod{uid}/crio-{id}\n",
    "docker systemd v2": (
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/docker-{id}.scope\n"
    ),
    "docker cgroupfs v1": "6:memory:/kubepods/burstable/pod{uid}/{id}\n2:cpu:/kubepods/burstable/pod{uid}/{id}\n",
    "kind v2": (
        "0::/docker/{outer}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        "kubelet-kubepods-burstable-pod{uid_}.slice/cri-containerd-{id}.scope\n"
    ),
    "kind v2 on systemd": (
        "0::/system.slice/docker-{outer}.scope/kubelet.slice/kubelet-kubepods.slice/"
        "kubelet-kubepods-pod{uid_}.slice/cri-containerd-{id}.scope\n"
    ),
    "kind v1": "5:memory:/docker/{outer}/kubelet/kubepods/burstable/pod{uid}/{id}\n",
    "k3s v2": "0::/kubepods/burstable/pod{uid}/{id}\n",
    "a child below the container": "0::/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-{id}.scope/init\n",
}


def cgroup(layout: str, uid: str, id_: str, outer: str = "0" * 63 + "1") -> bytes:
    """The file of a process in such a container."""
    return LAYOUTS[layout].format(uid=uid, uid_=uid.replace("-", "_"), id=id_, outer=outer).encode()
