/* What the files of the stand-in share: NVML's types and codes, the control file as read, the way
 * into and out of every call (libnvidia-ml.c), and the MIG hardware (mig_hardware.c). */
#ifndef STUB_H
#define STUB_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define API __attribute__((visibility("default")))
#define MAX_CARDS 64
#define MAX_RULES 128
#define MAX_XIDS 256
#define MAX_LINKS 36
#define MAX_PROCESSES 64
#define MAX_COUNTERS 192
#define MAX_NTH 32
#define MAX_PROFILE_CHANGES 64
#define MAX_GPU_INSTANCES 512
#define MAX_COMPUTE_INSTANCES 1024
#define MAX_PIDS 1024
#define ANY (-1)

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { LINK_NONE = 0, LINK_GPU = 1, LINK_SWITCH = 2 };
enum {
    XID_EVENT = 8, FIELD_RESETLESS_MIG = 184, FIELD_MIG_QUERIES_ANYTIME = 199,
    FIELD_RECOVERY_ACTION = 230
};
enum { RIGHTS_NONE, RIGHTS_MONITOR, RIGHTS_CONFIG, RIGHTS_ROOT };

/* -- NVML's types ------------------------------------------------------------------------------ */

typedef int nvmlReturn_t;
typedef struct card_handle { int number; } *nvmlDevice_t;
typedef struct event_set { int watches[MAX_CARDS]; } *nvmlEventSet_t;
typedef struct part *nvmlGpuInstance_t, *nvmlComputeInstance_t;
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct {
    const char *cgroup;
    unsigned long long soft_bytes, hard_bytes;
} nvmlSetMemoryLimits_v1_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} nvmlEventData_t;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    int value_type, result;
    union { unsigned u; unsigned long long ull; } value;
} nvmlFieldValue_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

/* -- the control file -------------------------------------------------------------------------- */

struct card {
    char uuid[96], name[96], bus[32], model[32];
    unsigned long long memory_mib, used_mib;
    int minor, mig, recovery, remapped, busy; /* -1 = not supported */
    int clients, activation, lingers;
    unsigned pids[MAX_PROCESSES], pid_count;
    int link_kind[MAX_LINKS], link_peer[MAX_LINKS], link_count;
};
struct rule { char function[64]; int card; double value; };
struct nth {
    char id[32], function[64], effect[8];
    int card, count, is_after;
    double value;
};
struct xid {
    unsigned long long sequence;
    int card;
    unsigned long long number;
    unsigned gpu_instance, compute_instance;
};
struct profile_change {
    int card;
    char profile[32], name[32];
    long long memory_mib, multiprocessors; /* -1 = as the model has it */
    int is_gone;
};
struct state {
    char driver[80], nvml[80];
    int generation, card_count, fail_count, hang_count, garbage_count, xid_count, nth_count;
    int change_count, rights, has_same_uuids, has_index_gaps, info_names_card;
    struct card cards[MAX_CARDS];
    int level[MAX_CARDS][MAX_CARDS];
    struct rule fails[MAX_RULES], hangs[MAX_RULES], garbage[MAX_RULES];
    struct nth nth[MAX_NTH];
    struct xid xids[MAX_XIDS];
    struct profile_change changes[MAX_PROFILE_CHANGES];
};

extern struct state now;
char *next_word(char **rest);
int number_or_any(const char *word);
int mig_card_word(struct card *card, const char *word, const char *value);
int mig_line(struct state *s, const char *word, char *rest);

/* -- the way into and out of every call -------------------------------------------------------- */

nvmlReturn_t enter(const char *function, int card);
nvmlReturn_t enter_card(const char *function, nvmlDevice_t device);
nvmlReturn_t leave(nvmlReturn_t result);
nvmlReturn_t spoil(const char *function, int card, nvmlReturn_t result, void *out, size_t size);
nvmlReturn_t copy_text(char *to, unsigned size, const char *text);
nvmlDevice_t handle_of(int card);
int number_of(nvmlDevice_t device);

/* -- MIG devices, where calls take them as well as cards --------------------------------------- */

int is_mig_device(nvmlDevice_t device);
int is_mig_on(int card);
nvmlReturn_t mig_uuid(const char *function, nvmlDevice_t device, char *to, unsigned size);
nvmlReturn_t mig_name(const char *function, nvmlDevice_t device, char *to, unsigned size);
nvmlReturn_t mig_index(const char *function, nvmlDevice_t device, unsigned *index);
nvmlReturn_t mig_memory(const char *function, nvmlDevice_t device, unsigned long long *total,
                        unsigned long long *used);
nvmlReturn_t mig_enter(const char *function, nvmlDevice_t device);
nvmlReturn_t mig_processes(nvmlDevice_t device, unsigned room, unsigned *found, nvmlProcessInfo_t *out);
nvmlDevice_t mig_by_uuid(const char *uuid);
int mig_field(int card, unsigned field, unsigned *value);

/* -- the hardware: what all processes share ---------------------------------------------------- */

struct mode { char card[96]; int current, pending; };
struct gpu_instance { char card[96]; unsigned id, profile, start, size, lingers; };
struct compute_instance {
    char card[96], uuid[96];
    unsigned gpu_instance, id, profile, start, size;
    unsigned long long used_mib;
};
struct pid { char card[96]; unsigned gpu_instance, compute_instance, pid; };
struct count { char id[32]; int calls; };
struct hardware {
    int mode_count, gi_count, ci_count, pid_count, count_count;
    struct mode modes[MAX_CARDS];
    struct gpu_instance gis[MAX_GPU_INSTANCES];
    struct compute_instance cis[MAX_COMPUTE_INSTANCES];
    struct pid pids[MAX_PIDS];
    struct count counts[MAX_NTH * 4];
};

extern struct hardware hardware;
void look_at_hardware(void);
void hold_hardware(void);
nvmlReturn_t release_hardware(nvmlReturn_t result);
void log_change(const char *function, int card, nvmlReturn_t result, const char *arguments);
int count_nth(const char *id);
struct mode mode_of(int card);
void set_mode(int card, int current, int pending);
void drop_gpu_instance(const char *card, unsigned id);
void drop_compute_instance(const char *card, unsigned gpu_instance, unsigned id);
int is_change(const char *function);

#endif
