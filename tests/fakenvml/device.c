/* System and device queries whose answer is a scalar, a string or a small struct. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

typedef handle_t nvmlDevice_t;

#define GET_U32(fn, signal, flags)                                      \
    nvmlReturn_t fn(nvmlDevice_t device, uint32_t *out)                 \
    {                                                                   \
        DEVICE_CALL(fn, device, flags);                                 \
        WRITE(out, signal_u32(&call, SIG_##signal));                    \
    }
#define GET_U64(fn, signal, flags)                                      \
    nvmlReturn_t fn(nvmlDevice_t device, uint64_t *out)                 \
    {                                                                   \
        DEVICE_CALL(fn, device, flags);                                 \
        WRITE(out, signal_u64(&call, SIG_##signal));                    \
    }
/* value and the length of the window it was averaged over */
#define GET_UTIL(fn, signal)                                            \
    nvmlReturn_t fn(nvmlDevice_t device, uint32_t *out, uint32_t *period) \
    {                                                                   \
        DEVICE_CALL(fn, device, NOT_ON_PARENT);                         \
        if (period)                                                     \
            *period = signal_u32(&call, SIG_util_period_us);            \
        WRITE(out, signal_u32(&call, SIG_##signal));                    \
    }
#define GET_STRING(fn, member, flags)                                   \
    nvmlReturn_t fn(nvmlDevice_t device, char *out, uint32_t length)    \
    {                                                                   \
        DEVICE_CALL(fn, device, flags);                                 \
        DONE(copy_string(out, length, call.gpu->member));               \
    }

/* ---- system ---- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, uint32_t length)
{
    SYSTEM_CALL(nvmlSystemGetDriverVersion, 0);
    DONE(copy_string(out, length, call.state->driver_version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, uint32_t length)
{
    SYSTEM_CALL(nvmlSystemGetNVMLVersion, 0);
    DONE(copy_string(out, length, call.state->nvml_version));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
    SYSTEM_CALL(nvmlSystemGetCudaDriverVersion, 0);
    WRITE(out, call.state->cuda_version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    SYSTEM_CALL(nvmlSystemGetCudaDriverVersion_v2, 0);
    WRITE(out, call.state->cuda_version);
}

/* ---- enumeration ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(uint32_t *out)
{
    SYSTEM_CALL(nvmlDeviceGetCount_v2, 0);
    WRITE(out, call.state->gpu_count);
}

nvmlReturn_t nvmlDeviceGetCount(uint32_t *out)
{
    SYSTEM_CALL(nvmlDeviceGetCount, 0);
    WRITE(out, call.state->gpu_count);
}

/* Attaching to a GPU: counted on its column, and a lost one refuses it. */
static nvmlReturn_t open_slot(uint32_t function, uint32_t slot, handle_t *out)
{
    struct call call;
    if (!call_enter_column(&call, function, slot, 0))
        DONE(call.rc);
    if (!call.gpu->present)
        DONE(GPU_IS_LOST);
    WRITE(out, handle_make(call.state, KIND_DEVICE, slot, 0));
}

static nvmlReturn_t refuse(uint32_t function, nvmlReturn_t rc)
{
    struct call call;
    if (!call_enter_column(&call, function, FNV_NO_GPU, 0))
        DONE(call.rc);
    DONE(rc);
}

static nvmlReturn_t by_index(uint32_t function, uint32_t index, handle_t *out)
{
    struct fnv_state *state = state_current();
    if (!state)
        return UNINITIALIZED;
    if (index >= state->gpu_count || index >= FNV_GPUS)
        return refuse(function, INVALID_ARGUMENT);
    return open_slot(function, state->order[index], out);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, handle_t *out)
{
    return by_index(FN_nvmlDeviceGetHandleByIndex_v2, index, out);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(uint32_t index, handle_t *out)
{
    return by_index(FN_nvmlDeviceGetHandleByIndex, index, out);
}

static nvmlReturn_t mig_by_uuid(uint32_t function, const char *uuid, handle_t *out)
{
    struct fnv_state *state = state_current();
    for (uint32_t i = 0; i < state->gpu_count && i < FNV_GPUS; i++) {
        uint32_t slot = state->order[i];
        for (uint32_t m = 0; m < FNV_MIGS; m++) {
            struct fnv_mig *mig = &state->gpus[slot].migs[m];
            if (!state->gpus[slot].mig_current || !mig->present || strcmp(mig->uuid, uuid) != 0)
                continue;
            handle_t parent;
            nvmlReturn_t rc = open_slot(function, slot, &parent);
            if (rc == SUCCESS)
                *out = handle_make(state, KIND_MIG, slot, m);
            return rc;
        }
    }
    return refuse(function, NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *out)
{
    struct fnv_state *state = state_current();
    if (!state)
        return UNINITIALIZED;
    if (!uuid || !out)
        return refuse(FN_nvmlDeviceGetHandleByUUID, INVALID_ARGUMENT);
    for (uint32_t i = 0; i < state->gpu_count && i < FNV_GPUS; i++)
        if (strcmp(state->gpus[state->order[i]].uuid, uuid) == 0)
            return open_slot(FN_nvmlDeviceGetHandleByUUID, state->order[i], out);
    return mig_by_uuid(FN_nvmlDeviceGetHandleByUUID, uuid, out);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, handle_t *out)
{
    struct fnv_state *state = state_current();
    if (!state)
        return UNINITIALIZED;
    for (uint32_t i = 0; serial && i < state->gpu_count && i < FNV_GPUS; i++)
        if (strcmp(state->gpus[state->order[i]].serial, serial) == 0)
            return open_slot(FN_nvmlDeviceGetHandleBySerial, state->order[i], out);
    return refuse(FN_nvmlDeviceGetHandleBySerial, serial ? NOT_FOUND : INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, handle_t *out)
{
    struct fnv_state *state = state_current();
    if (!state)
        return UNINITIALIZED;
    unsigned domain = 0, bus, device;
    if (!text || (sscanf(text, "%x:%x:%x.", &domain, &bus, &device) != 3 &&
                  (domain = 0, sscanf(text, "%x:%x.", &bus, &device) != 2)))
        return refuse(FN_nvmlDeviceGetHandleByPciBusId_v2, INVALID_ARGUMENT);
    for (uint32_t i = 0; i < state->gpu_count && i < FNV_GPUS; i++) {
        const struct fnv_gpu *gpu = &state->gpus[state->order[i]];
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == device)
            return open_slot(FN_nvmlDeviceGetHandleByPciBusId_v2, state->order[i], out);
    }
    return refuse(FN_nvmlDeviceGetHandleByPciBusId_v2, NOT_FOUND);
}

/* ---- identity ---- */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, uint32_t length)
{
    DEVICE_CALL(nvmlDeviceGetName, device, ON_MIG);
    DONE(copy_string(out, length, call.mig ? call.mig->name : call.gpu->name));
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, uint32_t length)
{
    DEVICE_CALL(nvmlDeviceGetUUID, device, ON_MIG);
    DONE(copy_string(out, length, call.mig ? call.mig->uuid : call.gpu->uuid));
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetIndex, device, ON_MIG);
    uint32_t index;
    if (!index_of_slot(call.state, call.slot, &index))
        DONE(GPU_IS_LOST);
    unsigned kind;
    uint32_t slot, mig, generation;
    handle_open(device, &kind, &slot, &mig, &generation);
    WRITE(out, call.mig ? mig : index);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *out)
{
    DEVICE_CALL(nvmlDeviceGetPciInfo_v3, device, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    memset(out, 0, sizeof *out);
    const struct fnv_gpu *gpu = call.gpu;
    bus_id(gpu, out->bus_id, sizeof out->bus_id);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
             gpu->pci_domain & 0xffffu, gpu->pci_bus & 255u, gpu->pci_device & 31u);
    out->domain = gpu->pci_domain;
    out->bus = gpu->pci_bus;
    out->device = gpu->pci_device;
    out->device_id = gpu->pci_device_id;
    out->subsystem_id = gpu->pci_subsystem_id;
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE_CALL(nvmlDeviceGetCudaComputeCapability, device, ON_MIG);
    if (!major || !minor)
        DONE(INVALID_ARGUMENT);
    *major = (int)signal_u32(&call, SIG_cc_major);
    *minor = (int)signal_u32(&call, SIG_cc_minor);
    DONE(SUCCESS);
}

GET_STRING(nvmlDeviceGetSerial, serial, 0)
GET_STRING(nvmlDeviceGetVbiosVersion, vbios, 0)
GET_STRING(nvmlDeviceGetBoardPartNumber, part, 0)
GET_U32(nvmlDeviceGetMinorNumber, minor_number, 0)
GET_U32(nvmlDeviceGetBrand, brand, ON_MIG)
GET_U32(nvmlDeviceGetArchitecture, architecture, ON_MIG)
GET_U32(nvmlDeviceGetBoardId, board_id, 0)
GET_U32(nvmlDeviceGetMultiGpuBoard, multi_gpu_board, 0)
GET_U32(nvmlDeviceGetModuleId, module_id, 0)
GET_U32(nvmlDeviceGetIrqNum, irq, 0)
GET_U32(nvmlDeviceGetNumGpuCores, gpu_cores, NOT_ON_PARENT)
GET_U32(nvmlDeviceGetMemoryBusWidth, memory_bus_width, 0)
GET_U32(nvmlDeviceGetNumaNodeId, numa_node, 0)
GET_U32(nvmlDeviceGetPersistenceMode, persistence, 0)
GET_U32(nvmlDeviceGetComputeMode, compute_mode, 0)
GET_U32(nvmlDeviceGetDisplayActive, display_active, 0)
GET_U32(nvmlDeviceGetDisplayMode, display_mode, 0)
GET_U32(nvmlDeviceGetPowerManagementMode, power_management, 0)

static void copy_mask(uint64_t *out, uint32_t words, const uint64_t mask[8])
{
    for (uint32_t i = 0; i < words; i++)
        out[i] = i < 8 ? mask[i] : 0;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, uint32_t words, uint64_t *out)
{
    DEVICE_CALL(nvmlDeviceGetCpuAffinity, device, ON_MIG);
    if (!words || !out)
        DONE(INVALID_ARGUMENT);
    copy_mask(out, words, call.gpu->cpu_affinity);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, uint32_t words,
                                                 uint64_t *out, uint32_t scope)
{
    DEVICE_CALL(nvmlDeviceGetCpuAffinityWithinScope, device, ON_MIG);
    if (!words || !out || scope > 1)
        DONE(INVALID_ARGUMENT);
    copy_mask(out, words, call.gpu->cpu_affinity);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, uint32_t words, uint64_t *out,
                                         uint32_t scope)
{
    DEVICE_CALL(nvmlDeviceGetMemoryAffinity, device, ON_MIG);
    if (!words || !out || scope > 1)
        DONE(INVALID_ARGUMENT);
    copy_mask(out, words, call.gpu->memory_affinity);
    DONE(SUCCESS);
}

/* ---- activity, clocks, power, heat ---- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *out)
{
    DEVICE_CALL(nvmlDeviceGetUtilizationRates, device, NOT_ON_PARENT);
    struct utilization value = {signal_u32(&call, SIG_util_gpu), signal_u32(&call, SIG_util_memory)};
    WRITE(out, value);
}

GET_UTIL(nvmlDeviceGetEncoderUtilization, util_encoder)
GET_UTIL(nvmlDeviceGetDecoderUtilization, util_decoder)
GET_UTIL(nvmlDeviceGetJpgUtilization, util_jpg)
GET_UTIL(nvmlDeviceGetOfaUtilization, util_ofa)

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, uint32_t domain, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetClockInfo, device, 0);
    if (domain > 3)
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_clock_graphics_mhz + domain));
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, uint32_t domain, uint32_t id, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetClock, device, 0);
    if (domain > 3 || id > 3)
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_clock_graphics_mhz + domain));
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, uint32_t domain, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetMaxClockInfo, device, 0);
    if (domain > 3)
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_clock_max_graphics_mhz + domain));
}

GET_U64(nvmlDeviceGetCurrentClocksEventReasons, event_reasons, 0)
GET_U64(nvmlDeviceGetCurrentClocksThrottleReasons, event_reasons, 0)
GET_U64(nvmlDeviceGetSupportedClocksEventReasons, event_reasons_supported, 0)
GET_U64(nvmlDeviceGetSupportedClocksThrottleReasons, event_reasons_supported, 0)

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, uint32_t policy,
                                          struct violation_time *out)
{
    DEVICE_CALL(nvmlDeviceGetViolationStatus, device, 0);
    uint32_t signal;
    switch (policy) {
    case 0: signal = SIG_throttle_power_ns; break;
    case 1: signal = SIG_throttle_sw_thermal_ns; break;
    case 2: signal = SIG_throttle_sync_boost_ns; break;
    case 3: signal = SIG_throttle_board_limit_ns; break;
    case 4: signal = SIG_throttle_low_utilization_ns; break;
    case 5: signal = SIG_throttle_reliability_ns; break;
    case 10: signal = SIG_throttle_app_clocks_ns; break;
    case 11: signal = SIG_throttle_base_clocks_ns; break;
    default: DONE(INVALID_ARGUMENT);
    }
    struct violation_time value = {gpu_now_us(call.state, call.gpu), signal_u64(&call, signal)};
    WRITE(out, value);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, uint32_t sensor, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetTemperature, device, 0);
    if (sensor != 0)
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_temp_gpu_c));
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature_v1 *out)
{
    DEVICE_CALL(nvmlDeviceGetTemperatureV, device, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    if (out->version != STRUCT_VERSION(struct temperature_v1, 1u))
        DONE(ARGUMENT_VERSION_MISMATCH);
    if (out->sensor != 0)
        DONE(INVALID_ARGUMENT);
    out->celsius = (int32_t)signal_u32(&call, SIG_temp_gpu_c);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, struct margin_v1 *out)
{
    DEVICE_CALL(nvmlDeviceGetMarginTemperature, device, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    if (out->version != STRUCT_VERSION(struct margin_v1, 1u))
        DONE(ARGUMENT_VERSION_MISMATCH);
    out->celsius = (int32_t)signal_u32(&call, SIG_temp_margin_c);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, uint32_t kind, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetTemperatureThreshold, device, 0);
    if (kind > 7)
        DONE(INVALID_ARGUMENT);
    uint32_t value = signal_u32(&call, SIG_temp_shutdown_c + kind);
    if (value == 0) /* a part without that threshold */
        DONE(NOT_SUPPORTED);
    WRITE(out, value);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, uint32_t *min,
                                                          uint32_t *max)
{
    DEVICE_CALL(nvmlDeviceGetPowerManagementLimitConstraints, device, 0);
    if (!min)
        DONE(INVALID_ARGUMENT);
    *min = signal_u32(&call, SIG_power_limit_min_mw);
    WRITE(max, signal_u32(&call, SIG_power_limit_max_mw));
}

GET_U32(nvmlDeviceGetPowerUsage, power_mw, 0)
GET_U32(nvmlDeviceGetPowerManagementLimit, power_limit_mw, 0)
GET_U32(nvmlDeviceGetPowerManagementDefaultLimit, power_limit_default_mw, 0)
GET_U32(nvmlDeviceGetEnforcedPowerLimit, power_limit_enforced_mw, 0)
GET_U64(nvmlDeviceGetTotalEnergyConsumption, energy_mj, 0)
GET_U32(nvmlDeviceGetPerformanceState, pstate, 0)
GET_U32(nvmlDeviceGetPowerState, pstate, 0)
GET_U32(nvmlDeviceGetNumFans, fans, 0)
GET_U32(nvmlDeviceGetFanSpeed, fan_percent, 0)

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, uint32_t fan, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetFanSpeed_v2, device, 0);
    if (fan >= signal_u32(&call, SIG_fans))
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_fan_percent));
}

