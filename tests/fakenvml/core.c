/* Attaching to the scenario, the clock, rules, handles, the call log, init and shutdown. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x4e56ULL

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fnv_state *current;
static char attached_path[PATH_MAX];
static int references;
static bool was_initialised;
static uint32_t init_generation;

/* ---- clock and waiting ---- */

uint64_t monotonic_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int64_t state_now_ns(const struct fnv_state *state)
{
    if (__atomic_load_n(&state->clock_stepped, __ATOMIC_RELAXED))
        return __atomic_load_n(&state->clock_ns, __ATOMIC_ACQUIRE);
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t gpu_now_ns(const struct fnv_state *state, const struct fnv_gpu *gpu)
{
    int64_t frozen = __atomic_load_n(&gpu->frozen_ns, __ATOMIC_RELAXED);
    return frozen ? frozen : state_now_ns(state);
}

uint64_t gpu_now_us(const struct fnv_state *state, const struct fnv_gpu *gpu)
{
    return (uint64_t)(gpu_now_ns(state, gpu) / 1000 + gpu->ts_offset_us);
}

void state_wait(struct fnv_state *state, uint32_t seen, uint64_t max_ns)
{
    /* Bounded so that a controller that died without a wake-up cannot leave a thread behind. */
    const uint64_t bound = 100000000u;
    uint64_t ns = max_ns < bound ? max_ns : bound;
    struct timespec ts = {.tv_sec = 0, .tv_nsec = (long)ns};
    syscall(SYS_futex, &state->wake_sequence, FUTEX_WAIT, seen, &ts, NULL, 0);
}

static void pause_us(struct fnv_state *state, uint32_t us)
{
    uint64_t end = monotonic_ns() + (uint64_t)us * 1000u;
    for (;;) {
        uint64_t now = monotonic_ns();
        if (now >= end || __atomic_load_n(&state->closing, __ATOMIC_ACQUIRE))
            return;
        /* The kernel's timer slack is 50 us: spin below that, or short delays all become long. */
        if (end - now < 100000u)
            continue;
        uint64_t ns = end - now - 60000u;
        if (ns > 50000000u)
            ns = 50000000u;
        struct timespec ts = {.tv_sec = 0, .tv_nsec = (long)ns};
        nanosleep(&ts, NULL);
    }
}

/* ---- attach ---- */

struct fnv_state *state_current(void)
{
    return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

/* A new path is mapped beside the old one: threads may still hang in the old scenario. */
static struct fnv_state *attach(void)
{
    const char *path = getenv("FAKENVML_STATE");
    if (!path || !*path) {
        fprintf(stderr, "fakenvml: FAKENVML_STATE is not set\n");
        return NULL;
    }
    if (current && strcmp(path, attached_path) == 0)
        return current;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "fakenvml: cannot open %s\n", path);
        return NULL;
    }
    struct stat st;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_size >= sizeof(struct fnv_state))
        map = mmap(NULL, sizeof(struct fnv_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) {
        fprintf(stderr, "fakenvml: %s is no scenario\n", path);
        return NULL;
    }
    struct fnv_state *state = map;
    if (state->magic != FNV_MAGIC || state->layout_hash != FNV_LAYOUT_HASH) {
        fprintf(stderr, "fakenvml: %s was made for another build\n", path);
        munmap(map, sizeof(struct fnv_state));
        return NULL;
    }
    snprintf(attached_path, sizeof attached_path, "%s", path);
    __atomic_store_n(&current, state, __ATOMIC_RELEASE);
    return state;
}

/* ---- handles ---- */

static uint32_t generation_of(const struct fnv_state *state)
{
    uint32_t driver = __atomic_load_n(&state->driver_generation, __ATOMIC_RELAXED);
    return (init_generation << 12) | (driver & 0xfffu);
}

handle_t handle_make(const struct fnv_state *state, unsigned kind, uint32_t slot, uint32_t index)
{
    return HANDLE_MAGIC << 48 | (uint64_t)kind << 44 | (uint64_t)(slot & 63u) << 38 |
           (uint64_t)(index & 63u) << 32 | generation_of(state);
}

