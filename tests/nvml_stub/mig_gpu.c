/* MIG modes, and GPU instances: what a card can hold, what it holds, made and destroyed. */
#include "mig.h"

#include <string.h>

#define GPU_PROFILE_V2 0x02000098u

typedef struct {
    unsigned id, is_p2p, slices, instances, multiprocessors, copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mib;
} nvmlGpuInstanceProfileInfo_t;
typedef struct {
    unsigned version, id, is_p2p, slices, instances, multiprocessors, copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mib;
    char name[NAME_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
    nvmlDevice_t device;
    unsigned id, profile;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == (GPU_PROFILE_V2 & 0xFFFFFF), "size");

/* -- the mode ---------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    nvmlReturn_t result = enter_card(__func__, device);
    int card = number_of(device);
    if (result == OK && now.cards[card].mig < 0) result = NOT_SUPPORTED;
    if (result == OK) {
        look_at_hardware();
        *current = (unsigned)mode_of(card).current;
        *pending = (unsigned)mode_of(card).pending;
    }
    return leave(spoil(__func__, card, result, current, sizeof *current));
}

static int has_processes(int card) {
    for (int i = 0; i < hardware.pid_count; i++)
        if (!strcmp(hardware.pids[i].card, now.cards[card].uuid)) return 1;
    return now.cards[card].pid_count > 0;
}

/* The second status of a mode change: whether it is in force now. */
static nvmlReturn_t change_mode(int card, int mode) {
    struct mode m = mode_of(card);
    nvmlReturn_t activation = (nvmlReturn_t)now.cards[card].activation;
    if (m.current == mode) activation = OK;
    else if (has_processes(card) || (is_ampere(card) && now.cards[card].clients)) activation = IN_USE;
    set_mode(card, activation == OK ? mode : m.current, mode);
    if (activation == OK && mode == 0)
        for (int i = hardware.gi_count - 1; i >= 0; i--)
            if (!strcmp(hardware.gis[i].card, now.cards[card].uuid))
                drop_gpu_instance(now.cards[card].uuid, hardware.gis[i].id);
    return activation;
}

API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation) {
    char arguments[64];
    nvmlReturn_t result = enter_card(__func__, device), answer = UNKNOWN;
    int card = number_of(device);
    hold_hardware();
    if (result == OK && now.cards[card].mig < 0) result = NOT_SUPPORTED;
    if (result == OK && now.rights < RIGHTS_ROOT) result = NO_PERMISSION;
    if (result == OK && mode > 1) result = INVALID_ARGUMENT;
    if (result == OK) *activation = answer = change_mode(card, (int)mode);
    snprintf(arguments, sizeof arguments, "mode=%u activation=%d", mode, answer);
    return leave_change(__func__, card, result, arguments);
}

/* -- profiles of GPU instances ----------------------------------------------------------------- */

static nvmlReturn_t gpu_profile(const char *function, nvmlDevice_t device, int number, int id,
                                struct profile *p) {
    nvmlReturn_t result = enter_card(function, device);
    int card = number_of(device);
    if (result != OK) return result;
    look_at_hardware();
    if (now.cards[card].mig < 0 || (is_ampere(card) && !is_mig_on(card))) return NOT_SUPPORTED;
    if (id == ANY && (number < 0 || number >= PROFILE_ENUMS)) return INVALID_ARGUMENT;
    return find_profile(card, number, id, p) ? OK : id == ANY ? NOT_SUPPORTED : INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                     nvmlGpuInstanceProfileInfo_t *out) {
    struct profile p;
    nvmlReturn_t result = gpu_profile(__func__, device, (int)(number & 0xFFFF), ANY, &p);
    if (result == OK)
        *out = (nvmlGpuInstanceProfileInfo_t){
            .id = p.id, .slices = p.slices, .instances = p.instances, .copy = 1,
            .multiprocessors = (unsigned)p.multiprocessors,
            .memory_mib = (unsigned long long)p.memory_mib};
    return leave(spoil(__func__, number_of(device), result, out, sizeof *out));
}

