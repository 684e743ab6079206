/* Handles of instances and MIG devices, and the way into the calls that take them. */
#include "mig.h"

#include <string.h>

#define MAX_PARTS 4096

/* -- handles, and what they stand for ---------------------------------------------------------- */

static struct part parts[MAX_PARTS];
static int part_count;

struct part *part_of(int kind, int card, unsigned gpu_instance, unsigned compute_instance) {
    struct part wanted = {kind, card, gpu_instance, compute_instance};
    for (int i = 0; i < part_count; i++)
        if (!memcmp(&parts[i], &wanted, sizeof wanted)) return &parts[i];
    if (part_count == MAX_PARTS) part_count = 0;
    parts[part_count] = wanted;
    return &parts[part_count++];
}

int is_part(const void *handle, int kind) {
    const struct part *p = handle;
    return p >= parts && p < parts + MAX_PARTS && p->kind == kind;
}

struct part *as_part(nvmlDevice_t device) { return (struct part *)(void *)device; }

int is_mig_device(nvmlDevice_t device) { return is_part(device, MIG_DEVICE); }

struct gpu_instance *find_gi(int card, unsigned id) {
    for (int i = 0; i < hardware.gi_count; i++)
        if (hardware.gis[i].id == id && !strcmp(hardware.gis[i].card, now.cards[card].uuid))
            return &hardware.gis[i];
    return NULL;
}

struct compute_instance *find_ci(int card, unsigned gpu_instance, unsigned id) {
    for (int i = 0; i < hardware.ci_count; i++) {
        struct compute_instance *c = &hardware.cis[i];
        if (c->id == id && c->gpu_instance == gpu_instance && !strcmp(c->card, now.cards[card].uuid))
            return c;
    }
    return NULL;
}

unsigned pids_on(int card, unsigned gpu_instance, int compute_instance) {
    unsigned count = 0;
    for (int i = 0; i < hardware.pid_count; i++) {
        struct pid *p = &hardware.pids[i];
        count += p->gpu_instance == gpu_instance && !strcmp(p->card, now.cards[card].uuid) &&
            (compute_instance == ANY || p->compute_instance == (unsigned)compute_instance);
    }
    return count;
}

/* The n-th compute instance of a card, or of a GPU instance, in the order of their ids. */
struct compute_instance *nth_ci(int card, int gpu_instance, unsigned n) {
    for (unsigned gi = 0; gi < 64; gi++)
        for (unsigned ci = 0; ci < 8; ci++) {
            if (gpu_instance != ANY && gi != (unsigned)gpu_instance) continue;
            struct compute_instance *c = find_gi(card, gi) ? find_ci(card, gi, ci) : NULL;
            if (c && n-- == 0) return c;
        }
    return NULL;
}

/* The compute instance at an index of MIG devices. */
struct compute_instance *at_index(int card, unsigned index) {
    if (!now.has_index_gaps) return nth_ci(card, ANY, index);
    unsigned most = most_devices(card);
    return index < most ? nth_ci(card, ANY, most - 1 - index) : NULL;
}

/* -- the way into the calls -------------------------------------------------------------------- */

int is_mig_on(int card) { return now.cards[card].mig >= 0 && mode_of(card).current == 1; }

/* Enters a call about a card; looks at the hardware. */
nvmlReturn_t enter_mig(const char *function, nvmlDevice_t device, int rights) {
    nvmlReturn_t result = enter_card(function, device);
    if (result != OK) return result;
    look_at_hardware();
    if (now.rights < rights) return NO_PERMISSION;
    return is_mig_on(number_of(device)) ? OK : NOT_SUPPORTED;
}

/* Enters a call about an instance or a MIG device; those that are gone are invalid. */
nvmlReturn_t enter_part(const char *function, const struct part *part, int kind, int rights) {
    int is_ours = is_part(part, kind);
    nvmlReturn_t result = enter(function, is_ours ? part->card : ANY);
    if (result != OK) return result;
    if (!is_ours || part->card >= now.card_count) return INVALID_ARGUMENT;
    look_at_hardware();
    if (now.rights < rights) return NO_PERMISSION;
    if (!is_mig_on(part->card)) return NOT_SUPPORTED;
    if (!find_gi(part->card, part->gpu_instance)) return INVALID_ARGUMENT;
    if (kind != GPU_INSTANCE && !find_ci(part->card, part->gpu_instance, part->compute_instance))
        return INVALID_ARGUMENT;
    return OK;
}

nvmlReturn_t leave_part(const char *function, const void *part, nvmlReturn_t result, void *out,
                               size_t size) {
    const struct part *p = part;
    int is_known = p >= parts && p < parts + MAX_PARTS;
    return leave(spoil(function, is_known ? p->card : ANY, result, out, size));
}

/* Ends a call that changes the hardware, which is held: with the log, then the change. */
nvmlReturn_t leave_change(const char *function, int card, nvmlReturn_t result,
                                 const char *arguments) {
    log_change(function, card, result, arguments);
    return leave(release_hardware(result));
}
