/* Compute instances of a GPU instance: made, found and destroyed. */
#include "mig.h"

#include <string.h>
#include <sys/random.h>

#define COMPUTE_ENUMS 9
#define COMPUTE_PROFILE_V2 0x02000088u

typedef struct {
    unsigned id, slices, instances, multiprocessors, copy, decoder, encoder, jpeg, ofa;
} nvmlComputeInstanceProfileInfo_t;
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy, decoder, encoder, jpeg, ofa;
    char name[NAME_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpu_instance;
    unsigned id, profile;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == (COMPUTE_PROFILE_V2 & 0xFFFFFF), "size");

/* -- compute instances ------------------------------------------------------------------------- */

static const unsigned compute_slices[COMPUTE_ENUMS] = {1, 2, 3, 4, 7, 8, 6, 0, 0};

/* What a GPU instance offers by that number, which is also the id. False where it has none. */
static int find_compute(const struct part *gi, unsigned number, struct profile *gpu, unsigned *slices) {
    struct gpu_instance *g = find_gi(gi->card, gi->gpu_instance);
    if (!g || !find_profile(gi->card, ANY, (int)g->profile, gpu) || number >= COMPUTE_ENUMS) return 0;
    *slices = compute_slices[number];
    return *slices > 0 && *slices <= gpu->slices && !(*slices == 3 && gpu->slices == 4);
}

void compute_name(char *to, const struct profile *gpu, unsigned slices) {
    if (slices == gpu->slices) snprintf(to, NAME_SIZE, "MIG %s", gpu->name);
    else snprintf(to, NAME_SIZE, "MIG %uc.%s", slices, gpu->name);
}

static nvmlReturn_t compute_profile(const char *function, nvmlGpuInstance_t gi, unsigned number,
                                    unsigned engine, struct profile *gpu, unsigned *slices) {
    nvmlReturn_t result = enter_part(function, gi, GPU_INSTANCE, RIGHTS_NONE);
    if (result == OK && (number >= COMPUTE_ENUMS || engine > 0)) return INVALID_ARGUMENT;
    if (result == OK && !find_compute(gi, number, gpu, slices)) return NOT_SUPPORTED;
    return result;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned number,
                                                              unsigned engine,
                                                              nvmlComputeInstanceProfileInfo_t *out) {
    struct profile gpu;
    unsigned slices;
    nvmlReturn_t result = compute_profile(__func__, gi, number, engine, &gpu, &slices);
    if (result == OK)
        *out = (nvmlComputeInstanceProfileInfo_t){
            .id = number, .slices = slices, .instances = gpu.slices / slices,
            .multiprocessors = (unsigned)gpu.multiprocessors * slices / gpu.slices, .copy = 1};
    return leave_part(__func__, gi, result, out, sizeof *out);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t gi, unsigned number, unsigned engine, nvmlComputeInstanceProfileInfo_v2_t *out) {
    struct profile gpu;
    unsigned slices;
    nvmlReturn_t result = compute_profile(__func__, gi, number, engine, &gpu, &slices);
    if (result == OK && out->version != COMPUTE_PROFILE_V2) result = ARGUMENT_VERSION_MISMATCH;
    if (result == OK) {
        *out = (nvmlComputeInstanceProfileInfo_v2_t){
            .version = COMPUTE_PROFILE_V2, .id = number, .slices = slices,
            .instances = gpu.slices / slices, .copy = 1,
            .multiprocessors = (unsigned)gpu.multiprocessors * slices / gpu.slices};
        compute_name(out->name, &gpu, slices);
    }
    return leave_part(__func__, gi, result, &out->id, sizeof *out - sizeof(unsigned));
}

