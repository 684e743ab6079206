/*
 * A stand-in for the driver's libnvidia-ml.so.1, for tests: no GPU, no driver, no threads, libc only.
 *
 * What it answers stands in the text file named by NVML_STUB_FILE, read again whenever it changes.
 * Replace the file by a rename (write beside it, then mv) so that no half-written state is seen.
 * One fact a line; '#' starts a comment; text with spaces in double quotes:
 *
 *   driver 570.86.15                    driver version
 *   nvml 12.570.86.15                   NVML version
 *   generation 1                        another number = the driver was reloaded: every call answers
 *                                       NVML_ERROR_UNINITIALIZED until shutdown and init
 *   card uuid=GPU-1 name="NVIDIA A10" memory_mib=24576 bus=00000000:3B:00.0 [minor=0]
 *        [mig=unsupported|disabled|enabled] [recovery=none|unsupported|<number>]
 *        [remapped=unsupported|none|pending|failure] [used_mib=0]       cards are numbered in order
 *        [busy=unsupported|<percent>] [processes=<pid>,<pid>...]
 *   topology <card|*> <card|*> internal|single|multiple|hostbridge|node|system   (both directions)
 *   links <card|*> <count> switch       NVLinks through a switch
 *   links <card> <count> <card>         NVLinks between two cards (both directions)
 *   fail <function|*> <card|*> <nvmlReturn>
 *   hang <function|*> <card|*> <seconds>    ends early once the line is gone
 *   garbage <function|*> <card|*> <byte>    answers with success, every byte of the answer being that
 *   xid <sequence> <card> <number>      delivered once; sequence numbers only grow
 *
 * What nvmlDeviceSetMemoryLimits_v1 was given is added to the file `$NVML_STUB_FILE.limits`, a call a
 * line: uuid, soft and hard limit in bytes, cgroup.
 *
 * Build: tests/nvml_stub/build.py. Calls are counted: nvmlStubCalls("nvmlInitWithFlags").
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_CARDS 64
#define MAX_RULES 128
#define MAX_XIDS 256
#define MAX_LINKS 36
#define MAX_PROCESSES 64
#define MAX_COUNTERS 96
#define ANY (-1)

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10
};
enum { LINK_NONE = 0, LINK_GPU = 1, LINK_SWITCH = 2 };
enum { XID_EVENT = 8, FIELD_RECOVERY_ACTION = 230 };

typedef int nvmlReturn_t;
typedef struct card_handle { int number; } *nvmlDevice_t;
typedef struct event_set { int watches[MAX_CARDS]; } *nvmlEventSet_t;
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

struct card {
    char uuid[96], name[96], bus[32];
    unsigned long long memory_mib, used_mib;
    int minor, mig, recovery, remapped, busy; /* -1 = not supported */
    unsigned pids[MAX_PROCESSES], pid_count;
    int link_kind[MAX_LINKS], link_peer[MAX_LINKS], link_count;
};
struct rule { char function[64]; int card; double value; };
struct xid { unsigned long long sequence; int card; unsigned long long number; };
struct state {
    char driver[80], nvml[80];
    int generation, card_count, fail_count, hang_count, garbage_count, xid_count;
    struct card cards[MAX_CARDS];
    int level[MAX_CARDS][MAX_CARDS];
    struct rule fails[MAX_RULES], hangs[MAX_RULES], garbage[MAX_RULES];
    struct xid xids[MAX_XIDS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state now;
static struct stat seen;
static int is_read, init_count, init_generation, has_seen_xids;
static unsigned long long last_xid;
static unsigned version; /* grows with every change of the file */
static struct card_handle handles[MAX_CARDS];
static struct { char function[64]; unsigned count; } counters[MAX_COUNTERS];

/* -- the control file ------------------------------------------------------------------------- */

static char *next_word(char **rest) {
    char *at = *rest, *out, *start;
    int quoted = 0;
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    if (*at == 0 || *at == '#') return NULL;
    for (start = out = at; *at && (quoted || !strchr(" \t\r\n", *at)); at++) {
        if (*at == '"') quoted = !quoted;
        else *out++ = *at;
    }
    *rest = *at ? at + 1 : at;
    *out = 0;
    return start;
}

static int number_or_any(const char *word) {
    return word == NULL || strcmp(word, "*") == 0 ? ANY : atoi(word);
}

static int one_of(const char *word, const char *const *names, int fallback) {
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i - 1;
    return fallback;
}

static void read_card(struct state *s, char *rest) {
    static const char *const mig[] = {"unsupported", "disabled", "enabled", NULL};
    static const char *const remapped[] = {"unsupported", "none", "pending", "failure", NULL};
    static const char *const recovery[] = {"unsupported", "none", NULL};
    static const char *const busy[] = {"unsupported", NULL};
    if (s->card_count == MAX_CARDS) return;
    struct card *c = &s->cards[s->card_count];
    memset(c, 0, sizeof *c);
    c->minor = s->card_count;
    snprintf(c->bus, sizeof c->bus, "00000000:%02X:00.0", s->card_count + 1);
    for (char *word; (word = next_word(&rest));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "uuid")) snprintf(c->uuid, sizeof c->uuid, "%s", value);
        if (!strcmp(word, "name")) snprintf(c->name, sizeof c->name, "%s", value);
        if (!strcmp(word, "bus")) snprintf(c->bus, sizeof c->bus, "%s", value);
        if (!strcmp(word, "memory_mib")) c->memory_mib = strtoull(value, NULL, 10);
        if (!strcmp(word, "used_mib")) c->used_mib = strtoull(value, NULL, 10);
        if (!strcmp(word, "minor")) c->minor = atoi(value);
        if (!strcmp(word, "mig")) c->mig = one_of(value, mig, 0);
        if (!strcmp(word, "remapped")) c->remapped = one_of(value, remapped, 0);
        if (!strcmp(word, "recovery")) c->recovery = one_of(value, recovery, atoi(value));
        if (!strcmp(word, "busy")) c->busy = one_of(value, busy, atoi(value));
        if (!strcmp(word, "processes"))
            for (char *at = value; *at && c->pid_count < MAX_PROCESSES; at += *at == ',')
                c->pids[c->pid_count++] = (unsigned)strtoul(at, &at, 10);
    }
    s->card_count++;
}

