/* Event sets: a queue in the shared scenario, read by real blocking waits. */
#include "internal.h"

#include <pthread.h>
#include <string.h>

#define SETS 64

struct event_set {
    bool used;
    uint32_t serial;
    uint32_t waiting;
    uint64_t cursor;             /* next event of the queue to look at */
    uint64_t mask[FNV_GPUS];     /* registered types, 0 = not registered */
    uint64_t since[FNV_GPUS];    /* queue position at registration: no earlier events */
};

static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER;
static struct event_set sets[SETS];

static handle_t set_handle(uint32_t slot)
{
    return 0x4e56ULL << 48 | (uint64_t)KIND_SET << 44 | (uint64_t)slot << 32 | sets[slot].serial;
}

static struct event_set *set_find(handle_t handle)
{
    uint32_t slot = (uint32_t)(handle >> 32 & 63u);
    if (handle >> 48 != 0x4e56 || (handle >> 44 & 15u) != KIND_SET)
        return NULL;
    struct event_set *set = &sets[slot];
    return set->used && set->serial == (uint32_t)handle ? set : NULL;
}

static void set_drop(struct event_set *set)
{
    set->used = false;
    set->serial++;
}

void events_at_shutdown(struct fnv_state *state)
{
    pthread_mutex_lock(&set_lock);
    for (uint32_t i = 0; i < SETS; i++)
        if (sets[i].used) {
            COUNT(state->misuse.sets_leaked_at_shutdown);
            if (sets[i].waiting)
                COUNT(state->misuse.shutdown_while_waiting);
            __atomic_fetch_sub(&state->live_sets, 1, __ATOMIC_RELAXED);
            set_drop(&sets[i]);
        }
    pthread_mutex_unlock(&set_lock);
}