bool handle_open(handle_t handle, unsigned *kind, uint32_t *slot, uint32_t *index,
                 uint32_t *generation)
{
    *kind = (unsigned)(handle >> 44 & 15u);
    *slot = (uint32_t)(handle >> 38 & 63u);
    *index = (uint32_t)(handle >> 32 & 63u);
    *generation = (uint32_t)handle;
    return handle >> 48 == HANDLE_MAGIC;
}

bool handle_current(const struct fnv_state *state, uint32_t generation)
{
    return generation == generation_of(state);
}

/* ---- rules ---- */

static bool rule_matches(const struct fnv_rule *rule, uint32_t kind, uint64_t call)
{
    return __atomic_load_n(&rule->kind, __ATOMIC_ACQUIRE) == kind && call >= rule->from_call &&
           call <= rule->to_call;
}

static void hang(struct fnv_state *state, struct fnv_cell *cell, const struct fnv_rule *rule,
                 uint64_t number)
{
    __atomic_fetch_add(&cell->waiting, 1, __ATOMIC_ACQ_REL);
    for (;;) {
        uint32_t seen = __atomic_load_n(&state->wake_sequence, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&state->closing, __ATOMIC_ACQUIRE))
            break;
        if (!rule_matches(rule, FNV_RULE_HANG, number))
            break;
        state_wait(state, seen, 100000000u);
    }
    __atomic_fetch_sub(&cell->waiting, 1, __ATOMIC_ACQ_REL);
}

/* Returns the injected code, or -1.  A matching delay replaces the profile's own. */
static int apply_rules(struct fnv_state *state, struct fnv_cell *cell, uint64_t number)
{
    int code = -1;
    uint32_t delay = __atomic_load_n(&cell->base_delay_us, __ATOMIC_RELAXED);
    uint32_t armed = __atomic_load_n(&cell->armed, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < armed && i < FNV_RULES; i++)
        if (rule_matches(&cell->rules[i], FNV_RULE_DELAY, number))
            delay = cell->rules[i].arg;
    if (delay) {
        bool serial = __atomic_load_n(&state->serialise, __ATOMIC_RELAXED);
        if (serial)
            pthread_mutex_lock(&driver_lock);
        pause_us(state, delay);
        if (serial)
            pthread_mutex_unlock(&driver_lock);
    }
    for (uint32_t i = 0; i < armed && i < FNV_RULES; i++)
        if (rule_matches(&cell->rules[i], FNV_RULE_HANG, number))
            hang(state, cell, &cell->rules[i], number);
    for (uint32_t i = 0; i < armed && i < FNV_RULES; i++)
        if (rule_matches(&cell->rules[i], FNV_RULE_CODE, number))
            code = (int)cell->rules[i].arg;
    return code;
}

/* ---- calls ---- */

static bool enter(struct call *call, uint32_t function, uint32_t column, unsigned flags,
                  nvmlReturn_t handle_rc)
{
    struct fnv_state *state = call->state;
    call->function = function;
    call->column = column;
    call->start_ns = __atomic_load_n(&state->log_on, __ATOMIC_RELAXED) ? monotonic_ns() : 0;
    call->cell = &state->cells[function][column];
    uint64_t number = __atomic_add_fetch(&call->cell->calls, 1, __ATOMIC_RELAXED);
    uint64_t total = __atomic_add_fetch(&state->total_calls, 1, __ATOMIC_RELAXED);

    if (!(flags & IS_INIT) && __atomic_load_n(&references, __ATOMIC_ACQUIRE) == 0) {
        if (was_initialised)
            COUNT(state->misuse.call_after_shutdown);
        else
            COUNT(state->misuse.call_before_init);
        call->rc = UNINITIALIZED;
        return false;
    }
    int injected = apply_rules(state, call->cell, number);
    if (injected > SUCCESS || handle_rc) {
        bool broken = injected < 0 && !(flags & NO_STATE_CODE) && state->global_code &&
                      total >= state->global_from_call;
        call->rc = injected > SUCCESS ? injected : broken ? state->global_code : handle_rc;
        return false;
    }
    /* An injected SUCCESS overrides the scenario: this call works although all others fail. */
    if (injected < 0) {
        int code = SUCCESS;
        if (!(flags & NO_STATE_CODE)) {
            bool spared = (flags & IS_INIT) && state->global_spares_init;
            if (!spared && total >= state->global_from_call)
                code = __atomic_load_n(&state->global_code, __ATOMIC_ACQUIRE);
            if (!code && call->gpu)
                code = __atomic_load_n(&call->gpu->dead_code, __ATOMIC_ACQUIRE);
        }
        if (!code)
            code = __atomic_load_n(&call->cell->base_code, __ATOMIC_RELAXED);
        if (code) {
            call->rc = code;
            return false;
        }
    }
    if (call->gpu) {
        bool sets = call->gpu->mig_current && (flags & NOT_WITH_SETS);
        for (unsigned i = 0; sets && i < FNV_MIGS; i++)
            if (call->gpu->migs[i].present)
                flags |= NOT_ON_PARENT;
        if ((call->mig && !(flags & ON_MIG)) ||
            (call->gpu->mig_current && !call->mig && (flags & NOT_ON_PARENT))) {
            call->rc = NOT_SUPPORTED;
            return false;
        }
    }
    call->rc = SUCCESS;
    return true;
}