static void read_topology(struct state *s, char *rest) {
    static const char *const names[] = {"", "internal", "single", "multiple", "hostbridge", "node",
                                        "system", NULL};
    int a = number_or_any(next_word(&rest)), b = number_or_any(next_word(&rest));
    char *word = next_word(&rest);
    int level = word ? one_of(word, names, 5) * 10 : 50;
    for (int i = 0; i < MAX_CARDS; i++)
        for (int j = 0; j < MAX_CARDS; j++)
            if (((a == ANY || a == i) && (b == ANY || b == j)) ||
                ((a == ANY || a == j) && (b == ANY || b == i)))
                s->level[i][j] = level;
}

static void add_links(struct state *s, int card, int count, int kind, int peer) {
    struct card *c = &s->cards[card];
    for (; count > 0 && c->link_count < MAX_LINKS; count--, c->link_count++) {
        c->link_kind[c->link_count] = kind;
        c->link_peer[c->link_count] = peer;
    }
}

static void read_links(struct state *s, char *rest) {
    int card = number_or_any(next_word(&rest));
    char *count = next_word(&rest), *peer = next_word(&rest);
    if (!count || !peer) return;
    if (!strcmp(peer, "switch")) {
        for (int i = 0; i < s->card_count; i++)
            if (card == ANY || card == i) add_links(s, i, atoi(count), LINK_SWITCH, ANY);
    } else if (card >= 0 && card < MAX_CARDS && atoi(peer) >= 0 && atoi(peer) < MAX_CARDS) {
        add_links(s, card, atoi(count), LINK_GPU, atoi(peer));
        add_links(s, atoi(peer), atoi(count), LINK_GPU, card);
    }
}

static void read_rule(struct rule *rules, int *count, char *rest) {
    char *function = next_word(&rest), *card = next_word(&rest), *value = next_word(&rest);
    if (!function || !card || !value || *count == MAX_RULES) return;
    struct rule *r = &rules[(*count)++];
    snprintf(r->function, sizeof r->function, "%s", function);
    r->card = number_or_any(card);
    r->value = atof(value);
}

static void read_xid(struct state *s, char *rest) {
    char *sequence = next_word(&rest), *card = next_word(&rest), *number = next_word(&rest);
    if (!sequence || !card || !number || s->xid_count == MAX_XIDS) return;
    s->xids[s->xid_count++] = (struct xid){
        strtoull(sequence, NULL, 10), number_or_any(card), strtoull(number, NULL, 10)};
}

