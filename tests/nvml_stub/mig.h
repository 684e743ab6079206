/* What the files about MIG share: models, and what handles stand for. */
#ifndef MIG_H
#define MIG_H

#include "stub.h"

#define PROFILE_ENUMS 18
#define NAME_SIZE 96

typedef struct { unsigned start, size; } nvmlPlacement_t;

/* -- models, mig_models.c ---------------------------------------------------------------------- */

struct model { const char *key, *part, *other, *generation; unsigned slices; };
struct profile {
    const char *model;
    unsigned number, id;
    const char *name;
    unsigned slices, instances;
    long long memory_mib, multiprocessors;
    unsigned size;
    const char *starts;
};

const struct model *model_of(int card);
int is_ampere(int card);
int find_profile(int card, int number, int id, struct profile *found);
int start_of(const struct profile *p, int n);
unsigned most_devices(int card);

/* -- handles and what they stand for, mig_parts.c ---------------------------------------------- */

enum { GPU_INSTANCE, COMPUTE_INSTANCE, MIG_DEVICE };
struct part { int kind, card; unsigned gpu_instance, compute_instance; };

struct part *part_of(int kind, int card, unsigned gpu_instance, unsigned compute_instance);
struct part *as_part(nvmlDevice_t device);
int is_part(const void *handle, int kind);
struct gpu_instance *find_gi(int card, unsigned id);
struct compute_instance *find_ci(int card, unsigned gpu_instance, unsigned id);
unsigned pids_on(int card, unsigned gpu_instance, int compute_instance);
struct compute_instance *nth_ci(int card, int gpu_instance, unsigned n);
struct compute_instance *at_index(int card, unsigned index);

nvmlReturn_t enter_mig(const char *function, nvmlDevice_t device, int rights);
nvmlReturn_t enter_part(const char *function, const struct part *part, int kind, int rights);
nvmlReturn_t leave_part(const char *function, const void *part, nvmlReturn_t result, void *out,
                        size_t size);
nvmlReturn_t leave_change(const char *function, int card, nvmlReturn_t result, const char *arguments);

void compute_name(char *to, const struct profile *gpu, unsigned slices);

#endif
