/*
 * The MIG hardware of the stand-in: modes, instances and the processes on them. It outlives every
 * process, as hardware does: it stands in the file `$NVML_STUB_FILE.mig`, replaced by a rename under
 * a lock on `$NVML_STUB_FILE.mig.lock`, so that a kill -9 at any moment leaves it whole. A line each:
 *
 *   mode <card> <current> <pending>     once it differs from what the control file says
 *   gi <card> <id> <profile> <start> <size> <answers of IN_USE left>
 *   ci <card> <gpu instance> <id> <profile> <start> <size> <used MiB> <MIG UUID>
 *   pid <card> <gpu instance> <compute instance> <pid>
 *   count <id of an nth line> <calls>
 *
 * Every call that changes MIG, or was refused to, is added to `$NVML_STUB_FILE.mig.log`:
 *   <pid> <card> <function> <result> <arguments>
 */
#include "stub.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct hardware hardware;
static int lock_file = -1;

static void path_of(char *to, size_t size, const char *ending) {
    const char *path = getenv("NVML_STUB_FILE");
    snprintf(to, size, "%s.mig%s", path ? path : "", ending);
}

static void read_hardware_line(struct hardware *h, const char *line) {
    struct mode m;
    struct gpu_instance g;
    struct compute_instance c;
    struct pid p;
    struct count n;
    if (sscanf(line, "mode %95s %d %d", m.card, &m.current, &m.pending) == 3 &&
        h->mode_count < MAX_CARDS)
        h->modes[h->mode_count++] = m;
    else if (sscanf(line, "gi %95s %u %u %u %u %u", g.card, &g.id, &g.profile, &g.start, &g.size,
                    &g.lingers) == 6 && h->gi_count < MAX_GPU_INSTANCES)
        h->gis[h->gi_count++] = g;
    else if (sscanf(line, "ci %95s %u %u %u %u %u %llu %95s", c.card, &c.gpu_instance, &c.id,
                    &c.profile, &c.start, &c.size, &c.used_mib, c.uuid) == 8 &&
             h->ci_count < MAX_COMPUTE_INSTANCES)
        h->cis[h->ci_count++] = c;
    else if (sscanf(line, "pid %95s %u %u %u", p.card, &p.gpu_instance, &p.compute_instance,
                    &p.pid) == 4 && h->pid_count < MAX_PIDS)
        h->pids[h->pid_count++] = p;
    else if (sscanf(line, "count %31s %d", n.id, &n.calls) == 2 &&
             h->count_count < MAX_NTH * 4)
        h->counts[h->count_count++] = n;
}

/* Reads the file as it is now. Call with the process's lock held. */
void look_at_hardware(void) {
    char path[1024], line[512];
    path_of(path, sizeof path, "");
    FILE *file = fopen(path, "re");
    hardware.mode_count = hardware.gi_count = hardware.ci_count = 0;
    hardware.pid_count = hardware.count_count = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) read_hardware_line(&hardware, line);
    fclose(file);
}

/* Reads it and keeps every other process from changing it until release_hardware(). */
void hold_hardware(void) {
    char path[1024];
    path_of(path, sizeof path, ".lock");
    lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_file >= 0) while (flock(lock_file, LOCK_EX)) {}
    look_at_hardware();
    for (int card = 0; card < now.card_count; card++)
        for (int i = hardware.gi_count - 1; !is_mig_on(card) && i >= 0; i--)
            if (!strcmp(hardware.gis[i].card, now.cards[card].uuid))
                drop_gpu_instance(now.cards[card].uuid, hardware.gis[i].id);
}

static int write_hardware(void) {
    char path[1024], fresh[1024];
    path_of(path, sizeof path, "");
    path_of(fresh, sizeof fresh, ".new");
    FILE *file = fopen(fresh, "we");
    if (!file) return 0;
    for (int i = 0; i < hardware.mode_count; i++) {
        struct mode *m = &hardware.modes[i];
        fprintf(file, "mode %s %d %d\n", m->card, m->current, m->pending);
    }
    for (int i = 0; i < hardware.gi_count; i++) {
        struct gpu_instance *g = &hardware.gis[i];
        fprintf(file, "gi %s %u %u %u %u %u\n", g->card, g->id, g->profile, g->start, g->size,
                g->lingers);
    }
    for (int i = 0; i < hardware.ci_count; i++) {
        struct compute_instance *c = &hardware.cis[i];
        fprintf(file, "ci %s %u %u %u %u %u %llu %s\n", c->card, c->gpu_instance, c->id, c->profile,
                c->start, c->size, c->used_mib, c->uuid);
    }
    for (int i = 0; i < hardware.pid_count; i++) {
        struct pid *p = &hardware.pids[i];
        fprintf(file, "pid %s %u %u %u\n", p->card, p->gpu_instance, p->compute_instance, p->pid);
    }
    for (int i = 0; i < hardware.count_count; i++)
        fprintf(file, "count %s %d\n", hardware.counts[i].id, hardware.counts[i].calls);
    return fclose(file) == 0 && rename(fresh, path) == 0;
}

