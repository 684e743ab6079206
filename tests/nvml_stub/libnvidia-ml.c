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
 *   xid <sequence> <card> <number> [<gpu instance> <compute instance>]
 *                                       delivered once; sequence numbers only grow
 *   nth <id> <function|changes|*> <card|*> <n> before|after fail|hang|kill [<nvmlReturn>|<seconds>]
 *                                       what befalls the n-th such call, counted over all processes
 *                                       since the line came: nothing but that call, and only once.
 *                                       `after`: the call does its work, and then fails, hangs, or
 *                                       its process is killed with SIGKILL. `changes` are the calls
 *                                       that change MIG. A hang ends early once the line is gone.
 *
 * What is said of MIG, see mig_models.c, has lines of its own, and cards have more words for it.
 *
 * What nvmlDeviceSetMemoryLimits_v1 was given is added to the file `$NVML_STUB_FILE.limits`, a call a
 * line: uuid, soft and hard limit in bytes, cgroup.
 *
 * Build: tests/nvml_stub/build.py. Calls are counted: nvmlStubCalls("nvmlInitWithFlags").
 */
#include "stub.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct state now;
static struct stat seen;
static int is_read, init_count, init_generation, has_seen_xids;
static unsigned long long last_xid;
static unsigned version; /* grows with every change of the file */
static struct card_handle handles[MAX_CARDS];
static struct { char function[64]; unsigned count; } counters[MAX_COUNTERS];

/* -- the control file ------------------------------------------------------------------------- */