static void read_line(struct state *s, char *line) {
    char *rest = line, *word = next_word(&rest), *value;
    if (!word) return;
    if (!strcmp(word, "card")) read_card(s, rest);
    else if (!strcmp(word, "topology")) read_topology(s, rest);
    else if (!strcmp(word, "links")) read_links(s, rest);
    else if (!strcmp(word, "fail")) read_rule(s->fails, &s->fail_count, rest);
    else if (!strcmp(word, "hang")) read_rule(s->hangs, &s->hang_count, rest);
    else if (!strcmp(word, "garbage")) read_rule(s->garbage, &s->garbage_count, rest);
    else if (!strcmp(word, "xid")) read_xid(s, rest);
    else if (!(value = next_word(&rest))) return;
    else if (!strcmp(word, "driver")) snprintf(s->driver, sizeof s->driver, "%s", value);
    else if (!strcmp(word, "nvml")) snprintf(s->nvml, sizeof s->nvml, "%s", value);
    else if (!strcmp(word, "generation")) s->generation = atoi(value);
}

/* Takes over a changed file. Call with the lock held. False when there is no file to read. */
static int refresh(void) {
    static struct state fresh;
    const char *path = getenv("NVML_STUB_FILE");
    struct stat found;
    char line[1024];
    if (!path || stat(path, &found)) return 0;
    if (is_read && found.st_ino == seen.st_ino && found.st_size == seen.st_size &&
        found.st_mtim.tv_sec == seen.st_mtim.tv_sec && found.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return 1;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    memset(&fresh, 0, sizeof fresh);
    snprintf(fresh.driver, sizeof fresh.driver, "570.86.15");
    snprintf(fresh.nvml, sizeof fresh.nvml, "12.570.86.15");
    for (int i = 0; i < MAX_CARDS; i++)
        for (int j = 0; j < MAX_CARDS; j++) fresh.level[i][j] = 50;
    while (fgets(line, sizeof line, file)) read_line(&fresh, line);
    fclose(file);
    now = fresh;
    seen = found;
    is_read = 1;
    version++;
    return 1;
}

/* -- what every call passes through ------------------------------------------------------------ */

static void count_call(const char *function) {
    for (int i = 0; i < MAX_COUNTERS; i++) {
        if (counters[i].count == 0) snprintf(counters[i].function, 64, "%s", function);
        if (strcmp(counters[i].function, function)) continue;
        counters[i].count++;
        return;
    }
}

static const struct rule *rule_of(const struct rule *rules, int count, const char *function, int card) {
    for (int i = 0; i < count; i++)
        if ((!strcmp(rules[i].function, "*") || !strcmp(rules[i].function, function)) &&
            (rules[i].card == ANY || rules[i].card == card))
            return &rules[i];
    return NULL;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits, without the lock, for as long as a hang line asks for it. Call with the lock held. */
static void hang(const char *function, int card) {
    double start = seconds();
    for (const struct rule *r;
         (r = rule_of(now.hangs, now.hang_count, function, card)) && seconds() - start < r->value;
         refresh()) {
        struct timespec pause = {0, 5 * 1000 * 1000};
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
}

/* Locks; answers what the control file asks this call to answer. The caller unlocks with leave(). */
static nvmlReturn_t enter(const char *function, int card) {
    pthread_mutex_lock(&lock);
    count_call(function);
    if (!refresh()) return DRIVER_NOT_LOADED;
    hang(function, card);
    const struct rule *r = rule_of(now.fails, now.fail_count, function, card);
    if (r) return (nvmlReturn_t)r->value;
    if (strncmp(function, "nvmlInit", 8) == 0) return OK;
    if (init_count == 0 || init_generation != now.generation) return UNINITIALIZED;
    return OK;
}

static nvmlReturn_t leave(nvmlReturn_t result) {
    pthread_mutex_unlock(&lock);
    return result;
}

/* Replaces the bytes of an answer where a garbage line asks for it. Call with the lock held. */
static nvmlReturn_t spoil(const char *function, int card, nvmlReturn_t result, void *out, size_t size) {
    const struct rule *r = rule_of(now.garbage, now.garbage_count, function, card);
    if (result == OK && r) memset(out, (int)r->value, size);
    return result;
}

static int number_of(nvmlDevice_t device) {
    return device >= handles && device < handles + MAX_CARDS ? (int)(device - handles) : ANY;
}

static nvmlReturn_t enter_card(const char *function, nvmlDevice_t device) {
    int card = number_of(device);
    nvmlReturn_t result = enter(function, card);
    if (result == OK && (card == ANY || card >= now.card_count)) return INVALID_ARGUMENT;
    return result;
}

static nvmlReturn_t copy_text(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    to[size - 1] = 0; /* what spoil() leaves */
    return OK;
}

API unsigned nvmlStubCalls(const char *function) {
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_COUNTERS; i++)
        if (!strcmp(counters[i].function, function)) count = counters[i].count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* -- session and system ------------------------------------------------------------------------ */

static nvmlReturn_t init(const char *function) {
    nvmlReturn_t result = enter(function, ANY);
    if (result == OK) {
        init_count++;
        init_generation = now.generation;
        for (int i = 0; !has_seen_xids && i < now.xid_count; i++)
            if (now.xids[i].sequence > last_xid) last_xid = now.xids[i].sequence;
        has_seen_xids = 1;
    }
    return leave(result);
}

API nvmlReturn_t nvmlInit(void) { return init("nvmlInit"); }
API nvmlReturn_t nvmlInit_v2(void) { return init("nvmlInit_v2"); }
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return init("nvmlInitWithFlags"); }

API nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = enter("nvmlShutdown", ANY);
    if (result == UNINITIALIZED && init_count > 0) result = OK;
    if (result == OK) init_count--;
    return leave(result);
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    static __thread char text[40];
    snprintf(text, sizeof text, "stub error %d", result);
    return text;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned size) {
    nvmlReturn_t result = enter(__func__, ANY);
    return leave(result ? result : copy_text(to, size, now.driver));
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned size) {
    nvmlReturn_t result = enter(__func__, ANY);
    return leave(result ? result : copy_text(to, size, now.nvml));
}

/* -- finding cards ----------------------------------------------------------------------------- */

static nvmlReturn_t card_total(const char *function, unsigned *count) {
    nvmlReturn_t result = enter(function, ANY);
    if (result == OK) *count = (unsigned)now.card_count;
    return leave(spoil(function, ANY, result, count, sizeof *count));
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return card_total(__func__, count); }
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return card_total(__func__, count); }