static bool no_state(struct call *call)
{
    memset(call, 0, sizeof *call);
    call->state = state_current();
    call->rc = UNINITIALIZED;
    return call->state == NULL;
}

bool call_enter_column(struct call *call, uint32_t function, uint32_t column, unsigned flags)
{
    if (no_state(call))
        return false;
    if (column < FNV_GPUS) {
        call->slot = column;
        call->gpu = &call->state->gpus[column];
    }
    return enter(call, function, column, flags, SUCCESS);
}

bool call_enter(struct call *call, uint32_t function, handle_t device, unsigned flags)
{
    if (no_state(call))
        return false;
    unsigned kind;
    uint32_t slot, index, generation, column = FNV_NO_GPU;
    nvmlReturn_t rc = INVALID_ARGUMENT;
    if (handle_open(device, &kind, &slot, &index, &generation) && slot < FNV_GPUS &&
        (kind == KIND_DEVICE || (kind == KIND_MIG && index < FNV_MIGS))) {
        call->slot = slot;
        column = kind == KIND_DEVICE ? slot : FNV_GPUS + 1 + slot * FNV_MIGS + index;
        if (!handle_current(call->state, generation)) {
            COUNT(call->state->misuse.stale_handle);
        } else {
            call->gpu = &call->state->gpus[slot];
            if (kind == KIND_MIG)
                call->mig = &call->gpu->migs[index];
            rc = SUCCESS;
            if (!call->gpu->present)
                rc = GPU_IS_LOST;
            else if (call->mig && (!call->mig->present || !call->gpu->mig_current))
                rc = INVALID_ARGUMENT;
        }
    }
    return enter(call, function, column, flags, rc);
}

nvmlReturn_t call_leave(struct call *call, nvmlReturn_t rc)
{
    struct fnv_state *state = call->state;
    if (!state || !call->start_ns)
        return rc;
    static __thread uint32_t tid;
    if (!tid)
        tid = (uint32_t)syscall(SYS_gettid);
    uint64_t index = __atomic_fetch_add(&state->log_head, 1, __ATOMIC_RELAXED);
    struct fnv_log_entry *entry = &state->log[index % FNV_LOG];
    __atomic_store_n(&entry->sequence, 0, __ATOMIC_RELEASE);
    entry->start_ns = call->start_ns;
    entry->latency_ns = monotonic_ns() - call->start_ns;
    entry->function = call->function;
    entry->column = call->column;
    entry->pid = (uint32_t)getpid();
    entry->tid = tid;
    entry->rc = rc;
    __atomic_store_n(&entry->sequence, index + 1, __ATOMIC_RELEASE);
    return rc;
}

/* ---- reading the scenario ---- */

uint32_t gpu_read_begin(const struct fnv_gpu *gpu)
{
    uint32_t seq = 0;
    for (int spins = 0; spins < 100000; spins++) { /* bounded: the writer may have been killed */
        seq = __atomic_load_n(&gpu->seq, __ATOMIC_ACQUIRE);
        if (!(seq & 1u))
            return seq;
        sched_yield();
    }
    return seq;
}

