/* Field values, sample rings and GPM: the batched and the integrating interfaces. */
#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SCOPE_ALL 0xffffffffu
#define CANARY 0xa5a5a5a5a5a5a5a5ULL

/* ---- field values ---- */

static nvmlReturn_t field_bits(const struct call *call, const struct fnv_field *field,
                               uint32_t scope, uint64_t *bits)
{
    const struct fnv_gpu *gpu = call->gpu;
    int64_t now = gpu_now_ns(call->state, gpu);
    if (field->source == FNV_FIELD_LINE) {
        uint32_t line = field->line;
        /* Power fields take a scope: 0 GPU, 1 module, 2 memory, 3 GPU base. */
        if (scope && (line == SIG_power_mw || line == SIG_power_instant_mw)) {
            if (scope > 3)
                return INVALID_ARGUMENT;
            if (scope < 3)
                line = scope == 1 ? SIG_power_module_mw : SIG_power_memory_mw;
            if (line_u64(gpu, &gpu->lines[line], now) == 0)
                return NOT_SUPPORTED;
        }
        *bits = line_bits(gpu, &gpu->lines[line], now, field->value_type);
        return SUCCESS;
    }
    if (gpu->link_count == 0)
        return NOT_SUPPORTED;
    uint32_t link = field->source == FNV_FIELD_LINK_FIXED ? field->arg : scope;
    if (field->source == FNV_FIELD_LINK_SUM || link == SCOPE_ALL) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < gpu->link_count; i++)
            sum += line_u64(gpu, &gpu->links[i].lines[field->line], now);
        *bits = sum;
        return SUCCESS;
    }
    if (link >= gpu->link_count)
        return INVALID_ARGUMENT;
    *bits = line_bits(gpu, &gpu->links[link].lines[field->line], now, field->value_type);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(handle_t device, int count, struct field_value *values)
{
    DEVICE_CALL(nvmlDeviceGetFieldValues, device, ON_MIG);
    if (count <= 0 || !values)
        DONE(INVALID_ARGUMENT);
    bool any = false;
    int64_t now_us = (int64_t)gpu_now_us(call.state, call.gpu);
    for (int i = 0; i < count; i++) {
        struct field_value *out = &values[i];
        uint64_t bits = call.state->canary ? CANARY : 0;
        out->value_type = 0;
        out->ret = INVALID_ARGUMENT;
        out->ts_us = now_us;
        out->latency_us = 0;
        if (out->id < FNV_FIELDS) {
            const struct fnv_field *field = &call.gpu->fields[out->id];
            out->ret = call.mig ? NOT_SUPPORTED : field->ret;
            if (field->ts_mode == FNV_TS_FIXED)
                out->ts_us = field->ts_us;
            if (out->ret == SUCCESS)
                out->ret = field_bits(&call, field, out->scope, &bits);
            if (out->ret == SUCCESS) {
                out->value_type = field->value_type;
                out->latency_us = 10;
                any = true;
            }
        }
        out->bits = bits;
    }
    DONE(any ? SUCCESS : call.state->fields_all_failed_code);
}

nvmlReturn_t nvmlDeviceClearFieldValues(handle_t device, int count, struct field_value *values)
{
    DEVICE_CALL(nvmlDeviceClearFieldValues, device, 0);
    if (count <= 0 || !values)
        DONE(INVALID_ARGUMENT);
    struct fnv_gpu *gpu = call.gpu;
    int64_t now = gpu_now_ns(call.state, gpu);
    for (int i = 0; i < count; i++) {
        struct field_value *out = &values[i];
        if (out->id >= FNV_FIELDS) {
            out->ret = INVALID_ARGUMENT;
            continue;
        }
        const struct fnv_field *field = &gpu->fields[out->id];
        out->ret = field->ret;
        if (field->ret)
            continue;
        /* The one write of the library to a line: tests must not set it at the same moment. */
        __atomic_fetch_add(&gpu->seq, 1, __ATOMIC_ACQ_REL);
        if (field->source == FNV_FIELD_LINE) {
            gpu->lines[field->line].base = 0;
            gpu->lines[field->line].t_ref_ns = now;
        } else {
            for (uint32_t link = 0; link < gpu->link_count; link++) {
                gpu->links[link].lines[field->line].base = 0;
                gpu->links[link].lines[field->line].t_ref_ns = now;
            }
        }
        __atomic_fetch_add(&gpu->seq, 1, __ATOMIC_ACQ_REL);
    }
    DONE(SUCCESS);
}