static nvmlReturn_t by_index(const char *function, unsigned index, nvmlDevice_t *device) {
    nvmlReturn_t result = enter(function, (int)index);
    if (result == OK && index >= (unsigned)now.card_count) result = INVALID_ARGUMENT;
    if (result == OK) *device = &handles[index];
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return by_index(__func__, index, device);
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    return by_index(__func__, index, device);
}

static nvmlReturn_t by_text(const char *function, const char *text, int is_uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = enter(function, ANY);
    int found = ANY;
    for (int i = 0; i < now.card_count; i++)
        if (!strcasecmp(is_uuid ? now.cards[i].uuid : now.cards[i].bus, text)) found = i;
    if (result == OK && found == ANY) result = NOT_FOUND;
    if (result == OK) *device = &handles[found];
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return by_text(__func__, uuid, 1, device);
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device) {
    return by_text(__func__, bus, 0, device);
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
    return by_text(__func__, bus, 0, device);
}

/* -- one card ---------------------------------------------------------------------------------- */

#define CARD now.cards[number_of(device)]

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *to, unsigned size) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) result = copy_text(to, size, CARD.uuid);
    return leave(spoil(__func__, number_of(device), result, to, size - 1));
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *to, unsigned size) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) result = copy_text(to, size, CARD.name);
    return leave(spoil(__func__, number_of(device), result, to, size - 1));
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *index = (unsigned)number_of(device);
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *minor = (unsigned)CARD.minor;
    return leave(spoil(__func__, number_of(device), result, minor, sizeof *minor));
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) {
        memory->total = CARD.memory_mib << 20;
        memory->used = CARD.used_mib << 20;
        memory->free = memory->total - memory->used;
    }
    return leave(spoil(__func__, number_of(device), result, memory, sizeof *memory));
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) {
        memory->total = CARD.memory_mib << 20;
        memory->used = CARD.used_mib << 20;
        memory->reserved = 0;
        memory->free = memory->total - memory->used;
    }
    return leave(result);
}