/* ---- PCIe and NVLink ---- */

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, uint32_t counter, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetPcieThroughput, device, 0);
    if (counter > 1)
        DONE(INVALID_ARGUMENT);
    WRITE(out, signal_u32(&call, SIG_pcie_tx_kbps + counter));
}

GET_U32(nvmlDeviceGetPcieReplayCounter, pcie_replays, 0)
GET_U32(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen, 0)
GET_U32(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max, 0)
GET_U32(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_gen_gpu_max, 0)
GET_U32(nvmlDeviceGetCurrPcieLinkWidth, pcie_width, 0)
GET_U32(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max, 0)
GET_U32(nvmlDeviceGetPcieSpeed, pcie_speed_mbps, 0)

#define LINK(number)                                     \
    if ((number) >= call.gpu->link_count)                \
    DONE(INVALID_ARGUMENT);                              \
    const struct fnv_link *link = &call.gpu->links[number]

static uint64_t link_u64(const struct call *call, const struct fnv_link *link, uint32_t line)
{
    return line_u64(call->gpu, &link->lines[line], gpu_now_ns(call->state, call->gpu));
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, uint32_t number, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkState, device, 0);
    LINK(number);
    WRITE(out, (uint32_t)link_u64(&call, link, LINK_state));
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, uint32_t number, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkVersion, device, 0);
    LINK(number);
    WRITE(out, (uint32_t)link_u64(&call, link, LINK_version));
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, uint32_t number,
                                           uint32_t capability, uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkCapability, device, 0);
    LINK(number);
    (void)link;
    if (capability > 5)
        DONE(INVALID_ARGUMENT);
    WRITE(out, 1);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, uint32_t number, uint32_t counter,
                                             uint64_t *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkErrorCounter, device, 0);
    LINK(number);
    if (counter > 4) /* replay, recovery, CRC flit, CRC data, ECC data: the lines' order */
        DONE(INVALID_ARGUMENT);
    WRITE(out, link_u64(&call, link, LINK_replay + counter));
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, uint32_t number,
                                                 uint32_t *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkRemoteDeviceType, device, 0);
    LINK(number);
    WRITE(out, link->remote_type);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, uint32_t number,
                                                 struct pci_info *out)
{
    DEVICE_CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2, device, 0);
    LINK(number);
    if (!out)
        DONE(INVALID_ARGUMENT);
    memset(out, 0, sizeof *out);
    out->domain = link->remote_domain;
    out->bus = link->remote_bus;
    out->device = link->remote_device;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 255u,
             out->device & 31u);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
             out->domain & 0xffffu, out->bus & 255u, out->device & 31u);
    DONE(SUCCESS);
}