/* Writes what a successful call, or a refused one that counts, has changed. */
nvmlReturn_t release_hardware(nvmlReturn_t result) {
    int is_written = lock_file >= 0 && write_hardware();
    if (lock_file >= 0) close(lock_file);
    lock_file = -1;
    return is_written || result != OK ? result : UNKNOWN;
}

/* Adds a line to the log. Call it between hold and release: then log and hardware agree. */
void log_change(const char *function, int card, nvmlReturn_t result, const char *arguments) {
    char path[1024];
    path_of(path, sizeof path, ".log");
    FILE *file = fopen(path, "ae");
    if (!file) return;
    fprintf(file, "%d %s %s %d %s\n", (int)getpid(), card == ANY ? "-" : now.cards[card].uuid,
            function, result, arguments);
    fclose(file);
}

int is_change(const char *function) {
    static const char *const changes[] = {
        "nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlComputeInstanceDestroy", NULL};
    for (int i = 0; changes[i]; i++)
        if (!strcmp(changes[i], function)) return 1;
    return 0;
}

/* Counts a call for an nth line, in all processes together; the number of this call. */
int count_nth(const char *id) {
    struct count *found = NULL;
    hold_hardware();
    for (int i = 0; i < hardware.count_count; i++)
        if (!strcmp(hardware.counts[i].id, id)) found = &hardware.counts[i];
    if (!found && hardware.count_count < MAX_NTH * 4) {
        found = &hardware.counts[hardware.count_count++];
        snprintf(found->id, sizeof found->id, "%s", id);
        found->calls = 0;
    }
    int calls = found ? ++found->calls : 0;
    release_hardware(OK);
    return calls;
}

/* The modes of a card: as they were set, else as the control file has them. */
struct mode mode_of(int card) {
    for (int i = 0; i < hardware.mode_count; i++)
        if (!strcmp(hardware.modes[i].card, now.cards[card].uuid)) return hardware.modes[i];
    return (struct mode){"", now.cards[card].mig, now.cards[card].mig};
}

void set_mode(int card, int current, int pending) {
    struct mode fresh = {"", current, pending};
    snprintf(fresh.card, sizeof fresh.card, "%s", now.cards[card].uuid);
    for (int i = 0; i < hardware.mode_count; i++)
        if (!strcmp(hardware.modes[i].card, fresh.card)) {
            hardware.modes[i] = fresh;
            return;
        }
    if (hardware.mode_count < MAX_CARDS) hardware.modes[hardware.mode_count++] = fresh;
}

void drop_compute_instance(const char *card, unsigned gpu_instance, unsigned id) {
    int kept = 0;
    for (int i = 0; i < hardware.ci_count; i++) {
        struct compute_instance *c = &hardware.cis[i];
        if (c->id != id || c->gpu_instance != gpu_instance || strcmp(c->card, card))
            hardware.cis[kept++] = *c;
    }
    hardware.ci_count = kept;
    kept = 0;
    for (int i = 0; i < hardware.pid_count; i++) {
        struct pid *p = &hardware.pids[i];
        if (p->compute_instance != id || p->gpu_instance != gpu_instance || strcmp(p->card, card))
            hardware.pids[kept++] = *p;
    }
    hardware.pid_count = kept;
}

void drop_gpu_instance(const char *card, unsigned id) {
    int kept = 0;
    for (int i = hardware.ci_count - 1; i >= 0; i--)
        if (i < hardware.ci_count && hardware.cis[i].gpu_instance == id &&
            !strcmp(hardware.cis[i].card, card))
            drop_compute_instance(card, id, hardware.cis[i].id);
    for (int i = 0; i < hardware.gi_count; i++)
        if (hardware.gis[i].id != id || strcmp(hardware.gis[i].card, card))
            hardware.gis[kept++] = hardware.gis[i];
    hardware.gi_count = kept;
}