char *next_word(char **rest) {
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

int number_or_any(const char *word) {
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
        if (mig_card_word(c, word, value)) continue;
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
    char *gpu_instance = next_word(&rest), *compute_instance = next_word(&rest);
    s->xids[s->xid_count++] = (struct xid){
        strtoull(sequence, NULL, 10), number_or_any(card), strtoull(number, NULL, 10),
        (unsigned)number_or_any(gpu_instance), (unsigned)number_or_any(compute_instance)};
}

static void read_nth(struct state *s, char *rest) {
    char *words[7] = {0};
    for (int i = 0; i < 7; i++) words[i] = next_word(&rest);
    if (!words[5] || s->nth_count == MAX_NTH) return;
    struct nth *n = &s->nth[s->nth_count++];
    snprintf(n->id, sizeof n->id, "%s", words[0]);
    snprintf(n->function, sizeof n->function, "%s", words[1]);
    snprintf(n->effect, sizeof n->effect, "%s", words[5]);
    n->card = number_or_any(words[2]);
    n->count = atoi(words[3]);
    n->is_after = !strcmp(words[4], "after");
    n->value = words[6] ? atof(words[6]) : 0;
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
    else if (!strcmp(word, "nth")) read_nth(s, rest);
    else if (mig_line(s, word, rest)) return;
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
    fresh.rights = RIGHTS_ROOT;
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

static int is_meant(const char *wanted, int wanted_card, const char *function, int card) {
    return (!strcmp(wanted, "*") || !strcmp(wanted, function) ||
            (!strcmp(wanted, "changes") && is_change(function))) &&
        (wanted_card == ANY || wanted_card == card);
}

static const struct rule *rule_of(const struct rule *rules, int count, const char *function, int card) {
    for (int i = 0; i < count; i++)
        if (is_meant(rules[i].function, rules[i].card, function, card)) return &rules[i];
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

static int is_still_asked(const char *id) {
    for (int i = 0; refresh() && i < now.nth_count; i++)
        if (!strcmp(now.nth[i].id, id)) return 1;
    return 0;
}

/* What an nth line asks of this call; `result` unless it is to fail. Call with the lock held. */
static nvmlReturn_t befall(const struct nth *n, nvmlReturn_t result) {
    double start = seconds();
    if (!strcmp(n->effect, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(n->effect, "fail")) return (nvmlReturn_t)n->value;
    while (!strcmp(n->effect, "hang") && is_still_asked(n->id) && seconds() - start < n->value) {
        struct timespec pause = {0, 5 * 1000 * 1000};
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    return result;
}

static __thread struct nth afterwards; /* what befalls the thread's call when it is done */

/* Counts the call for every nth line that means it. Call with the lock held. */
static nvmlReturn_t enter_nth(const char *function, int card) {
    struct nth first = {.effect = ""};
    afterwards.effect[0] = 0;
    for (int i = 0; i < now.nth_count; i++) {
        const struct nth *n = &now.nth[i];
        if (!is_meant(n->function, n->card, function, card) || count_nth(n->id) != n->count) continue;
        if (n->is_after) afterwards = *n;
        else first = *n;
    }
    return befall(&first, OK);
}

/* Locks; answers what the control file asks this call to answer. The caller unlocks with leave(). */
nvmlReturn_t enter(const char *function, int card) {
    pthread_mutex_lock(&lock);
    count_call(function);
    if (!refresh()) return DRIVER_NOT_LOADED;
    hang(function, card);
    nvmlReturn_t befallen = enter_nth(function, card);
    if (befallen != OK) return befallen;
    const struct rule *r = rule_of(now.fails, now.fail_count, function, card);
    if (r) return (nvmlReturn_t)r->value;
    if (strncmp(function, "nvmlInit", 8) == 0) return OK;
    if (init_count == 0 || init_generation != now.generation) return UNINITIALIZED;
    return OK;
}

nvmlReturn_t leave(nvmlReturn_t result) {
    if (afterwards.effect[0]) result = befall(&afterwards, result);
    afterwards.effect[0] = 0;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Replaces the bytes of an answer where a garbage line asks for it. Call with the lock held. */
nvmlReturn_t spoil(const char *function, int card, nvmlReturn_t result, void *out, size_t size) {
    const struct rule *r = rule_of(now.garbage, now.garbage_count, function, card);
    if (result == OK && r) memset(out, (int)r->value, size);
    return result;
}

nvmlDevice_t handle_of(int card) { return &handles[card]; }

int number_of(nvmlDevice_t device) {
    return device >= handles && device < handles + MAX_CARDS ? (int)(device - handles) : ANY;
}

nvmlReturn_t enter_card(const char *function, nvmlDevice_t device) {
    int card = number_of(device);
    nvmlReturn_t result = enter(function, card);
    if (result == OK && is_mig_device(device)) return NOT_SUPPORTED; /* a question for its card */
    if (result == OK && (card == ANY || card >= now.card_count)) return INVALID_ARGUMENT;
    return result;
}

__attribute__((noinline)) /* gcc sees no more than that a card's number may be ANY */
nvmlReturn_t copy_text(char *to, unsigned size, const char *text) {
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
    nvmlDevice_t part = result == OK && found == ANY && is_uuid ? mig_by_uuid(text) : NULL;
    if (result == OK && found == ANY && !part) result = NOT_FOUND;
    if (result == OK) *device = part ? part : &handles[found];
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
    if (is_mig_device(device)) return mig_uuid(__func__, device, to, size);
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) result = copy_text(to, size, CARD.uuid);
    return leave(spoil(__func__, number_of(device), result, to, size - 1));
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *to, unsigned size) {
    if (is_mig_device(device)) return mig_name(__func__, device, to, size);
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) result = copy_text(to, size, CARD.name);
    return leave(spoil(__func__, number_of(device), result, to, size - 1));
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    if (is_mig_device(device)) return mig_index(__func__, device, index);
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *index = (unsigned)number_of(device);
    return leave(result);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK) *minor = (unsigned)CARD.minor;
    return leave(spoil(__func__, number_of(device), result, minor, sizeof *minor));
}

/* Bytes of a card or a MIG device. The caller leaves. */
static nvmlReturn_t memory_of(const char *function, nvmlDevice_t device, unsigned long long *total,
                              unsigned long long *used) {
    if (is_mig_device(device)) return mig_memory(function, device, total, used);
    nvmlReturn_t result = enter_card(function, device);
    if (result == OK && now.rights < RIGHTS_MONITOR) {
        look_at_hardware();
        if (is_mig_on(number_of(device))) result = NO_PERMISSION; /* of a whole card */
    }
    if (result == OK) {
        *total = CARD.memory_mib << 20;
        *used = CARD.used_mib << 20;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = memory_of(__func__, device, &memory->total, &memory->used);
    if (result == OK) memory->free = memory->total - memory->used;
    return leave(spoil(__func__, number_of(device), result, memory, sizeof *memory));
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = memory_of(__func__, device, &memory->total, &memory->used);
    if (result == OK) {
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

static int is_in_mig_mode(int card) {
    if (now.cards[card].mig >= 0) look_at_hardware();
    return is_mig_on(card);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t result = enter_card(__func__, device);
    if (result == OK && (CARD.busy < 0 || is_in_mig_mode(number_of(device)))) result = NOT_SUPPORTED;
    if (result == OK) {
        rates->gpu = (unsigned)CARD.busy;
        rates->memory = (unsigned)CARD.busy / 2;
    }
    return leave(spoil(__func__, number_of(device), result, rates, sizeof *rates));
}

static nvmlReturn_t processes(const char *function, nvmlDevice_t device, unsigned *count,
                              nvmlProcessInfo_t *out) {
    nvmlReturn_t result = is_mig_device(device) ? mig_enter(function, device)
                                                : enter_card(function, device);
    unsigned room = *count, found = 0;
    if (result == OK && !is_mig_device(device))
        for (; found < CARD.pid_count; found++)
            if (found < room) out[found] = (nvmlProcessInfo_t){CARD.pids[found], 1 << 20, ~0u, ~0u};
    if (result == OK) result = mig_processes(device, room, &found, out);
    if (result == OK) *count = found;
    if (result == OK && room < found) result = INSUFFICIENT_SIZE;
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
        if (mig_field(number_of(device), values[i].field, &values[i].value.u)) values[i].result = OK;
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
        *data = (nvmlEventData_t){&handles[x->card], XID_EVENT, x->number, x->gpu_instance,
                                  x->compute_instance};
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
