/*
 * A tenant of a shared card: `tenant CONTROL`.
 *
 * CONTROL holds two numbers, read again every 50 ms: MiB to hold on the first card, and 1 to launch
 * kernels. The region file is the one that CUDA_DEVICE_MEMORY_SHARED_CACHE names; limits come from
 * the environment when the file is new, and from the file ever after. Each change is one line on
 * standard output: "holds 2000 of 3000", "refused 4000 of 3000", "limit 12000", "runs", "waits".
 * SIGTERM ends it as a program ends; SIGKILL leaves its slot as it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 19920718
#define CARDS 16
#define SLOTS 1024
#define MIB (1024ull * 1024ull)

struct memory { uint64_t context, module, data, offset, total, unused[3]; };
struct use { uint64_t decoder, encoder, cores, unused[3]; };
struct slot {
    int32_t pid, host_pid;
    struct memory used[CARDS];
    uint64_t monitor_used[CARDS];
    struct use use[CARDS];
    int32_t status, padding;
    uint64_t seqlock, unused[2];
};
struct region {
    int32_t magic;
    uint32_t major, minor;
    int32_t sm_init;
    uint64_t owner;
    char sem[32];
    uint64_t cards;
    char uuids[CARDS][96];
    uint64_t limit[CARDS], core_limit[CARDS];
    struct slot slots[SLOTS];
    int32_t slot_count, core_switch, recent_kernel, priority;
    uint64_t last_kernel_s;
    char sem_post_init[32];
};
_Static_assert(sizeof(struct slot) == 1960, "slot");
_Static_assert(sizeof(struct region) == 2008952, "region");

static volatile sig_atomic_t is_over;

static void end(int number) { (void)number; is_over = 1; }

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void initialise(struct region *region)
{
    char name[64];
    memset(region, 0, sizeof *region);
    region->major = 1;
    region->minor = 2;
    for (int i = 0; i < CARDS; i++) {
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
        region->limit[i] = number_of(name, 0) * MIB;
        region->core_limit[i] = number_of("CUDA_DEVICE_SM_LIMIT", 100);
        if (region->limit[i] != 0)
            region->cards = i + 1;
    }
    region->core_switch = 1;
    region->recent_kernel = 2;
    region->priority = (int32_t)number_of("CUDA_TASK_PRIORITY", 1);
    __sync_synchronize();
    region->magic = MAGIC;
}

static struct region *map(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT, 0666);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        perror(path);
        exit(1);
    }
    if (status.st_size < (off_t)sizeof(struct region) + 1 &&
        ftruncate(file, sizeof(struct region) + 1) != 0) {
        perror("ftruncate");
        exit(1);
    }
    void *at = mmap(NULL, sizeof(struct region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    close(file);
    struct region *region = at;
    if (region->magic != MAGIC)
        initialise(region);
    return region;
}

static struct slot *take_slot(struct region *region)
{
    int i = 0;
    while (i < region->slot_count && region->slots[i].status != 0)
        i++;
    struct slot *slot = &region->slots[i];
    memset(slot, 0, sizeof *slot);
    slot->pid = slot->host_pid = (int32_t)getpid();
    slot->status = 1;
    if (i == region->slot_count)
        region->slot_count++;
    return slot;
}

static void hold(struct slot *slot, uint64_t mib)
{
    uint64_t context = mib < 256 ? mib : 256;
    slot->seqlock++;
    slot->used[0].context = context * MIB;
    slot->used[0].data = (mib - context) * MIB;
    slot->used[0].total = mib * MIB;
    slot->monitor_used[0] = mib * MIB;
    slot->seqlock++;
}

static void launch(struct region *region, int *waits)
{
    int now_waits = region->recent_kernel < 0;
    if (now_waits != *waits)
        puts(now_waits ? "waits" : "runs");
    *waits = now_waits;
    if (now_waits)
        return;
    region->last_kernel_s = (uint64_t)time(NULL);
    if (region->core_switch == 1) /* else limiters from 2.8.1 on do not mark a launch */
        region->recent_kernel = 2;
}

int main(int count, char **words)
{
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (count != 2 || path == NULL) {
        fprintf(stderr, "usage: CUDA_DEVICE_MEMORY_SHARED_CACHE=FILE tenant CONTROL\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGTERM, end);
    struct region *region = map(path);
    struct slot *slot = take_slot(region);
    unsigned long long wanted = 0, held = 0, refused = 0, limit = region->limit[0] / MIB;
    int launches = 0, waits = -1;
    printf("limit %llu\n", limit);
    while (!is_over) {
        FILE *control = fopen(words[1], "r");
        if (control != NULL) {
            if (fscanf(control, "%llu %d", &wanted, &launches) != 2)
                fprintf(stderr, "%s: two numbers are expected\n", words[1]);
            fclose(control);
        }
        if (region->limit[0] / MIB != limit) {
            limit = region->limit[0] / MIB;
            refused = 0;
            printf("limit %llu\n", limit);
        }
        if (wanted != held && wanted != refused) {
            if (limit == 0 || wanted <= limit) {
                hold(slot, held = wanted);
                printf("holds %llu of %llu\n", held, limit);
            } else {
                refused = wanted;
                printf("refused %llu of %llu\n", wanted, limit);
            }
        }
        if (launches)
            launch(region, &waits);
        usleep(50 * 1000);
    }
    slot->pid = slot->status = 0;
    return 0;
}
