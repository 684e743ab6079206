/*
 * MIG in the stand-in: NVML's calls about modes and GPU instances (GI) are in mig_gpu.c, about compute
 * instances (CI) in mig_compute.c, about MIG devices in mig_devices.c. What they change stands in
 * mig_hardware.c; what a model can hold in models.inc. The control file, read here, says more:
 *
 *   card ... [model=<of models.inc>] [clients=<programs that hold the card>]
 *            [activation=<nvmlReturn of every mode change>]
 *            [lingers=<times that a GI answers IN_USE after its CI was destroyed>]
 *   profile <card|*> <name> [memory_mib=N] [multiprocessors=N] [name=NEW] [gone=1]  another driver's
 *   rights root|config|monitor|none     of the calling process; root unless said
 *   uuids new|same                      of an instance made again: another, or the same
 *   indices dense|gaps                  `gaps`: MIG device 0 is missing, and the order is reversed
 *   compute_info mig|card               which handle nvmlComputeInstanceGetInfo_v2 answers with
 *
 * `mig=enabled` or `mig=disabled` of a card counts until its mode is set by a call or by mig.py.
 */
#include "mig.h"

#include <stdlib.h>
#include <string.h>

#define MODEL(...) {__VA_ARGS__},
#define PROFILE(...)
static const struct model models[] = {
#include "models.inc"
};
#undef MODEL
#undef PROFILE
#define MODEL(...)
#define PROFILE(...) {__VA_ARGS__},
static const struct profile profiles[] = {
#include "models.inc"
};
#define LENGTH(array) (sizeof array / sizeof *array)

const struct model *model_of(int card) {
    const struct card *c = &now.cards[card];
    for (size_t i = 0; i < LENGTH(models); i++)
        if (c->model[0] ? !strcmp(c->model, models[i].key)
                        : strstr(c->name, models[i].part) && strstr(c->name, models[i].other))
            return &models[i];
    return &models[LENGTH(models) - 1];
}

int is_ampere(int card) { return !strcmp(model_of(card)->generation, "ampere"); }

/* What this driver says of a profile; `number` or `id` is ANY. False where it has none. */
int find_profile(int card, int number, int id, struct profile *found) {
    for (size_t i = 0; i < LENGTH(profiles); i++) {
        const struct profile *p = &profiles[i];
        if (strcmp(p->model, model_of(card)->key)) continue;
        if (number != ANY ? p->number != (unsigned)number : p->id != (unsigned)id) continue;
        *found = *p;
        for (int j = 0; j < now.change_count; j++) {
            const struct profile_change *change = &now.changes[j];
            if (strcmp(change->profile, p->name) || (change->card != ANY && change->card != card))
                continue;
            if (change->is_gone) return 0;
            if (change->name[0]) found->name = change->name;
            if (change->memory_mib >= 0) found->memory_mib = change->memory_mib;
            if (change->multiprocessors >= 0) found->multiprocessors = change->multiprocessors;
        }
        return 1;
    }
    return 0;
}

/* The n-th start of a profile, ANY after the last. */
int start_of(const struct profile *p, int n) {
    char *at = (char *)p->starts, *end;
    for (;; n--, at = end) {
        long start = strtol(at, &end, 10);
        if (end == at) return ANY;
        if (n == 0) return (int)start;
    }
}

unsigned most_devices(int card) {
    unsigned most = 0;
    struct profile p;
    for (int number = 0; number < PROFILE_ENUMS; number++)
        if (find_profile(card, number, ANY, &p) && p.instances > most) most = p.instances;
    return most;
}

/* -- what the control file says of MIG --------------------------------------------------------- */

int mig_card_word(struct card *card, const char *word, const char *value) {
    if (!strcmp(word, "model")) snprintf(card->model, sizeof card->model, "%s", value);
    else if (!strcmp(word, "clients")) card->clients = atoi(value);
    else if (!strcmp(word, "activation")) card->activation = atoi(value);
    else if (!strcmp(word, "lingers")) card->lingers = atoi(value);
    else return 0;
    return 1;
}

static void read_profile_change(struct state *s, char *rest) {
    char *card = next_word(&rest), *name = next_word(&rest), *word;
    if (!name || s->change_count == MAX_PROFILE_CHANGES) return;
    struct profile_change *change = &s->changes[s->change_count++];
    *change = (struct profile_change){number_or_any(card), "", "", -1, -1, 0};
    snprintf(change->profile, sizeof change->profile, "%s", name);
    while ((word = next_word(&rest))) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "memory_mib")) change->memory_mib = atoll(value);
        if (!strcmp(word, "multiprocessors")) change->multiprocessors = atoll(value);
        if (!strcmp(word, "name")) snprintf(change->name, sizeof change->name, "%s", value);
        if (!strcmp(word, "gone")) change->is_gone = atoi(value);
    }
}

int mig_line(struct state *s, const char *word, char *rest) {
    static const char *const rights[] = {"none", "monitor", "config", "root"};
    if (!strcmp(word, "profile")) {
        read_profile_change(s, rest);
        return 1;
    }
    if (strcmp(word, "rights") && strcmp(word, "uuids") && strcmp(word, "indices") &&
        strcmp(word, "compute_info"))
        return 0;
    char *value = next_word(&rest);
    for (int i = 0; value && i < 4; i++)
        if (!strcmp(word, "rights") && !strcmp(value, rights[i])) s->rights = i;
    if (value && !strcmp(word, "uuids")) {
        s->has_same_uuids = !strcmp(value, "same");
    }
    if (value && !strcmp(word, "indices")) s->has_index_gaps = !strcmp(value, "gaps");
    if (value && !strcmp(word, "compute_info")) s->info_names_card = !strcmp(value, "card");
    return 1;
}

int mig_field(int card, unsigned field, unsigned *value) {
    if (now.cards[card].mig < 0) return 0;
    if (field != FIELD_RESETLESS_MIG && field != FIELD_MIG_QUERIES_ANYTIME) return 0;
    *value = !is_ampere(card);
    return 1;
}
