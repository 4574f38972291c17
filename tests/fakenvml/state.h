/* The scenario: one file, mapped by the library and by the Python controller.
 *
 * layout.py mirrors every struct here with ctypes; fakenvml_layout() exports sizes and offsets so
 * that a test can compare them.  Only fixed-width types, widest alignment 8, no implicit tails.
 *
 * Who writes what: the controller writes everything except the members marked "library", which
 * are only ever changed with atomic operations.
 */
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <stdint.h>

#define FNV_MAGIC 0x31304c4d564e4b46ULL
#define FNV_GPUS 16
#define FNV_FUNCS 512
#define FNV_MIGS 8
#define FNV_NO_GPU FNV_GPUS /* rule column of calls that name no device */
#define FNV_COLUMNS (FNV_GPUS + 1 + FNV_GPUS * FNV_MIGS)
#define FNV_RULES 4
#define FNV_SIGNALS 256
#define FNV_FIELDS 384
#define FNV_GPM 480
#define FNV_LINKS 18
#define FNV_LINK_LINES 16
#define FNV_MIG_LINES 8
#define FNV_PROCS 1024
#define FNV_PAGES 64
#define FNV_SAMPLE_TYPES 10
#define FNV_SAMPLES 120
#define FNV_EVENTS 1024
#define FNV_LOG 65536

/* value(now) = base + rate * (now - t_ref), rounded to the type asked for.  RAW lines carry bits
 * that a double cannot hold (ULLONG_MAX sentinels, a chosen NaN). */
enum { FNV_LINE_RAW = 1 };
struct fnv_line {
    double base;
    double rate;
    int64_t t_ref_ns;
    uint64_t raw;
    uint64_t wrap; /* modulus of a counter that wraps, 0 = none */
    uint32_t flags;
    uint32_t pad;
};

enum { FNV_RULE_NONE = 0, FNV_RULE_CODE = 1, FNV_RULE_DELAY = 2, FNV_RULE_HANG = 3 };
struct fnv_rule {
    uint64_t from_call; /* absolute number of the call, 1 = first, both ends included */
    uint64_t to_call;
    uint32_t kind; /* written last by the controller */
    uint32_t arg;  /* nvmlReturn, or microseconds */
};

/* One cell per function and column (GPU, none, MIG instance): looking a rule up is one index. */
struct fnv_cell {
    uint64_t calls; /* library */
    int32_t base_code;
    uint32_t base_delay_us;
    uint32_t armed;   /* rule slots in use, 0 on the fast path */
    uint32_t waiting; /* library: threads hanging here now */
    struct fnv_rule rules[FNV_RULES];
    uint64_t pad;
};

enum { FNV_FIELD_LINE = 0, FNV_FIELD_LINK = 1, FNV_FIELD_LINK_FIXED = 2, FNV_FIELD_LINK_SUM = 3 };
enum { FNV_TS_NOW = 0, FNV_TS_FIXED = 1 };
struct fnv_field {
    int32_t ret;
    uint32_t value_type;
    uint32_t source;
    uint32_t line; /* into gpu.lines, or into link.lines for the LINK sources */
    uint32_t arg;  /* link number for LINK_FIXED */
    uint32_t ts_mode;
    int64_t ts_us;
};

/* A GPM metric is the line of its integral: its rate is the value, a mean is a difference. */
enum { FNV_GPM_OVERRIDE = 1 };
struct fnv_gpm {
    struct fnv_line integral;
    double override_value;
    int32_t ret;
    uint32_t flags;
};

struct fnv_mig {
    uint32_t present;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t pad;
    char name[96];
    char uuid[80];
    uint32_t attributes[8]; /* order of the NVML struct */
    uint64_t memory_mb;
    struct fnv_line lines[FNV_MIG_LINES];
    struct fnv_gpm gpm[FNV_GPM];
};

struct fnv_link {
    uint32_t remote_domain;
    uint32_t remote_bus;
    uint32_t remote_device;
    uint32_t remote_type;
    struct fnv_line lines[FNV_LINK_LINES];
};

struct fnv_process {
    uint32_t pid;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t pad;
    uint64_t memory;
};

struct fnv_process_util {
    uint64_t ts_us;
    uint32_t auto_ts; /* timestamp is the time of the call */
    uint32_t pid;
    uint32_t sm;
    uint32_t mem;
    uint32_t enc;
    uint32_t dec;
    uint32_t jpg;
    uint32_t ofa;
};