#ifndef WITHOUT_MEMORY_LIMITS /* as a driver before 615 */
/* Every limit that was set is a line of the file `$NVML_STUB_FILE.limits`: who calls may end at once. */
API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && (CARD.mig == 1 || limits->soft_bytes > limits->hard_bytes ||
                         (limits->hard_bytes != ~0ull && limits->hard_bytes >> 20 > CARD.memory_mib)))
        result = INVALID_ARGUMENT;
    if (result == OK) {
        char path[1024];
        snprintf(path, sizeof path, "%s.limits", getenv("NVML_STUB_FILE"));
        FILE *file = fopen(path, "ae");
        if (!file) return leave(NOT_SUPPORTED);
        fprintf(file, "%s %llu %llu %s\n", CARD.uuid, limits->soft_bytes, limits->hard_bytes,
                limits->cgroup);
        fclose(file);
    }
    return leave(result);
}
#endif

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && CARD.busy < 0) result = NOT_SUPPORTED;
    if (result == OK) {
        rates->gpu = (unsigned)CARD.busy;
        rates->memory = (unsigned)CARD.busy / 2;
    }
    return leave(spoil(__func__, number_of(device), result, rates, sizeof *rates));
}

static nvmlReturn_t processes(const char *function, nvmlDevice_t device, unsigned *count,
                              nvmlProcessInfo_t *out) {
    nvmlReturn_t result = enter_card(function, device);
    if (result == OK) {
        unsigned room = *count;
        *count = CARD.pid_count;
        if (room < *count) result = INSUFFICIENT_SIZE;
        for (unsigned i = 0; result == OK && i < *count; i++)
            out[i] = (nvmlProcessInfo_t){CARD.pids[i], 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
    }
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_t *out) {
    return processes(__func__, device, count, out);
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_t *out) {
    return processes(__func__, device, count, out);
}

static void fill_pci(nvmlPciInfo_t *pci, const char *bus) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus);
    snprintf(pci->bus_legacy, sizeof pci->bus_legacy, "%.15s", strlen(bus) > 4 ? bus + 4 : bus);
    sscanf(bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}

static nvmlReturn_t pci_info(const char *function, nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t result = enter_card(function, device);
    if (result == OK) fill_pci(pci, CARD.bus);
    return leave(spoil(function, number_of(device), result, pci, sizeof *pci));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return pci_info(__func__, device, pci);
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return pci_info(__func__, device, pci);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && CARD.mig < 0) result = NOT_SUPPORTED;
    if (result == OK) *current = *pending = (unsigned)CARD.mig;
    return leave(spoil(__func__, number_of(device), result, current, sizeof *current));
}

/* What NVIDIA's container toolkit asks of every card: none has a MIG instance, or is one. */
API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *count = 0;
    return leave(result);
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *is_mig = 0;
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable,
                                           unsigned *uncorrectable, unsigned *pending,
                                           unsigned *failure) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && CARD.remapped < 0) result = NOT_SUPPORTED;
    if (result == OK) {
        *correctable = 0;
        *uncorrectable = CARD.remapped > 0;
        *pending = CARD.remapped == 1;
        *failure = CARD.remapped == 2;
    }
    return leave(spoil(__func__, number_of(device), result, failure, sizeof *failure));
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    nvmlReturn_t result = enter_card(__func__, device);
    for (int i = 0; result == OK && i < count; i++) {
        values[i].value_type = 1;
        values[i].value.ull = 0;
        values[i].result = NOT_SUPPORTED;
        if (values[i].field == FIELD_RECOVERY_ACTION && CARD.recovery >= 0) {
            values[i].value.u = (unsigned)CARD.recovery;
            values[i].result = OK;
        }
        spoil(__func__, number_of(device), values[i].result, &values[i].value, sizeof values[i].value);
    }
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node) {
    (void)node;
    nvmlReturn_t result = enter_card(__func__, device);
    return leave(result ? result : NOT_SUPPORTED);
}

