/* Processes on a GPU and their utilisation samples. */
#include "internal.h"

#include <string.h>

#define NOT_APPLICABLE 0xffffffffu

/* Two-call protocol: too small a buffer gets the size and INSUFFICIENT_SIZE.  Drivers of early 535
 * wrote 32-byte entries through the _v3 symbol: process_entry_bytes lets a scenario do that. */
static nvmlReturn_t running(const struct call *call, unsigned kind, uint32_t *count, void *out,
                            size_t stride)
{
    if (!count)
        return INVALID_ARGUMENT;
    const struct fnv_gpu *gpu = call->gpu;
    uint32_t room = *count, have, seq;
    do {
        seq = gpu_read_begin(gpu);
        have = 0;
        for (uint32_t i = 0; i < gpu->process_count[kind] && i < FNV_PROCS; i++) {
            const struct fnv_process *from = &gpu->processes[kind][i];
            if (call->mig && (from->gpu_instance != call->mig->gpu_instance ||
                              from->compute_instance != call->mig->compute_instance))
                continue;
            if (have < room && out) {
                struct process_info *to = (void *)((char *)out + have * stride);
                memset(to, 0, stride);
                to->pid = from->pid;
                to->memory = from->memory;
                to->gpu_instance = from->gpu_instance;
                to->compute_instance = from->compute_instance;
            }
            have++;
        }
    } while (gpu_read_retry(gpu, seq));
    *count = have;
    return have > room || (have && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

static size_t stride_v3(const struct call *call)
{
    size_t bytes = call->gpu->process_entry_bytes;
    return bytes >= sizeof(struct process_info) ? bytes : sizeof(struct process_info);
}

#define RUNNING(fn, kind, stride)                                       \
    nvmlReturn_t fn(handle_t device, uint32_t *count, void *out)        \
    {                                                                   \
        DEVICE_CALL(fn, device, ON_MIG);                                \
        DONE(running(&call, kind, count, out, stride));                 \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, 0, stride_v3(&call))
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, 1, stride_v3(&call))
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2, stride_v3(&call))
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, 0, sizeof(struct process_info))
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, 1, sizeof(struct process_info))
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, sizeof(struct process_info))

/* Entries newer than the cursor, the caller's own order, timestamps filled in. */
static uint32_t utils_after(const struct call *call, uint64_t after_us,
                            struct process_utilization_v1 *out)
{
    const struct fnv_gpu *gpu = call->gpu;
    uint64_t now_us = gpu_now_us(call->state, gpu);
    uint32_t count, seq;
    do {
        seq = gpu_read_begin(gpu);
        count = 0;
        for (uint32_t i = 0; i < gpu->util_count && i < FNV_PROCS; i++) {
            const struct fnv_process_util *from = &gpu->utils[i];
            uint64_t ts = from->auto_ts ? now_us : from->ts_us;
            if (ts <= after_us && after_us != 0)
                continue;
            out[count++] = (struct process_utilization_v1){
                ts, from->pid, from->sm, from->mem, from->enc, from->dec, from->jpg, from->ofa, 0};
        }
    } while (gpu_read_retry(gpu, seq));
    return count;
}

/* A process was born between the two calls. */
static bool races(struct fnv_gpu *gpu)
{
    uint32_t left = __atomic_load_n(&gpu->util_race, __ATOMIC_ACQUIRE);
    while (left)
        if (__atomic_compare_exchange_n(&gpu->util_race, &left, left - 1, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return true;
    return false;
}

static nvmlReturn_t size_protocol(const struct call *call, bool has_buffer, uint32_t room,
                                  uint32_t have, uint32_t *count)
{
    if (!has_buffer && call->gpu->util_success_zero) {
        *count = 0;
        return SUCCESS;
    }
    *count = have;
    if (have == 0)
        return NOT_FOUND;
    if (!has_buffer || room < have)
        return INSUFFICIENT_SIZE;
    if (races(call->gpu)) {
        *count = have + 1;
        return INSUFFICIENT_SIZE;
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(handle_t device, struct process_utilization *out,
                                             uint32_t *count, uint64_t after_us)
{
    DEVICE_CALL(nvmlDeviceGetProcessUtilization, device, NOT_ON_PARENT);
    if (!count)
        DONE(INVALID_ARGUMENT);
    struct process_utilization_v1 found[FNV_PROCS];
    uint32_t have = utils_after(&call, after_us, found), room = *count;
    nvmlReturn_t rc = size_protocol(&call, out != NULL, room, have, count);
    for (uint32_t i = 0; rc == SUCCESS && out && i < have; i++)
        out[i] = (struct process_utilization){found[i].pid, 0,            found[i].ts_us, found[i].sm,
                                              found[i].mem, found[i].enc, found[i].dec};
    DONE(rc);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(handle_t device,
                                                   struct processes_utilization *query)
{
    DEVICE_CALL(nvmlDeviceGetProcessesUtilizationInfo, device, NOT_ON_PARENT);
    if (!query)
        DONE(INVALID_ARGUMENT);
    if (query->version != STRUCT_VERSION(struct processes_utilization, 1u))
        DONE(ARGUMENT_VERSION_MISMATCH);
    struct process_utilization_v1 found[FNV_PROCS];
    uint32_t have = utils_after(&call, query->last_seen_us, found), room = query->count;
    nvmlReturn_t rc = size_protocol(&call, query->samples != NULL, room, have, &query->count);
    if (rc == SUCCESS && query->samples)
        memcpy(query->samples, found, have * sizeof *found);
    DONE(rc);
}