bool gpu_read_retry(const struct fnv_gpu *gpu, uint32_t seq)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return !(seq & 1u) && __atomic_load_n(&gpu->seq, __ATOMIC_RELAXED) != seq;
}

static struct fnv_line line_snapshot(const struct fnv_gpu *gpu, const struct fnv_line *line)
{
    struct fnv_line copy;
    uint32_t seq;
    do {
        seq = gpu_read_begin(gpu);
        copy = *line;
    } while (gpu_read_retry(gpu, seq));
    return copy;
}

double line_value(const struct fnv_line *line, int64_t now_ns)
{
    /* A reader that took the time just before the line changed must not follow the new slope
     * backwards: a counter would fall. */
    if (line->rate == 0.0 || now_ns <= line->t_ref_ns)
        return line->base;
    return line->base + line->rate * ((double)(now_ns - line->t_ref_ns) * 1e-9);
}

static uint64_t to_u64(const struct fnv_line *line, int64_t now_ns)
{
    if (line->flags & FNV_LINE_RAW)
        return line->raw;
    double value = line_value(line, now_ns);
    if (isnan(value))
        return 0;
    if (value >= 18446744073709549568.0)
        return UINT64_MAX;
    uint64_t whole;
    if (value < 0) /* two's complement: signed values go through here too */
        whole = (uint64_t)(value <= -9.2e18 ? INT64_MIN : (int64_t)(value - 0.5));
    else
        whole = (uint64_t)(value + 0.5);
    return line->wrap ? whole % line->wrap : whole;
}

static double to_double(const struct fnv_line *line, int64_t now_ns)
{
    if (line->flags & FNV_LINE_RAW) {
        double value;
        memcpy(&value, &line->raw, sizeof value);
        return value;
    }
    return line_value(line, now_ns);
}

double line_double(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns)
{
    struct fnv_line copy = line_snapshot(gpu, line);
    return to_double(&copy, now_ns);
}

uint64_t line_u64(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns)
{
    struct fnv_line copy = line_snapshot(gpu, line);
    return to_u64(&copy, now_ns);
}

uint64_t line_bits(const struct fnv_gpu *gpu, const struct fnv_line *line, int64_t now_ns,
                   uint32_t value_type)
{
    if (value_type == VALUE_DOUBLE) {
        double value = line_double(gpu, line, now_ns);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        return bits;
    }
    uint64_t value = line_u64(gpu, line, now_ns);
    if (value_type == VALUE_UINT || value_type == VALUE_INT)
        return value & 0xffffffffu;
    if (value_type == VALUE_USHORT)
        return value & 0xffffu;
    return value;
}

uint64_t signal_u64(const struct call *call, uint32_t signal)
{
    return line_u64(call->gpu, &call->gpu->lines[signal], gpu_now_ns(call->state, call->gpu));
}

uint32_t signal_u32(const struct call *call, uint32_t signal)
{
    return (uint32_t)signal_u64(call, signal);
}

bool index_of_slot(const struct fnv_state *state, uint32_t slot, uint32_t *index)
{
    for (uint32_t i = 0; i < state->gpu_count && i < FNV_GPUS; i++)
        if (state->order[i] == slot) {
            *index = i;
            return true;
        }
    return false;
}

nvmlReturn_t copy_string(char *out, uint32_t length, const char *text)
{
    if (!out)
        return INVALID_ARGUMENT;
    size_t need = strlen(text) + 1;
    if (length < need)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, need);
    return SUCCESS;
}

void bus_id(const struct fnv_gpu *gpu, char *out, size_t size)
{
    snprintf(out, size, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus & 255u,
             gpu->pci_device & 31u);
}

/* ---- init, shutdown, errors ---- */