static int has_compute_room(const struct part *gi, unsigned start, unsigned size) {
    for (int i = 0; i < hardware.ci_count; i++) {
        struct compute_instance *c = &hardware.cis[i];
        if (!strcmp(c->card, now.cards[gi->card].uuid) && c->gpu_instance == gi->gpu_instance &&
            c->start < start + size && start < c->start + c->size)
            return 0;
    }
    return 1;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t gi, unsigned profile, nvmlPlacement_t *out, unsigned *count) {
    struct profile gpu;
    unsigned slices;
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_MONITOR);
    if (result == OK && !find_compute(gi, profile, &gpu, &slices)) result = INVALID_ARGUMENT;
    if (result == OK) {
        unsigned found = gpu.slices - slices + 1, room = *count;
        *count = found;
        if (out && room < found) result = INSUFFICIENT_SIZE;
        for (unsigned i = 0; out && result == OK && i < found; i++)
            out[i] = (nvmlPlacement_t){i, slices};
    }
    return leave(result);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gi,
                                                                    unsigned profile, unsigned *count) {
    struct profile gpu;
    unsigned slices;
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_MONITOR);
    if (result == OK && !find_compute(gi, profile, &gpu, &slices)) result = INVALID_ARGUMENT;
    if (result == OK) {
        unsigned fit = 0;
        for (unsigned at = 0; at + slices <= gpu.slices;) {
            int is_here = has_compute_room(gi, at, slices);
            fit += (unsigned)is_here;
            at += is_here ? slices : 1;
        }
        *count = fit;
    }
    return leave_part(__func__, gi, result, count, sizeof *count);
}

static void name_device(struct compute_instance *c, const char *card) {
    unsigned char b[16] = {0};
    if (!now.has_same_uuids && getrandom(b, sizeof b, 0) != sizeof b) b[0] = 1;
    for (size_t i = 0; now.has_same_uuids && i < strlen(card); i++)
        b[i % 14] = (unsigned char)(b[i % 14] * 31 + card[i]);
    if (now.has_same_uuids) {
        b[14] = (unsigned char)c->gpu_instance;
        b[15] = (unsigned char)c->id;
    }
    b[6] = (unsigned char)(0x50 | (b[6] & 0x0F)); /* version 5, as NVIDIA's look */
    b[8] = (unsigned char)(0x80 | (b[8] & 0x3F));
    snprintf(c->uuid, sizeof c->uuid,
             "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static nvmlReturn_t make_ci(const struct part *gi, unsigned profile, const nvmlPlacement_t *wanted,
                            unsigned *id) {
    struct profile gpu;
    unsigned slices, start = 0;
    if (!find_compute(gi, profile, &gpu, &slices)) return INVALID_ARGUMENT;
    if (wanted && (wanted->size != slices || wanted->start + slices > gpu.slices))
        return INVALID_ARGUMENT;
    if (wanted) start = wanted->start;
    else while (start + slices <= gpu.slices && !has_compute_room(gi, start, slices)) start++;
    if (start + slices > gpu.slices || !has_compute_room(gi, start, slices) ||
        hardware.ci_count == MAX_COMPUTE_INSTANCES)
        return INSUFFICIENT_RESOURCES;
    for (*id = 0; find_ci(gi->card, gi->gpu_instance, *id); (*id)++) {}
    struct compute_instance *c = &hardware.cis[hardware.ci_count++];
    *c = (struct compute_instance){"", "", gi->gpu_instance, *id, profile, start, slices, 0};
    snprintf(c->card, sizeof c->card, "%s", now.cards[gi->card].uuid);
    name_device(c, now.cards[gi->card].uuid);
    return OK;
}

static nvmlReturn_t create_ci(const char *function, nvmlGpuInstance_t gi, unsigned profile,
                              const nvmlPlacement_t *placement, nvmlComputeInstance_t *out) {
    char arguments[96];
    unsigned id = ~0u;
    nvmlReturn_t result = enter_part(function, gi, GPU_INSTANCE, RIGHTS_CONFIG);
    int is_ours = is_part(gi, GPU_INSTANCE);
    hold_hardware();
    if (result == OK) result = make_ci(gi, profile, placement, &id);
    if (result == OK) *out = part_of(COMPUTE_INSTANCE, gi->card, gi->gpu_instance, id);
    snprintf(arguments, sizeof arguments, "gi=%d profile=%u ci=%d",
             is_ours ? (int)gi->gpu_instance : ANY, profile, (int)id);
    return leave_change(function, is_ours ? gi->card : ANY, result, arguments);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned profile,
                                                      nvmlComputeInstance_t *out) {
    return create_ci(__func__, gi, profile, NULL, out);
}
API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gi,
                                                                   unsigned profile,
                                                                   const nvmlPlacement_t *placement,
                                                                   nvmlComputeInstance_t *out) {
    return create_ci(__func__, gi, profile, placement, out);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, unsigned profile,
                                                    nvmlComputeInstance_t *out, unsigned *count) {
    struct profile gpu;
    unsigned slices;
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_MONITOR);
    if (result == OK && !find_compute(gi, profile, &gpu, &slices)) result = INVALID_ARGUMENT;
    if (result == OK) {
        *count = 0;
        for (unsigned n = 0;; n++) {
            struct compute_instance *c = nth_ci(gi->card, (int)gi->gpu_instance, n);
            if (!c) break;
            if (c->profile != profile) continue;
            out[(*count)++] = part_of(COMPUTE_INSTANCE, gi->card, gi->gpu_instance, c->id);
        }
    }
    return leave_part(__func__, gi, result, count, sizeof *count);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned id,
                                                       nvmlComputeInstance_t *out) {
    nvmlReturn_t result = enter_part(__func__, gi, GPU_INSTANCE, RIGHTS_MONITOR);
    if (result == OK && !find_ci(gi->card, gi->gpu_instance, id)) result = NOT_FOUND;
    if (result == OK) *out = part_of(COMPUTE_INSTANCE, gi->card, gi->gpu_instance, id);
    return leave(result);
}

