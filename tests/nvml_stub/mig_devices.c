/* MIG devices: NVML's handles of compute instances, in most calls as good as a card's. */
#include "mig.h"

#include <string.h>
#include <strings.h>

typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

/* -- MIG devices ------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) {
        look_at_hardware();
        *count = is_mig_on(number_of(device)) ? most_devices(number_of(device)) : 0;
    }
    return leave(spoil(__func__, number_of(device), result, count, sizeof *count));
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                     nvmlDevice_t *out) {
    nvmlReturn_t result = enter_mig(__func__, device, RIGHTS_NONE);
    int card = number_of(device);
    if (result == OK && index >= most_devices(card)) result = INVALID_ARGUMENT;
    if (result == OK) {
        struct compute_instance *c = at_index(card, index);
        if (!c) result = NOT_FOUND;
        else *out = (nvmlDevice_t)(void *)part_of(MIG_DEVICE, card, c->gpu_instance, c->id);
    }
    return leave(result);
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
    int is_device = is_mig_device(device);
    nvmlReturn_t result = is_device ? enter_part(__func__, as_part(device), MIG_DEVICE, RIGHTS_NONE)
                                    : enter_card(__func__, device);
    if (result == OK) *is_mig = (unsigned)is_device;
    return leave(result);
}

/* Enters a call that takes MIG devices only. */
static nvmlReturn_t enter_device(const char *function, nvmlDevice_t device) {
    if (is_mig_device(device)) return enter_part(function, as_part(device), MIG_DEVICE, RIGHTS_NONE);
    nvmlReturn_t result = enter_card(function, device);
    return result == OK ? NOT_SUPPORTED : result;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out) {
    nvmlReturn_t result = enter_device(__func__, device);
    if (result == OK) *out = handle_of(as_part(device)->card);
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    nvmlReturn_t result = enter_device(__func__, device);
    if (result == OK) *id = as_part(device)->gpu_instance;
    return leave_part(__func__, device, result, id, sizeof *id);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    nvmlReturn_t result = enter_device(__func__, device);
    if (result == OK) *id = as_part(device)->compute_instance;
    return leave_part(__func__, device, result, id, sizeof *id);
}

/* What a MIG device is: its compute instance and the profile of its GPU instance. */
static struct compute_instance *device_facts(nvmlDevice_t device, struct profile *gpu) {
    struct part *p = as_part(device);
    struct gpu_instance *g = find_gi(p->card, p->gpu_instance);
    if (!find_profile(p->card, ANY, (int)g->profile, gpu)) *gpu = (struct profile){.name = "", .slices = 1};
    return find_ci(p->card, p->gpu_instance, p->compute_instance);
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out) {
    struct profile gpu;
    nvmlReturn_t result = enter_device(__func__, device);
    if (result == OK) {
        struct compute_instance *c = device_facts(device, &gpu);
        *out = (nvmlDeviceAttributes_t){
            .multiprocessors = (unsigned)gpu.multiprocessors * c->size / gpu.slices, .copy = 1,
            .gpu_slices = gpu.slices, .compute_slices = c->size,
            .memory_mib = (unsigned long long)gpu.memory_mib};
    }
    return leave_part(__func__, device, result, out, sizeof *out);
}

nvmlReturn_t mig_uuid(const char *function, nvmlDevice_t device, char *to, unsigned size) {
    struct profile gpu;
    nvmlReturn_t result = enter_device(function, device);
    if (result == OK) result = copy_text(to, size, device_facts(device, &gpu)->uuid);
    return leave_part(function, device, result, to, size - 1);
}

nvmlReturn_t mig_name(const char *function, nvmlDevice_t device, char *to, unsigned size) {
    struct profile gpu;
    char name[NAME_SIZE], whole[NAME_SIZE * 2];
    nvmlReturn_t result = enter_device(function, device);
    if (result == OK) {
        compute_name(name, &gpu, device_facts(device, &gpu)->size);
        snprintf(whole, sizeof whole, "%s %s", now.cards[as_part(device)->card].name, name);
        result = copy_text(to, size, whole);
    }
    return leave_part(function, device, result, to, size - 1);
}

nvmlReturn_t mig_index(const char *function, nvmlDevice_t device, unsigned *index) {
    nvmlReturn_t result = enter_device(function, device);
    struct part *p = as_part(device);
    for (unsigned i = 0; result == OK && i < most_devices(p->card); i++) {
        struct compute_instance *c = at_index(p->card, i);
        if (c && c->gpu_instance == p->gpu_instance && c->id == p->compute_instance) *index = i;
    }
    return leave(result);
}

nvmlReturn_t mig_memory(const char *function, nvmlDevice_t device, unsigned long long *total,
                        unsigned long long *used) {
    struct profile gpu;
    nvmlReturn_t result = enter_device(function, device);
    if (result == OK) {
        *used = device_facts(device, &gpu)->used_mib << 20;
        *total = (unsigned long long)gpu.memory_mib << 20;
    }
    return result; /* the caller leaves */
}

nvmlReturn_t mig_enter(const char *function, nvmlDevice_t device) {
    return enter_part(function, as_part(device), MIG_DEVICE, RIGHTS_NONE);
}

/* Adds the processes on a MIG device, or on all of a card that is in MIG mode. */
nvmlReturn_t mig_processes(nvmlDevice_t device, unsigned room, unsigned *found, nvmlProcessInfo_t *out) {
    int is_device = is_mig_device(device), card = is_device ? as_part(device)->card : number_of(device);
    look_at_hardware();
    if (!is_mig_on(card)) return OK;
    if (now.rights < RIGHTS_MONITOR) return NO_PERMISSION;
    for (int i = 0; i < hardware.pid_count; i++) {
        struct pid *p = &hardware.pids[i];
        if (strcmp(p->card, now.cards[card].uuid)) continue;
        if (is_device && (p->gpu_instance != as_part(device)->gpu_instance ||
                          p->compute_instance != as_part(device)->compute_instance))
            continue;
        if (*found < room)
            out[*found] = (nvmlProcessInfo_t){p->pid, 1 << 20, p->gpu_instance, p->compute_instance};
        ++*found;
    }
    return OK;
}

/* The MIG device of that UUID, in either form; NULL without one. Call it inside a call. */
nvmlDevice_t mig_by_uuid(const char *uuid) {
    char card[96];
    unsigned gi, ci;
    look_at_hardware();
    int is_old = sscanf(uuid, "MIG-%95[^/]/%u/%u", card, &gi, &ci) == 3;
    for (int i = 0; i < hardware.ci_count; i++) {
        struct compute_instance *c = &hardware.cis[i];
        int is_it = is_old ? !strcasecmp(card, c->card) && c->gpu_instance == gi && c->id == ci
                           : !strcasecmp(uuid, c->uuid);
        for (int number = 0; is_it && number < now.card_count; number++)
            if (!strcmp(now.cards[number].uuid, c->card) && is_mig_on(number))
                return (nvmlDevice_t)(void *)part_of(MIG_DEVICE, number, c->gpu_instance, c->id);
    }
    return NULL;
}
