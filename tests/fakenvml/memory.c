/* Memory of a GPU or of a MIG device, and the enumeration of MIG devices. */
#include "internal.h"

#include <string.h>

typedef handle_t nvmlDevice_t;

struct pool {
    uint64_t total, reserved, used;
};

static struct pool pool_of(const struct call *call)
{
    const struct fnv_line *lines =
        call->mig ? call->mig->lines : &call->gpu->lines[SIG_memory_total];
    int64_t now = gpu_now_ns(call->state, call->gpu);
    return (struct pool){
        line_u64(call->gpu, &lines[0], now),
        line_u64(call->gpu, &lines[1], now),
        line_u64(call->gpu, &lines[2], now),
    };
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_v1 *out)
{
    DEVICE_CALL(nvmlDeviceGetMemoryInfo, device, ON_MIG);
    struct pool pool = pool_of(&call);
    /* v1 has no "reserved": it counts as used */
    struct memory_v1 value = {pool.total, pool.total - pool.used - pool.reserved,
                              pool.used + pool.reserved};
    WRITE(out, value);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *out)
{
    DEVICE_CALL(nvmlDeviceGetMemoryInfo_v2, device, ON_MIG);
    if (!out)
        DONE(INVALID_ARGUMENT);
    if (out->version != STRUCT_VERSION(struct memory_v2, 2u))
        DONE(ARGUMENT_VERSION_MISMATCH);
    struct pool pool = pool_of(&call);
    out->total = pool.total;
    out->reserved = pool.reserved;
    out->used = pool.used;
    out->free = pool.total - pool.used - pool.reserved;
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct bar1_memory *out)
{
    DEVICE_CALL(nvmlDeviceGetBAR1MemoryInfo, device, ON_MIG);
    const struct fnv_line *lines =
        call.mig ? &call.mig->lines[MIG_bar1_total] : &call.gpu->lines[SIG_bar1_total];
    int64_t now = gpu_now_ns(call.state, call.gpu);
    uint64_t total = line_u64(call.gpu, &lines[0], now), used = line_u64(call.gpu, &lines[1], now);
    struct bar1_memory value = {total, total - used, used};
    WRITE(out, value);
}

/* ---- MIG ---- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, uint32_t *now, uint32_t *pending)
{
    DEVICE_CALL(nvmlDeviceGetMigMode, device, 0);
    if (!call.gpu->mig_capable)
        DONE(NOT_SUPPORTED);
    if (!now)
        DONE(INVALID_ARGUMENT);
    *now = call.gpu->mig_current;
    WRITE(pending, call.gpu->mig_pending);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetMaxMigDeviceCount, device, 0);
    WRITE(out, call.gpu->mig_capable ? call.gpu->mig_max : 0);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, uint32_t index, handle_t *out)
{
    DEVICE_CALL(nvmlDeviceGetMigDeviceHandleByIndex, device, 0);
    if (!call.gpu->mig_capable)
        DONE(NOT_SUPPORTED);
    if (index >= call.gpu->mig_max || index >= FNV_MIGS)
        DONE(INVALID_ARGUMENT);
    if (!call.gpu->mig_current || !call.gpu->migs[index].present)
        DONE(NOT_FOUND);
    WRITE(out, handle_make(call.state, KIND_MIG, call.slot, index));
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceIsMigDeviceHandle, device, ON_MIG);
    WRITE(out, call.mig != NULL);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, handle_t *out)
{
    DEVICE_CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device, ON_MIG);
    if (!call.mig)
        DONE(INVALID_ARGUMENT);
    WRITE(out, handle_make(call.state, KIND_DEVICE, call.slot, 0));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetGpuInstanceId, device, ON_MIG);
    if (!call.mig)
        DONE(NOT_SUPPORTED);
    WRITE(out, call.mig->gpu_instance);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetComputeInstanceId, device, ON_MIG);
    if (!call.mig)
        DONE(NOT_SUPPORTED);
    WRITE(out, call.mig->compute_instance);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, struct device_attributes *out)
{
    DEVICE_CALL(nvmlDeviceGetAttributes_v2, device, ON_MIG);
    if (!call.mig)
        DONE(NOT_SUPPORTED);
    if (!out)
        DONE(INVALID_ARGUMENT);
    memcpy(out->counts, call.mig->attributes, sizeof out->counts);
    out->memory_mb = call.mig->memory_mb;
    DONE(SUCCESS);
}