static nvmlReturn_t gpu_profile_v2(const char *function, nvmlDevice_t device, int number, int id,
                                   nvmlGpuInstanceProfileInfo_v2_t *out) {
    struct profile p;
    nvmlReturn_t result = gpu_profile(function, device, number, id, &p);
    if (result == OK && out->version != GPU_PROFILE_V2) result = ARGUMENT_VERSION_MISMATCH;
    if (result == OK) {
        *out = (nvmlGpuInstanceProfileInfo_v2_t){
            .version = GPU_PROFILE_V2, .id = p.id, .slices = p.slices, .instances = p.instances,
            .copy = 1, .multiprocessors = (unsigned)p.multiprocessors,
            .memory_mib = (unsigned long long)p.memory_mib};
        snprintf(out->name, sizeof out->name, "MIG %s", p.name);
    }
    return leave(spoil(function, number_of(device), result, &out->id, sizeof *out - sizeof(unsigned)));
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number,
                                                      nvmlGpuInstanceProfileInfo_v2_t *out) {
    return gpu_profile_v2(__func__, device, (int)(number & 0xFFFF), ANY, out);
}
API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id,
                                                          nvmlGpuInstanceProfileInfo_v2_t *out) {
    return gpu_profile_v2(__func__, device, ANY, (int)(id & 0xFFFF), out);
}

static nvmlReturn_t placements(const char *function, nvmlDevice_t device, unsigned id,
                               nvmlPlacement_t *out, unsigned *count) {
    struct profile p;
    nvmlReturn_t result = enter_mig(function, device, RIGHTS_MONITOR);
    if (result == OK && !find_profile(number_of(device), ANY, (int)id, &p)) result = INVALID_ARGUMENT;
    if (result == OK) {
        unsigned found = 0, room = *count;
        while (start_of(&p, (int)found) != ANY) found++;
        *count = found;
        if (out && room < found) result = INSUFFICIENT_SIZE;
        for (unsigned i = 0; out && result == OK && i < found; i++)
            out[i] = (nvmlPlacement_t){(unsigned)start_of(&p, (int)i), p.size};
        if (out) spoil(function, number_of(device), result, out, found * sizeof *out);
    }
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
                                                            nvmlPlacement_t *out, unsigned *count) {
    return placements(__func__, device, id, out, count);
}
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                               nvmlPlacement_t *out, unsigned *count) {
    return placements(__func__, device, id, out, count);
}

/* -- GPU instances ----------------------------------------------------------------------------- */

static int is_free(int card, unsigned start, unsigned size) {
    for (int i = 0; i < hardware.gi_count; i++) {
        struct gpu_instance *g = &hardware.gis[i];
        if (!strcmp(g->card, now.cards[card].uuid) && g->start < start + size &&
            start < g->start + g->size)
            return 0;
    }
    return 1;
}

static unsigned remaining(int card, const struct profile *p) {
    unsigned made = 0, fit = 0;
    for (int i = 0; i < hardware.gi_count; i++)
        made += hardware.gis[i].profile == p->id && !strcmp(hardware.gis[i].card, now.cards[card].uuid);
    for (int n = 0; start_of(p, n) != ANY; n++) fit += is_free(card, (unsigned)start_of(p, n), p->size);
    unsigned left = p->instances > made ? p->instances - made : 0;
    return fit < left ? fit : left;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id,
                                                           unsigned *count) {
    struct profile p;
    nvmlReturn_t result = enter_mig(__func__, device, RIGHTS_MONITOR);
    if (result == OK && !find_profile(number_of(device), ANY, (int)id, &p)) result = INVALID_ARGUMENT;
    if (result == OK) *count = remaining(number_of(device), &p);
    return leave(spoil(__func__, number_of(device), result, count, sizeof *count));
}