struct fnv_sample {
    uint64_t ts_us;
    uint64_t bits;
};

struct fnv_ring {
    uint32_t count;
    uint32_t value_type;
    uint32_t auto_period_us; /* not 0: samples are made from auto_signal at read time */
    uint32_t auto_signal;
    struct fnv_sample samples[FNV_SAMPLES];
};

struct fnv_gpu {
    uint32_t seq; /* seqlock: odd while the controller writes */
    uint32_t present;
    int32_t dead_code; /* answered to every call on this GPU */
    uint32_t process_entry_bytes;
    char name[96];
    char uuid[80];
    char serial[32];
    char vbios[32];
    char part[32];
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t link_count;
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t mig_max;
    uint32_t mig_capable;
    uint64_t cpu_affinity[8];
    uint64_t memory_affinity[8];
    int64_t frozen_ns;    /* not 0: this GPU's values and timestamps stand still */
    int64_t ts_offset_us; /* added to emitted timestamps */
    int64_t gpm_frozen_ns;
    int32_t gpm_equal_code; /* MetricsGet on two samples of one instant: 0 = NaN per metric */
    uint32_t util_success_zero;
    uint32_t util_race; /* library counts down: second calls that answer INSUFFICIENT_SIZE */
    uint32_t util_count;
    uint32_t process_count[3];
    uint32_t page_count[2];
    uint32_t pad;
    struct fnv_line lines[FNV_SIGNALS + FNV_FIELDS];
    struct fnv_field fields[FNV_FIELDS];
    struct fnv_gpm gpm[FNV_GPM];
    struct fnv_mig migs[FNV_MIGS];
    struct fnv_link links[FNV_LINKS];
    struct fnv_process processes[3][FNV_PROCS];
    struct fnv_process_util utils[FNV_PROCS];
    struct fnv_ring rings[FNV_SAMPLE_TYPES];
    uint64_t pages[2][FNV_PAGES];
    uint64_t page_times[2][FNV_PAGES];
};

struct fnv_event {
    uint32_t gpu;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t pad;
    uint64_t type;
    uint64_t data;
};

struct fnv_log_entry {
    uint64_t sequence; /* written last, sequence = index + 1 */
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t latency_ns;
    uint32_t function;
    uint32_t column;
    uint32_t pid;
    uint32_t tid;
    int32_t rc;
    uint32_t pad;
};

/* Wrong use that a real driver punishes with a crash or a hang (library). */
struct fnv_misuse {
    uint64_t call_before_init;
    uint64_t call_after_shutdown;
    uint64_t stale_handle;
    uint64_t set_freed_while_waiting;
    uint64_t shutdown_while_waiting;
    uint64_t gpm_use_after_free;
    uint64_t gpm_leaked_at_shutdown;
    uint64_t sets_leaked_at_shutdown;
};

struct fnv_state {
    uint64_t magic;
    uint64_t layout_hash;
    uint32_t closing; /* the controller is gone: nothing may block any more */
    uint32_t clock_stepped;
    int64_t clock_ns;
    uint32_t gpu_count;
    uint32_t driver_generation;
    uint32_t order[FNV_GPUS]; /* NVML index -> slot */
    uint32_t init_sequence;   /* library */
    uint32_t init_failures_left; /* library counts down */
    int32_t init_code;
    int32_t global_code; /* answered to every call from the total call number below */
    uint32_t global_spares_init;
    uint32_t serialise;
    uint64_t global_from_call;
    uint64_t total_calls; /* library */
    char driver_version[80];
    char nvml_version[80];
    int32_t cuda_version;
    int32_t fields_all_failed_code;
    uint32_t wake_sequence; /* futex word of every wait in the library */
    uint32_t spurious_sequence;
    uint32_t canary; /* fill what NVML leaves undefined with 0xA5 */
    uint32_t log_on;
    uint64_t log_head;   /* library */
    uint64_t event_head;
    int32_t live_inits; /* library, as are the next three */
    int32_t live_sets;
    int32_t live_gpm_samples;
    int32_t live_waiters;
    struct fnv_misuse misuse;
    struct fnv_event events[FNV_EVENTS];
    struct fnv_log_entry log[FNV_LOG];
    struct fnv_gpu gpus[FNV_GPUS];
    struct fnv_cell cells[FNV_FUNCS][FNV_COLUMNS];
};

#endif