/* ---- ECC, retired pages, remapped rows ---- */

static bool ecc_off(const struct call *call)
{
    return signal_u32(call, SIG_ecc_mode) == 0;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, uint32_t *now, uint32_t *pending)
{
    DEVICE_CALL(nvmlDeviceGetEccMode, device, 0);
    if (!now)
        DONE(INVALID_ARGUMENT);
    *now = signal_u32(&call, SIG_ecc_mode);
    WRITE(pending, signal_u32(&call, SIG_ecc_mode_pending));
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, uint32_t kind, uint32_t scope,
                                         uint64_t *out)
{
    DEVICE_CALL(nvmlDeviceGetTotalEccErrors, device, 0);
    if (kind > 1 || scope > 1)
        DONE(INVALID_ARGUMENT);
    if (ecc_off(&call))
        DONE(NOT_SUPPORTED);
    WRITE(out, signal_u64(&call, SIG_ecc_corrected_volatile + kind * 2 + scope));
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, uint32_t kind, uint32_t scope,
                                             uint32_t where, uint64_t *out)
{
    DEVICE_CALL(nvmlDeviceGetMemoryErrorCounter, device, ON_MIG);
    if (kind > 1 || scope > 1 || where > 7)
        DONE(INVALID_ARGUMENT);
    if (ecc_off(&call))
        DONE(NOT_SUPPORTED);
    if (call.mig) { /* only the volatile uncorrected SRAM counter exists per instance */
        if (kind != 1 || scope != 0 || where != 7)
            DONE(NOT_SUPPORTED);
        WRITE(out, line_u64(call.gpu, &call.mig->lines[MIG_sram_uncorrected],
                            gpu_now_ns(call.state, call.gpu)));
    }
    uint32_t first = SIG_ecc_corrected_volatile_l1 + (kind * 2 + scope) * 8;
    WRITE(out, signal_u64(&call, first + where));
}