/* -- between cards ----------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                     int *level) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && number_of(other) == ANY) result = INVALID_ARGUMENT;
    if (result == OK) *level = now.level[number_of(device)][number_of(other)];
    return leave(spoil(__func__, number_of(device), result, level, sizeof *level));
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, int index, int *status) {
    (void)other;
    (void)index;
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *status = 0;
    return leave(result);
}

static nvmlReturn_t enter_link(const char *function, nvmlDevice_t device, unsigned link) {
    nvmlReturn_t result = enter_card(function, device);
    if (result == OK && CARD.link_count == 0) return NOT_SUPPORTED;
    if (result == OK && link >= (unsigned)CARD.link_count) return INVALID_ARGUMENT;
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    nvmlReturn_t result = enter_link(__func__, device, link);
    if (result == OK) *active = 1;
    return leave(spoil(__func__, number_of(device), result, active, sizeof *active));
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type) {
    nvmlReturn_t result = enter_link(__func__, device, link);
    if (result == OK) *type = CARD.link_kind[link] == LINK_SWITCH ? 2 : 0;
    return leave(spoil(__func__, number_of(device), result, type, sizeof *type));
}

static nvmlReturn_t remote_pci(const char *function, nvmlDevice_t device, unsigned link,
                               nvmlPciInfo_t *pci) {
    nvmlReturn_t result = enter_link(function, device, link);
    if (result == OK) {
        int is_card = CARD.link_kind[link] == LINK_GPU;
        fill_pci(pci, is_card ? now.cards[CARD.link_peer[link]].bus : "00000000:C0:00.0");
    }
    return leave(spoil(function, number_of(device), result, pci, sizeof *pci));
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link,
                                                  nvmlPciInfo_t *pci) {
    return remote_pci(__func__, device, link, pci);
}
API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                     nvmlPciInfo_t *pci) {
    return remote_pci(__func__, device, link, pci);
}

/* -- events ------------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t result = enter(__func__, ANY);
    if (result == OK) *set = calloc(1, sizeof **set);
    return leave(result);
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t result = enter(__func__, ANY);
    free(set);
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *types = XID_EVENT;
    return leave(result);
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                          nvmlEventSet_t set) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && (types & XID_EVENT)) set->watches[number_of(device)] = 1;
    return leave(result);
}

static int next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
    for (int i = 0; i < now.xid_count; i++) {
        struct xid *x = &now.xids[i];
        if (x->sequence <= last_xid) continue;
        last_xid = x->sequence;
        if (x->card < 0 || x->card >= MAX_CARDS || !set->watches[x->card]) continue;
        *data = (nvmlEventData_t){&handles[x->card], XID_EVENT, x->number, ~0u, ~0u};
        return 1;
    }
    return 0;
}

/* Sleeps until the file differs from `known`, its version, at most for `left` seconds. */
static void wait_for_file(double left, unsigned known) {
    char folder[1024], *slash;
    const char *path = getenv("NVML_STUB_FILE");
    snprintf(folder, sizeof folder, "%s", path ? path : ".");
    if ((slash = strrchr(folder, '/'))) *slash = 0;
    int queue = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    int is_watched = queue >= 0 &&
        inotify_add_watch(queue, slash ? folder : ".", IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE) >= 0;
    double longest = is_watched ? 1.0 : 0.05, wait = left < longest ? left : longest;
    struct pollfd ready = {is_watched ? queue : -1, POLLIN, 0};
    pthread_mutex_lock(&lock); /* the watch stands: what changed before it is seen here */
    refresh();
    int has_changed = version != known;
    pthread_mutex_unlock(&lock);
    if (!has_changed) poll(&ready, 1, (int)(wait * 1000) + 1);
    if (queue >= 0) close(queue);
}

static nvmlReturn_t wait_event(const char *function, nvmlEventSet_t set, nvmlEventData_t *data,
                               unsigned timeout_ms) {
    double end = seconds() + timeout_ms / 1000.0;
    nvmlReturn_t result = enter(function, ANY);
    while (result == OK && !next_event(set, data)) {
        double left = end - seconds();
        unsigned known = version;
        leave(OK);
        if (left <= 0) return TIMEOUT;
        wait_for_file(left, known);
        pthread_mutex_lock(&lock);
        if (!refresh()) result = DRIVER_NOT_LOADED;
        else if (init_count == 0 || init_generation != now.generation) result = UNINITIALIZED;
        else {
            const struct rule *r = rule_of(now.fails, now.fail_count, function, ANY);
            if (r) result = (nvmlReturn_t)r->value;
        }
    }
    spoil(function, ANY, result, &data->device, sizeof data->device);
    spoil(function, ANY, result, &data->data, sizeof data->data);
    return leave(result);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    return wait_event(__func__, set, data, timeout_ms);
}
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    return wait_event(__func__, set, data, timeout_ms);
}