static nvmlReturn_t init(uint32_t function)
{
    pthread_mutex_lock(&process_lock);
    struct fnv_state *state = references ? current : attach();
    pthread_mutex_unlock(&process_lock);
    if (!state)
        return DRIVER_NOT_LOADED;
    struct call call;
    /* Outside the lock: a hanging init must not block the shutdown of another thread. */
    if (!call_enter_column(&call, function, FNV_NO_GPU, IS_INIT))
        return call_leave(&call, call.rc);
    uint32_t left = __atomic_load_n(&state->init_failures_left, __ATOMIC_ACQUIRE);
    while (left) {
        if (__atomic_compare_exchange_n(&state->init_failures_left, &left, left - 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return call_leave(&call, state->init_code);
    }
    pthread_mutex_lock(&process_lock);
    if (references == 0) {
        init_generation = __atomic_add_fetch(&state->init_sequence, 1, __ATOMIC_RELAXED);
        was_initialised = true;
        __atomic_fetch_add(&state->live_inits, 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&references, references + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&process_lock);
    return call_leave(&call, SUCCESS);
}

nvmlReturn_t nvmlInit(void)
{
    return init(FN_nvmlInit);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return init(FN_nvmlInit_v2);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return init(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    SYSTEM_CALL(nvmlShutdown, NO_STATE_CODE);
    nvmlReturn_t rc = SUCCESS;
    pthread_mutex_lock(&process_lock);
    if (references == 0) {
        rc = UNINITIALIZED;
    } else {
        __atomic_store_n(&references, references - 1, __ATOMIC_RELEASE);
        if (references == 0) {
            __atomic_fetch_sub(&call.state->live_inits, 1, __ATOMIC_RELAXED);
            events_at_shutdown(call.state);
            gpm_at_shutdown(call.state);
        }
    }
    pthread_mutex_unlock(&process_lock);
    DONE(rc);
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires restart", "The operating system has blocked the request",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
        "No data", "vGPU ECC not supported", "Insufficient Resources", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
        "Reset type not supported",
    };
    struct fnv_state *state = state_current();
    if (state)
        COUNT(state->cells[FN_nvmlErrorString][FNV_NO_GPU].calls);
    if (code >= 0 && (size_t)code < sizeof names / sizeof *names)
        return names[code];
    return "Unknown Error";
}

/* Stubs of functions this fake does not model end here: counted, ruled, otherwise unsupported. */
nvmlReturn_t fakenvml_stub(uint32_t function, handle_t first)
{
    struct call call;
    unsigned kind;
    uint32_t slot, index, generation;
    bool device = handle_open(first, &kind, &slot, &index, &generation);
    bool go = device ? call_enter(&call, function, first, ON_MIG)
                     : call_enter_column(&call, function, FNV_NO_GPU, 0);
    return call_leave(&call, go ? NOT_SUPPORTED : call.rc);
}

/* ---- for the tests: does the Python mirror agree? ---- */

#define SIZE(name) {#name, sizeof(struct fnv_##name)}
#define OFFSET(name, member) {#name "." #member, offsetof(struct fnv_##name, member)}

const char *fakenvml_layout(void)
{
    static const struct {
        const char *name;
        size_t value;
    } rows[] = {
        SIZE(line), SIZE(rule), SIZE(cell), SIZE(field), SIZE(gpm), SIZE(mig), SIZE(link),
        SIZE(process), SIZE(process_util), SIZE(sample), SIZE(ring), SIZE(gpu), SIZE(event),
        SIZE(log_entry), SIZE(misuse), SIZE(state),
        OFFSET(line, flags), OFFSET(cell, rules), OFFSET(field, ts_us), OFFSET(gpm, flags),
        OFFSET(mig, lines), OFFSET(mig, gpm), OFFSET(link, lines), OFFSET(ring, samples),
        OFFSET(gpu, pci_domain), OFFSET(gpu, frozen_ns), OFFSET(gpu, util_count),
        OFFSET(gpu, lines), OFFSET(gpu, fields), OFFSET(gpu, gpm), OFFSET(gpu, migs),
        OFFSET(gpu, links), OFFSET(gpu, processes), OFFSET(gpu, utils), OFFSET(gpu, rings),
        OFFSET(gpu, page_times), OFFSET(log_entry, rc), OFFSET(state, order),
        OFFSET(state, global_code), OFFSET(state, driver_version), OFFSET(state, wake_sequence),
        OFFSET(state, log_head), OFFSET(state, live_waiters), OFFSET(state, events),
        OFFSET(state, log), OFFSET(state, gpus), OFFSET(state, cells),
    };
    static char text[4096];
    size_t at = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s %zu\n", rows[i].name,
                               rows[i].value);
    return text;
}