nvmlReturn_t nvmlEventSetCreate(handle_t *out)
{
    SYSTEM_CALL(nvmlEventSetCreate, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    nvmlReturn_t rc = MEMORY;
    pthread_mutex_lock(&set_lock);
    for (uint32_t i = 0; i < SETS; i++)
        if (!sets[i].used) {
            uint32_t serial = sets[i].serial;
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = true;
            sets[i].serial = serial;
            sets[i].cursor = __atomic_load_n(&call.state->event_head, __ATOMIC_ACQUIRE);
            *out = set_handle(i);
            __atomic_fetch_add(&call.state->live_sets, 1, __ATOMIC_RELAXED);
            rc = SUCCESS;
            break;
        }
    pthread_mutex_unlock(&set_lock);
    DONE(rc);
}

nvmlReturn_t nvmlEventSetFree(handle_t handle)
{
    SYSTEM_CALL(nvmlEventSetFree, NO_STATE_CODE);
    nvmlReturn_t rc = INVALID_ARGUMENT;
    pthread_mutex_lock(&set_lock);
    struct event_set *set = set_find(handle);
    if (set) {
        if (set->waiting)
            COUNT(call.state->misuse.set_freed_while_waiting);
        __atomic_fetch_sub(&call.state->live_sets, 1, __ATOMIC_RELAXED);
        set_drop(set);
        rc = SUCCESS;
    }
    pthread_mutex_unlock(&set_lock);
    DONE(rc);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(handle_t device, uint64_t *out)
{
    DEVICE_CALL(nvmlDeviceGetSupportedEventTypes, device, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    *out = signal_u64(&call, SIG_event_types);
    DONE(SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(handle_t device, uint64_t types, handle_t handle)
{
    DEVICE_CALL(nvmlDeviceRegisterEvents, device, 0);
    uint64_t supported = signal_u64(&call, SIG_event_types);
    if (types & ~supported)
        DONE(NOT_SUPPORTED);
    nvmlReturn_t rc = INVALID_ARGUMENT;
    pthread_mutex_lock(&set_lock);
    struct event_set *set = set_find(handle);
    if (set) {
        if (!set->mask[call.slot])
            set->since[call.slot] = __atomic_load_n(&call.state->event_head, __ATOMIC_ACQUIRE);
        set->mask[call.slot] |= types;
        rc = SUCCESS;
    }
    pthread_mutex_unlock(&set_lock);
    DONE(rc);
}

static bool take_event(const struct fnv_state *state, struct event_set *set,
                       struct event_data *out)
{
    uint64_t head = __atomic_load_n(&state->event_head, __ATOMIC_ACQUIRE);
    if (head - set->cursor > FNV_EVENTS)
        set->cursor = head - FNV_EVENTS; /* overflow: the oldest are gone */
    while (set->cursor < head) {
        uint64_t at = set->cursor++;
        const struct fnv_event *event = &state->events[at % FNV_EVENTS];
        if (event->gpu >= FNV_GPUS || !(set->mask[event->gpu] & event->type) ||
            at < set->since[event->gpu])
            continue;
        out->device = handle_make(state, KIND_DEVICE, event->gpu, 0);
        out->type = event->type;
        out->data = event->data;
        out->gpu_instance = event->gpu_instance;
        out->compute_instance = event->compute_instance;
        return true;
    }
    return false;
}

/* Queued events come first; then a lost GPU in the set makes every wait fail at once, for ever. */
static nvmlReturn_t look(struct fnv_state *state, handle_t handle, struct event_data *out)
{
    nvmlReturn_t rc = TIMEOUT;
    pthread_mutex_lock(&set_lock);
    struct event_set *set = set_find(handle);
    if (!set) {
        rc = INVALID_ARGUMENT; /* freed under the waiter: a real library may crash here */
    } else if (take_event(state, set, out)) {
        rc = SUCCESS;
    } else {
        for (uint32_t i = 0; i < FNV_GPUS; i++)
            if (set->mask[i] && (state->gpus[i].dead_code == GPU_IS_LOST || !state->gpus[i].present))
                rc = GPU_IS_LOST;
        int code = __atomic_load_n(&state->global_code, __ATOMIC_ACQUIRE);
        if (code && state->total_calls >= state->global_from_call)
            rc = code;
    }
    pthread_mutex_unlock(&set_lock);
    return rc;
}

static void mark_waiting(struct fnv_state *state, handle_t handle, int change)
{
    pthread_mutex_lock(&set_lock);
    struct event_set *set = set_find(handle);
    if (set)
        set->waiting += (uint32_t)change;
    pthread_mutex_unlock(&set_lock);
    __atomic_fetch_add(&state->live_waiters, change, __ATOMIC_ACQ_REL);
}

static nvmlReturn_t wait_for(struct call *call, handle_t handle, struct event_data *out,
                             uint32_t timeout_ms)
{
    struct fnv_state *state = call->state;
    uint64_t end = monotonic_ns() + (uint64_t)timeout_ms * 1000000u;
    uint32_t spurious = __atomic_load_n(&state->spurious_sequence, __ATOMIC_ACQUIRE);
    for (;;) {
        uint32_t seen = __atomic_load_n(&state->wake_sequence, __ATOMIC_ACQUIRE);
        nvmlReturn_t rc = look(state, handle, out);
        uint64_t now = monotonic_ns();
        if (rc != TIMEOUT || now >= end || __atomic_load_n(&state->closing, __ATOMIC_ACQUIRE) ||
            __atomic_load_n(&state->spurious_sequence, __ATOMIC_ACQUIRE) != spurious)
            return rc;
        state_wait(state, seen, end - now);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(handle_t handle, struct event_data *out, uint32_t timeout_ms)
{
    SYSTEM_CALL(nvmlEventSetWait_v2, 0);
    if (!out)
        DONE(INVALID_ARGUMENT);
    mark_waiting(call.state, handle, 1);
    nvmlReturn_t rc = wait_for(&call, handle, out, timeout_ms);
    mark_waiting(call.state, handle, -1);
    DONE(rc);
}
