// A program that uses the first card through the driver's own library, as frameworks do.
// program MIB [fault]: takes that much memory, lets the card write numbers (or, with `fault`, write
// to an address that is nobody's), prints what it saw, and ends with its standard input.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *KERNEL =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry number(.param .u64 out) {\n"
    "  .reg .b32 %r<2>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;\n"
    "  add.s64 %d3, %d1, %d2; st.u32 [%d3], %r1; ret;\n}\n";

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("missing %s\n", name);
        exit(3);
    }
    return found;
}

static void need(const char *what, int code) {
    if (code != 0) {
        printf("failed %s %d\n", what, code);
        exit(2);
    }
}

int main(int count, char **words) {
    if (count < 2) return 64;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        printf("failed dlopen %s\n", dlerror());
        return 2;
    }
    int (*init)(unsigned) = find("cuInit");
    int (*devices)(int *) = find("cuDeviceGetCount");
    int (*device)(int *, int) = find("cuDeviceGet");
    int (*uuid)(unsigned char *, int) = find("cuDeviceGetUuid");
    int (*context)(void **, unsigned, int) = find("cuCtxCreate_v2");
    int (*take)(uint64_t *, size_t) = find("cuMemAlloc_v2");
    int (*load)(void **, const void *) = find("cuModuleLoadData");
    int (*function)(void **, void *, const char *) = find("cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = find("cuLaunchKernel");
    int (*finish)(void) = find("cuCtxSynchronize");
    int (*copy)(void *, uint64_t, size_t) = find("cuMemcpyDtoH_v2");

    int seen = 0, first = 0;
    void *made, *module, *kernel;
    unsigned char id[16];
    uint64_t memory = 0;
    need("cuInit", init(0));
    need("cuDeviceGetCount", devices(&seen));
    need("cuDeviceGet", device(&first, 0));
    need("cuDeviceGetUuid", uuid(id, first));
    need("cuCtxCreate", context(&made, 0, first));
    need("cuMemAlloc", take(&memory, strtoul(words[1], NULL, 10) << 20));
    need("cuModuleLoadData", load(&module, KERNEL));
    need("cuModuleGetFunction", function(&kernel, module, "number"));
    uint64_t target = count > 2 && strcmp(words[2], "fault") == 0 ? 64 : memory;
    void *arguments[] = {&target};
    need("cuLaunchKernel", launch(kernel, 1, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    need("cuCtxSynchronize", finish());
    uint32_t numbers[256], sum = 0;
    need("cuMemcpyDtoH", copy(numbers, memory, sizeof numbers));
    for (int i = 0; i < 256; i++) sum += numbers[i];
    printf("devices %d first ", seen);
    for (int i = 0; i < 16; i++) printf("%02x", id[i]);
    printf(" sum %u\n", sum);
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}