/* ---- sample rings ---- */

static uint32_t make_samples(const struct call *call, const struct fnv_ring *ring,
                             struct sample *out, uint64_t after_us)
{
    uint64_t period = ring->auto_period_us;
    uint64_t now_us = gpu_now_us(call->state, call->gpu);
    uint64_t first = now_us > period * FNV_SAMPLES ? now_us - period * FNV_SAMPLES : 0;
    if (first < after_us)
        first = after_us;
    uint32_t count = 0;
    const struct fnv_line *line = &call->gpu->lines[ring->auto_signal];
    for (uint64_t ts = (first / period + 1) * period; ts <= now_us && count < FNV_SAMPLES;
         ts += period) {
        out[count].ts_us = ts;
        out[count++].bits = line_bits(call->gpu, line, (int64_t)ts * 1000, ring->value_type);
    }
    return count;
}

static uint32_t read_ring(const struct call *call, uint32_t type, uint64_t after_us,
                          struct sample *out)
{
    const struct fnv_ring *ring = &call->gpu->rings[type];
    if (ring->auto_period_us)
        return make_samples(call, ring, out, after_us);
    uint32_t count, seq;
    do {
        seq = gpu_read_begin(call->gpu);
        count = 0;
        for (uint32_t i = 0; i < ring->count && i < FNV_SAMPLES; i++)
            if (ring->samples[i].ts_us > after_us || after_us == 0) {
                out[count].ts_us = ring->samples[i].ts_us;
                out[count++].bits = ring->samples[i].bits;
            }
    } while (gpu_read_retry(call->gpu, seq));
    return count;
}

nvmlReturn_t nvmlDeviceGetSamples(handle_t device, uint32_t type, uint64_t after_us,
                                  uint32_t *value_type, uint32_t *count, struct sample *samples)
{
    /* Power samples exist under MIG, utilisation samples do not. */
    DEVICE_CALL(nvmlDeviceGetSamples, device, type == 0 || type == 7 ? 0 : NOT_ON_PARENT);
    if (type >= FNV_SAMPLE_TYPES || !value_type || !count)
        DONE(INVALID_ARGUMENT);
    struct sample found[FNV_SAMPLES];
    uint32_t have = read_ring(&call, type, after_us, found);
    *value_type = call.gpu->rings[type].value_type;
    if (have == 0)
        DONE(NOT_FOUND);
    if (!samples) {
        *count = FNV_SAMPLES; /* the size of the buffer, not of the answer */
        DONE(SUCCESS);
    }
    if (*count == 0)
        DONE(INVALID_ARGUMENT);
    if (have > *count)
        have = *count;
    memcpy(samples, found, have * sizeof *found);
    *count = have;
    DONE(SUCCESS);
}

/* ---- GPM ---- */

#define GPM_SLOTS 1024

struct gpm_sample {
    bool filled;
    uint32_t column;
    uint32_t driver_generation;
    int64_t at_ns;
    double integrals[FNV_GPM];
};

static pthread_mutex_t gpm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpm_sample *samples[GPM_SLOTS];
static uint32_t serials[GPM_SLOTS];

/* The handle names a slot and its serial number, so a freed sample is recognised for ever. */
static handle_t sample_handle(uint32_t slot)
{
    return 0x4e56ULL << 48 | (uint64_t)KIND_GPM << 44 | (uint64_t)slot << 32 | serials[slot];
}

static struct gpm_sample *sample_find(struct fnv_state *state, handle_t handle, uint32_t *slot)
{
    *slot = (uint32_t)(handle >> 32 & 0xfffu);
    if (handle >> 48 != 0x4e56 || (handle >> 44 & 15u) != KIND_GPM || *slot >= GPM_SLOTS)
        return NULL;
    if (serials[*slot] != (uint32_t)handle || !samples[*slot]) {
        COUNT(state->misuse.gpm_use_after_free);
        return NULL;
    }
    return samples[*slot];
}