static nvmlReturn_t compute_info(const char *function, nvmlComputeInstance_t ci,
                                 nvmlComputeInstanceInfo_t *out) {
    nvmlReturn_t result = enter_part(function, ci, COMPUTE_INSTANCE, RIGHTS_NONE);
    if (result == OK) {
        struct compute_instance *c = find_ci(ci->card, ci->gpu_instance, ci->compute_instance);
        struct part *device = part_of(MIG_DEVICE, ci->card, c->gpu_instance, c->id);
        *out = (nvmlComputeInstanceInfo_t){
            now.info_names_card ? handle_of(ci->card) : (nvmlDevice_t)(void *)device,
            part_of(GPU_INSTANCE, ci->card, c->gpu_instance, 0), c->id, c->profile,
            {c->start, c->size}};
    }
    return leave_part(function, ci, result, &out->id,
                      sizeof *out - offsetof(nvmlComputeInstanceInfo_t, id));
}

API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *out) {
    return compute_info(__func__, ci, out);
}
API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci,
                                               nvmlComputeInstanceInfo_t *out) {
    return compute_info(__func__, ci, out);
}

static nvmlReturn_t destroy_ci(const struct part *ci) {
    struct gpu_instance *g = find_gi(ci->card, ci->gpu_instance);
    if (!g || !find_ci(ci->card, ci->gpu_instance, ci->compute_instance)) return INVALID_ARGUMENT;
    if (pids_on(ci->card, ci->gpu_instance, (int)ci->compute_instance)) return IN_USE;
    drop_compute_instance(now.cards[ci->card].uuid, ci->gpu_instance, ci->compute_instance);
    g->lingers = (unsigned)now.cards[ci->card].lingers;
    return OK;
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci) {
    char arguments[48];
    nvmlReturn_t result = enter_part(__func__, ci, COMPUTE_INSTANCE, RIGHTS_CONFIG);
    int is_ours = is_part(ci, COMPUTE_INSTANCE);
    hold_hardware();
    if (result == OK) result = destroy_ci(ci);
    snprintf(arguments, sizeof arguments, "gi=%d ci=%d", is_ours ? (int)ci->gpu_instance : ANY,
             is_ours ? (int)ci->compute_instance : ANY);
    return leave_change(__func__, is_ours ? ci->card : ANY, result, arguments);
}
