"""The messages of the kubelet's pod-resources API, as far as gpumon reads them.

Built at import in a descriptor pool of its own. Field numbers are those of k8s.io/kubelet's ``podresources/v1``;
``v1alpha1`` has fewer fields under the same numbers, so that one set of messages reads both. Left out, and skipped by
the parser: CPU ids, memory, NUMA topology.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "gpumon.podresources"
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    # name: (field, number, type); "*" for repeated, a capital for another message here, else text
    "CDIDevice": (("name", 1, "text"),),
    "ClaimResource": (
        ("cdi_devices", 1, "*CDIDevice"),
        ("driver_name", 2, "text"),
        ("pool_name", 3, "text"),
        ("device_name", 4, "text"),
    ),
    "DynamicResource": (
        ("claim_name", 2, "text"),
        ("claim_namespace", 3, "text"),
        ("claim_resources", 4, "*ClaimResource"),
    ),
    "ContainerDevices": (("resource_name", 1, "text"), ("device_ids", 2, "*text")),
    "ContainerResources": (
        ("name", 1, "text"),
        ("devices", 2, "*ContainerDevices"),
        ("dynamic_resources", 5, "*DynamicResource"),
    ),
    "PodResources": (("name", 1, "text"), ("namespace", 2, "text"), ("containers", 3, "*ContainerResources")),
    "ListPodResourcesResponse": (("pod_resources", 1, "*PodResources"),),
    "AllocatableResourcesResponse": (("devices", 1, "*ContainerDevices"),),
    "GetPodResourcesRequest": (("pod_name", 1, "text"), ("pod_namespace", 2, "text")),
    "GetPodResourcesResponse": (("pod_resources", 1, "PodResources"),),
}


def _built() -> dict[str, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="gpumon/podresources.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            other = kind.removeprefix("*")
            field.type = kinds.TYPE_STRING if other == "text" else kinds.TYPE_MESSAGE
            if other != "text":
                field.type_name = f".{_PACKAGE}.{other}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


# Classes made at run time, whose fields no type checker knows.
MESSAGES: dict[str, Any] = _built()
ListResponse = MESSAGES["ListPodResourcesResponse"]
AllocatableResponse = MESSAGES["AllocatableResourcesResponse"]
GetRequest = MESSAGES["GetPodResourcesRequest"]
GetResponse = MESSAGES["GetPodResourcesResponse"]