void gpm_at_shutdown(struct fnv_state *state)
{
    pthread_mutex_lock(&gpm_lock);
    for (uint32_t i = 0; i < GPM_SLOTS; i++)
        if (samples[i]) {
            COUNT(state->misuse.gpm_leaked_at_shutdown);
            __atomic_fetch_sub(&state->live_gpm_samples, 1, __ATOMIC_RELAXED);
            free(samples[i]);
            samples[i] = NULL;
            serials[i]++;
        }
    pthread_mutex_unlock(&gpm_lock);
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(handle_t device, struct gpm_support *out)
{
    DEVICE_CALL(nvmlGpmQueryDeviceSupport, device, ON_MIG);
    if (!out)
        DONE(INVALID_ARGUMENT);
    if (out->version != 1)
        DONE(ARGUMENT_VERSION_MISMATCH);
    out->supported = signal_u32(&call, SIG_gpm_supported);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlGpmQueryIfStreamingEnabled(handle_t device, uint32_t *out)
{
    DEVICE_CALL(nvmlGpmQueryIfStreamingEnabled, device, ON_MIG);
    if (!signal_u32(&call, SIG_gpm_supported))
        DONE(NOT_SUPPORTED);
    if (!out)
        DONE(INVALID_ARGUMENT);
    *out = signal_u32(&call, SIG_gpm_streaming);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlGpmSetStreamingEnabled(handle_t device, uint32_t on)
{
    DEVICE_CALL(nvmlGpmSetStreamingEnabled, device, ON_MIG);
    if (!signal_u32(&call, SIG_gpm_supported))
        DONE(NOT_SUPPORTED);
    __atomic_fetch_add(&call.gpu->seq, 1, __ATOMIC_ACQ_REL);
    call.gpu->lines[SIG_gpm_streaming].base = on ? 1 : 0;
    __atomic_fetch_add(&call.gpu->seq, 1, __ATOMIC_ACQ_REL);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlGpmSampleAlloc(handle_t *out)
{
    SYSTEM_CALL(nvmlGpmSampleAlloc, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    nvmlReturn_t rc = MEMORY;
    pthread_mutex_lock(&gpm_lock);
    for (uint32_t i = 0; i < GPM_SLOTS; i++)
        if (!samples[i]) {
            samples[i] = calloc(1, sizeof **samples);
            if (samples[i]) {
                *out = sample_handle(i);
                __atomic_fetch_add(&call.state->live_gpm_samples, 1, __ATOMIC_RELAXED);
                rc = SUCCESS;
            }
            break;
        }
    pthread_mutex_unlock(&gpm_lock);
    DONE(rc);
}

nvmlReturn_t nvmlGpmSampleFree(handle_t handle)
{
    SYSTEM_CALL(nvmlGpmSampleFree, NO_STATE_CODE);
    nvmlReturn_t rc = INVALID_ARGUMENT;
    uint32_t slot;
    pthread_mutex_lock(&gpm_lock);
    if (sample_find(call.state, handle, &slot)) {
        free(samples[slot]);
        samples[slot] = NULL;
        serials[slot]++;
        __atomic_fetch_sub(&call.state->live_gpm_samples, 1, __ATOMIC_RELAXED);
        rc = SUCCESS;
    }
    pthread_mutex_unlock(&gpm_lock);
    DONE(rc);
}

static nvmlReturn_t take_sample(const struct call *call, const struct fnv_mig *mig,
                                uint32_t column, handle_t handle)
{
    if (!signal_u32(call, SIG_gpm_supported))
        return NOT_SUPPORTED;
    const struct fnv_gpu *gpu = call->gpu;
    const struct fnv_gpm *metrics = mig ? mig->gpm : gpu->gpm;
    nvmlReturn_t rc = INVALID_ARGUMENT;
    uint32_t slot, seq;
    pthread_mutex_lock(&gpm_lock);
    struct gpm_sample *sample = sample_find(call->state, handle, &slot);
    if (sample) {
        do {
            seq = gpu_read_begin(gpu);
            sample->at_ns =
                gpu->gpm_frozen_ns ? gpu->gpm_frozen_ns : gpu_now_ns(call->state, gpu);
            for (uint32_t i = 0; i < FNV_GPM; i++)
                if (metrics[i].ret == SUCCESS)
                    sample->integrals[i] = line_value(&metrics[i].integral, sample->at_ns);
        } while (gpu_read_retry(gpu, seq));
        sample->filled = true;
        sample->column = column;
        sample->driver_generation = call->state->driver_generation;
        rc = SUCCESS;
    }
    pthread_mutex_unlock(&gpm_lock);
    return rc;
}

nvmlReturn_t nvmlGpmSampleGet(handle_t device, handle_t handle)
{
    DEVICE_CALL(nvmlGpmSampleGet, device, ON_MIG);
    DONE(take_sample(&call, call.mig, call.column, handle));
}

nvmlReturn_t nvmlGpmMigSampleGet(handle_t device, uint32_t gpu_instance, handle_t handle)
{
    DEVICE_CALL(nvmlGpmMigSampleGet, device, 0);
    if (!call.gpu->mig_current)
        DONE(NOT_SUPPORTED);
    for (uint32_t i = 0; i < FNV_MIGS; i++) {
        const struct fnv_mig *mig = &call.gpu->migs[i];
        if (mig->present && mig->gpu_instance == gpu_instance)
            DONE(take_sample(&call, mig, FNV_GPUS + 1 + call.slot * FNV_MIGS + i, handle));
    }
    DONE(INVALID_ARGUMENT);
}

static void metric_between(const struct fnv_gpm *metrics, const struct gpm_sample *first,
                           const struct gpm_sample *second, struct gpm_metric *out)
{
    if (out->id == 0 || out->id >= FNV_GPM) {
        out->ret = INVALID_ARGUMENT;
        return;
    }
    const struct fnv_gpm *metric = &metrics[out->id];
    out->ret = metric->ret;
    out->short_name = "GPM";
    out->long_name = "GPM metric of the fake library";
    out->unit = out->id >= 20 && out->id < 30 ? "MB/s" : "%";
    if (metric->ret)
        return;
    double seconds = (double)(second->at_ns - first->at_ns) * 1e-9;
    if (metric->flags & FNV_GPM_OVERRIDE)
        out->value = metric->override_value;
    else if (seconds == 0.0)
        out->value = NAN;
    else
        out->value = (second->integrals[out->id] - first->integrals[out->id]) / seconds;
}

nvmlReturn_t nvmlGpmMetricsGet(struct gpm_metrics *query)
{
    /* The call names no device: it is counted on the column of its first sample. */
    struct fnv_state *state = state_current();
    struct gpm_sample *first = NULL, *second = NULL;
    uint32_t slot, column = FNV_NO_GPU;
    if (state && query) {
        pthread_mutex_lock(&gpm_lock);
        first = sample_find(state, query->sample1, &slot);
        second = sample_find(state, query->sample2, &slot);
        if (first && first->filled)
            column = first->column;
        pthread_mutex_unlock(&gpm_lock);
    }
    uint32_t gpu_slot = column > FNV_NO_GPU ? (column - FNV_GPUS - 1) / FNV_MIGS : column;
    struct call call;
    if (!call_enter_column(&call, FN_nvmlGpmMetricsGet, gpu_slot, 0))
        DONE(call.rc);
    if (!query)
        DONE(INVALID_ARGUMENT);
    if (query->version != 1)
        DONE(ARGUMENT_VERSION_MISMATCH);
    if (!call.gpu || query->count > 4096)
        DONE(INVALID_ARGUMENT);
    const struct fnv_gpm *metrics = call.gpu->gpm;
    if (column > FNV_NO_GPU)
        metrics = call.gpu->migs[(column - FNV_GPUS - 1) % FNV_MIGS].gpm;
    nvmlReturn_t rc = INVALID_ARGUMENT;
    pthread_mutex_lock(&gpm_lock); /* again: a delay or a hang must not hold it */
    first = sample_find(call.state, query->sample1, &slot);
    second = sample_find(call.state, query->sample2, &slot);
    if (first && second && first->filled && second->filled && first->column == second->column) {
        rc = first->at_ns == second->at_ns ? call.gpu->gpm_equal_code : SUCCESS;
        for (uint32_t i = 0; rc == SUCCESS && i < query->count; i++)
            metric_between(metrics, first, second, &query->metrics[i]);
    }
    pthread_mutex_unlock(&gpm_lock);
    DONE(rc);
}
