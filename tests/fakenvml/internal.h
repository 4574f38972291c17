/* What the parts of the fake library share: a minimal NVML ABI, the entry and exit of every call,
 * handles, and readers of the scenario.
 *
 * The ABI is declared from the struct layouts of pynvml (nvidia-ml-py, BSD), not from nvml.h.
 */
#ifndef FAKENVML_INTERNAL_H
#define FAKENVML_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generated.h"
#include "state.h"

typedef int nvmlReturn_t;
typedef uint64_t handle_t; /* opaque pointers of NVML: never dereferenced by a caller */

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    MEMORY = 20,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { VALUE_DOUBLE, VALUE_UINT, VALUE_ULONG, VALUE_ULL, VALUE_SLL, VALUE_INT, VALUE_USHORT };

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct memory_v1 {
    uint64_t total, free, used;
};
struct memory_v2 {
    uint32_t version, pad;
    uint64_t total, reserved, free, used;
};
struct bar1_memory {
    uint64_t total, free, used;
};
struct utilization {
    uint32_t gpu, memory;
};
struct sample {
    uint64_t ts_us, bits;
};
struct violation_time {
    uint64_t reference_us, violation_ns;
};
struct field_value {
    uint32_t id, scope;
    int64_t ts_us, latency_us;
    uint32_t value_type;
    int32_t ret;
    uint64_t bits;
};
struct process_info {
    uint32_t pid, pad;
    uint64_t memory;
    uint32_t gpu_instance, compute_instance;
};
struct process_utilization {
    uint32_t pid, pad;
    uint64_t ts_us;
    uint32_t sm, mem, enc, dec;
};
struct process_utilization_v1 {
    uint64_t ts_us;
    uint32_t pid, sm, mem, enc, dec, jpg, ofa, pad;
};
struct processes_utilization {
    uint32_t version, count;
    uint64_t last_seen_us;
    struct process_utilization_v1 *samples;
};
struct event_data {
    handle_t device;
    uint64_t type, data;
    uint32_t gpu_instance, compute_instance;
};
struct gpm_metric {
    uint32_t id;
    int32_t ret;
    double value;
    const char *short_name, *long_name, *unit;
};
struct gpm_metrics {
    uint32_t version, count;
    handle_t sample1, sample2;
    struct gpm_metric metrics[];
};
struct gpm_support {
    uint32_t version, supported;
};
struct temperature_v1 {
    uint32_t version, sensor;
    int32_t celsius;
};
struct margin_v1 {
    uint32_t version;
    int32_t celsius;
};
struct device_attributes {
    uint32_t counts[8];
    uint64_t memory_mb;
};
struct row_histogram {
    uint32_t max, high, partial, low, none;
};

_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(struct process_info) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(struct process_utilization) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(struct process_utilization_v1) == 40, "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(struct processes_utilization) == 24, "nvmlProcessesUtilizationInfo_v1_t");
_Static_assert(sizeof(struct event_data) == 32, "nvmlEventData_t");
_Static_assert(sizeof(struct gpm_metric) == 40, "nvmlGpmMetric_t");
_Static_assert(offsetof(struct gpm_metrics, metrics) == 24, "nvmlGpmMetricsGet_t");
_Static_assert(sizeof(struct temperature_v1) == 12, "nvmlTemperature_v1_t");
_Static_assert(sizeof(struct device_attributes) == 40, "nvmlDeviceAttributes_t");

#define STRUCT_VERSION(type, number) ((uint32_t)(sizeof(type) | ((number) << 24)))

/* ---- calls ---- */

enum {
    ON_MIG = 1,         /* answers on a MIG device handle (others say NOT_SUPPORTED) */
    NOT_ON_PARENT = 2,  /* NOT_SUPPORTED on a GPU in MIG mode */
    NOT_WITH_SETS = 4,  /* NOT_SUPPORTED on a GPU that has MIG instances */
    IS_INIT = 8,        /* allowed before init */
    NO_STATE_CODE = 16, /* ignores the node-wide and per-GPU codes */
};

struct call {
    struct fnv_state *state;
    struct fnv_gpu *gpu; /* NULL for calls without a device */
    struct fnv_mig *mig; /* not NULL on a MIG device handle */
    struct fnv_cell *cell;
    uint64_t start_ns; /* 0 unless the log is on */
    uint32_t function;
    uint32_t column;
    uint32_t slot;
    nvmlReturn_t rc;
};

/* Counts the call, applies rules and the scenario's codes; false: answer call->rc at once. */
bool call_enter(struct call *call, uint32_t function, handle_t device, unsigned flags);
bool call_enter_column(struct call *call, uint32_t function, uint32_t column, unsigned flags);
nvmlReturn_t call_leave(struct call *call, nvmlReturn_t rc);

#define DEVICE_CALL(fn, device, flags)                          \
    struct call call;                                           \
    if (!call_enter(&call, FN_##fn, (handle_t)(device), flags)) \
    return call_leave(&call, call.rc)
#define SYSTEM_CALL(fn, flags)                                       \
    struct call call;                                                \
    if (!call_enter_column(&call, FN_##fn, FNV_NO_GPU, flags)) \
    return call_leave(&call, call.rc)
#define DONE(rc) return call_leave(&call, (rc))
#define WRITE(out, value)                \
    do {                                 \
        if (!(out))                      \
            DONE(INVALID_ARGUMENT);      \
        *(out) = (value);                \
        DONE(SUCCESS);                   \
    } while (0)

/* ---- handles: magic 16 | kind 4 | slot 6 | index 6 | generation 32 ---- */

enum { KIND_DEVICE = 1, KIND_MIG = 2, KIND_SET = 3, KIND_GPM = 4 };
handle_t handle_make(const struct fnv_state *state, unsigned kind, uint32_t slot, uint32_t index);
bool handle_open(handle_t handle, unsigned *kind, uint32_t *slot, uint32_t *index,
                 uint32_t *generation);
bool handle_current(const struct fnv_state *state, uint32_t generation);

/* ---- scenario ---- */

struct fnv_state *state_current(void);
int64_t state_now_ns(const struct fnv_state *state);
int64_t gpu_now_ns(const struct fnv_state *state, const struct fnv_gpu *gpu);
uint64_t gpu_now_us(const struct fnv_state *state, const struct fnv_gpu *gpu);
uint64_t monotonic_ns(void);
/* Sleeps until the controller changes something or the time is over; never misses the end. */
void state_wait(struct fnv_state *state, uint32_t seen, uint64_t max_ns);

uint32_t gpu_read_begin(const struct fnv_gpu *gpu);
bool gpu_read_retry(const struct fnv_gpu *gpu, uint32_t seq);

double line_value(const struct fnv_line *line, int64_t now_ns);
double line_double(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns);
uint64_t line_u64(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns);
uint64_t line_bits(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns,
                   uint32_t value_type);
uint64_t signal_u64(const struct call *call, uint32_t signal);
uint32_t signal_u32(const struct call *call, uint32_t signal);

bool index_of_slot(const struct fnv_state *state, uint32_t slot, uint32_t *index);
nvmlReturn_t copy_string(char *out, uint32_t length, const char *text);
void bus_id(const struct fnv_gpu *gpu, char *out, size_t size);

/* ---- life cycle hooks of the other parts, called with the last shutdown ---- */

void gpm_at_shutdown(struct fnv_state *state);
void events_at_shutdown(struct fnv_state *state);

#define COUNT(member) __atomic_fetch_add(&(member), 1, __ATOMIC_RELAXED)

#endif