static nvmlReturn_t make_gi(int card, unsigned profile, const nvmlPlacement_t *wanted, unsigned *id) {
    struct profile p;
    int start = ANY;
    if (!find_profile(card, ANY, (int)profile, &p)) return INVALID_ARGUMENT;
    for (int n = 0; start == ANY && start_of(&p, n) != ANY; n++)
        if (wanted ? start_of(&p, n) == (int)wanted->start && p.size == wanted->size
                   : is_free(card, (unsigned)start_of(&p, n), p.size))
            start = start_of(&p, n);
    if (start == ANY) return wanted ? INVALID_ARGUMENT : INSUFFICIENT_RESOURCES;
    if (!is_free(card, (unsigned)start, p.size) || remaining(card, &p) == 0 ||
        hardware.gi_count == MAX_GPU_INSTANCES)
        return INSUFFICIENT_RESOURCES;
    struct gpu_instance *g = &hardware.gis[hardware.gi_count++];
    *g = (struct gpu_instance){"", 0, p.id, (unsigned)start, p.size, 0};
    snprintf(g->card, sizeof g->card, "%s", now.cards[card].uuid);
    *id = g->id = model_of(card)->slices / p.size - 1 + (unsigned)start / p.size;
    return OK;
}

static nvmlReturn_t create_gi(const char *function, nvmlDevice_t device, unsigned profile,
                              const nvmlPlacement_t *placement, nvmlGpuInstance_t *out) {
    char arguments[96];
    unsigned id = ~0u;
    nvmlReturn_t result = enter_mig(function, device, RIGHTS_CONFIG);
    hold_hardware();
    if (result == OK) result = make_gi(number_of(device), profile, placement, &id);
    if (result == OK) *out = part_of(GPU_INSTANCE, number_of(device), id, 0);
    snprintf(arguments, sizeof arguments, "profile=%u start=%d size=%d gi=%d", profile,
             placement ? (int)placement->start : ANY, placement ? (int)placement->size : ANY, (int)id);
    return leave_change(function, number_of(device), result, arguments);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile,
                                             nvmlGpuInstance_t *out) {
    return create_gi(__func__, device, profile, NULL, out);
}
API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile,
                                                          const nvmlPlacement_t *placement,
                                                          nvmlGpuInstance_t *out) {
    return create_gi(__func__, device, profile, placement, out);
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile,
                                           nvmlGpuInstance_t *out, unsigned *count) {
    struct profile p;
    nvmlReturn_t result = enter_mig(__func__, device, RIGHTS_MONITOR);
    int card = number_of(device);
    if (result == OK && !find_profile(card, ANY, (int)profile, &p)) result = INVALID_ARGUMENT;
    if (result == OK) {
        *count = 0;
        for (unsigned id = 0; id < 64; id++) {
            struct gpu_instance *g = find_gi(card, id);
            if (g && g->profile == profile) out[(*count)++] = part_of(GPU_INSTANCE, card, id, 0);
        }
    }
    return leave(spoil(__func__, card, result, count, sizeof *count));
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out) {
    nvmlReturn_t result = enter_mig(__func__, device, RIGHTS_MONITOR);
    if (result == OK && !find_gi(number_of(device), id)) result = NOT_FOUND;
    if (result == OK) *out = part_of(GPU_INSTANCE, number_of(device), id, 0);
    return leave(result);
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *out) {
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_NONE);
    if (result == OK) {
        struct gpu_instance *g = find_gi(gi->card, gi->gpu_instance);
        *out = (nvmlGpuInstanceInfo_t){handle_of(gi->card), g->id, g->profile, {g->start, g->size}};
    }
    return leave_part(__func__, gi, result, &out->id, sizeof *out - offsetof(nvmlGpuInstanceInfo_t, id));
}

static nvmlReturn_t destroy_gi(const struct part *gi) {
    struct gpu_instance *g = find_gi(gi->card, gi->gpu_instance);
    if (!g) return INVALID_ARGUMENT;
    if (nth_ci(gi->card, (int)g->id, 0) || pids_on(gi->card, g->id, ANY)) return IN_USE;
    if (g->lingers > 0) {
        g->lingers--;
        return IN_USE;
    }
    drop_gpu_instance(now.cards[gi->card].uuid, g->id);
    return OK;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi) {
    char arguments[32];
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_CONFIG);
    int is_ours = is_part(gi, GPU_INSTANCE);
    hold_hardware();
    if (result == OK) result = destroy_gi(gi);
    snprintf(arguments, sizeof arguments, "gi=%d", is_ours ? (int)gi->gpu_instance : ANY);
    return leave_change(__func__, is_ours ? gi->card : ANY, result, arguments);
}