struct sram_status {
    uint32_t version;
    uint64_t counts[11];
    uint32_t threshold_exceeded;
};

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, struct sram_status *out)
{
    DEVICE_CALL(nvmlDeviceGetSramEccErrorStatus, device, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    if (out->version != STRUCT_VERSION(struct sram_status, 1u))
        DONE(ARGUMENT_VERSION_MISMATCH);
    if (ecc_off(&call))
        DONE(NOT_SUPPORTED);
    uint64_t aggregate = signal_u64(&call, SIG_ecc_uncorrected_aggregate_sram);
    memset(out->counts, 0, sizeof out->counts);
    out->counts[0] = aggregate;
    out->counts[2] = signal_u64(&call, SIG_ecc_corrected_aggregate_sram);
    out->counts[3] = signal_u64(&call, SIG_ecc_uncorrected_volatile_sram);
    out->counts[5] = signal_u64(&call, SIG_ecc_corrected_volatile_sram);
    out->counts[7] = aggregate;
    out->threshold_exceeded = 0;
    DONE(SUCCESS);
}

static nvmlReturn_t retired(struct call *call, uint32_t cause, uint32_t *count, uint64_t *addresses,
                            uint64_t *times)
{
    if (cause > 1 || !count)
        return INVALID_ARGUMENT;
    uint32_t have = call->gpu->page_count[cause];
    uint32_t room = *count;
    *count = have;
    if (room < have || (have && !addresses))
        return INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < have; i++) {
        addresses[i] = call->gpu->pages[cause][i];
        if (times)
            times[i] = call->gpu->page_times[cause][i];
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, uint32_t cause, uint32_t *count,
                                       uint64_t *addresses)
{
    DEVICE_CALL(nvmlDeviceGetRetiredPages, device, 0);
    DONE(retired(&call, cause, count, addresses, NULL));
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, uint32_t cause, uint32_t *count,
                                          uint64_t *addresses, uint64_t *times)
{
    DEVICE_CALL(nvmlDeviceGetRetiredPages_v2, device, 0);
    DONE(retired(&call, cause, count, addresses, times));
}

GET_U32(nvmlDeviceGetRetiredPagesPendingStatus, retired_pending, 0)

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, uint32_t *corrected,
                                       uint32_t *uncorrected, uint32_t *pending, uint32_t *failed)
{
    DEVICE_CALL(nvmlDeviceGetRemappedRows, device, NOT_WITH_SETS);
    if (!corrected || !uncorrected || !pending)
        DONE(INVALID_ARGUMENT);
    *corrected = signal_u32(&call, SIG_remap_corrected);
    *uncorrected = signal_u32(&call, SIG_remap_uncorrected);
    *pending = signal_u32(&call, SIG_remap_pending);
    WRITE(failed, signal_u32(&call, SIG_remap_failure));
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, struct row_histogram *out)
{
    DEVICE_CALL(nvmlDeviceGetRowRemapperHistogram, device, NOT_WITH_SETS);
    struct row_histogram value = {
        signal_u32(&call, SIG_remap_hist_max),     signal_u32(&call, SIG_remap_hist_high),
        signal_u32(&call, SIG_remap_hist_partial), signal_u32(&call, SIG_remap_hist_low),
        signal_u32(&call, SIG_remap_hist_none),
    };
    WRITE(out, value);
}
