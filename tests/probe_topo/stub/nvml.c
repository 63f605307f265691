/* libnvidia-ml.so.1 for tests: answers what a topology table says, so that the real nvidia-ml-py binding can be driven
 * through machines that nobody has at hand. The structures follow the public NVML ABI as that binding declares it.
 *
 *     cc -shared -fPIC -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 nvml.c
 *     LD_LIBRARY_PATH=. NVML_STUB_FILE=table.topo python -m pdbench topo
 *
 * A table has a statement a line; `#` begins a comment, later lines win, unknown statements and keys are passed over:
 *
 *     driver 570.124.06          nvml 12.570.124.06          cuda 12080
 *     init CODE                  what nvmlInit returns (9: driver not loaded, 18: mismatch)
 *     gpu I key=value ...        name (_ is a space) uuid pci devid mem bar1 numa gpunuma cpus gen gmax dmax width wmax
 *                                ecc mig migs cc links linkver linkmbps fabric
 *     p2p I J READ WRITE NVLINK ATOMICS PROP       OK CNS GNS TNS DR NS U or a number; I and J may be *
 *     oneway I J READ ...        the same in the one direction alone
 *     topo I J LEVEL             INTERNAL PIX PXB PHB NODE SYS or a number
 *     link I L STATE TYPE [PCI]  0 inactive, 1 active, 2 asleep; gpu, npu, switch, unk; the bus id at the other end
 *     fail FUNCTION CODE [I]     that function returns CODE, for GPU I or for all
 *     hang SECONDS               nvmlInit answers that late
 *
 * What a table leaves open is answered with NOT_SUPPORTED (3), as drivers do.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { GPUS = 16, LINKS = 36, FAILURES = 128, WORDS = 48, CAPABILITIES = 5 };
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_DRIVER = 9 };
enum { ABSENT = -1, P2P_UNKNOWN = 6, SYSTEM = 50 };

typedef int Code;
typedef struct { int state, type; char remote[32]; } Link;
typedef struct {
    int present, numa, own_numa, gen, gen_max, card_gen_max, width, width_max, ecc, mig, mig_count;
    int links, link_version, link_mb_s, fabric, major, minor;
    unsigned device_id;
    unsigned long long memory, bar1, cpus;
    char name[96], uuid[96], pci[32];
    Link link[LINKS];
} Gpu;

static Gpu gpu[GPUS];
static int gpus, started, init_code;
static int p2p[GPUS][GPUS][CAPABILITIES], ancestor[GPUS][GPUS];
static struct { char function[64]; int code, gpu; } failure[FAILURES];
static int failures, cuda_version;
static char driver_version[64], nvml_version[64];

/* ---- the table ---- */

typedef struct { const char *word; int value; } Word;
static const Word STATUS[] = {{"OK", 0}, {"CNS", 1}, {"GNS", 2}, {"TNS", 3}, {"DR", 4}, {"NS", 5}, {"U", 6}, {0, 0}};
static const Word LEVEL[] = {{"INTERNAL", 0}, {"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}, {0, 0}};
static const Word REMOTE[] = {{"gpu", 0}, {"npu", 1}, {"switch", 2}, {"unk", 255}, {0, 0}};

static int value_of(const Word *table, const char *text) {
    for (; table->word; table++)
        if (!strcasecmp(table->word, text)) return table->value;
    return atoi(text);
}

static int matches(const char *pattern, int index) { return *pattern == '*' || atoi(pattern) == index; }

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static const struct { const char *key; size_t at; } NUMBERS[] = {
    {"numa", offsetof(Gpu, numa)}, {"gpunuma", offsetof(Gpu, own_numa)}, {"gen", offsetof(Gpu, gen)},
    {"gmax", offsetof(Gpu, gen_max)}, {"dmax", offsetof(Gpu, card_gen_max)}, {"width", offsetof(Gpu, width)},
    {"wmax", offsetof(Gpu, width_max)}, {"ecc", offsetof(Gpu, ecc)}, {"mig", offsetof(Gpu, mig)},
    {"migs", offsetof(Gpu, mig_count)}, {"linkver", offsetof(Gpu, link_version)},
    {"linkmbps", offsetof(Gpu, link_mb_s)}, {"fabric", offsetof(Gpu, fabric)}, {"devid", offsetof(Gpu, device_id)},
};
static const struct { const char *key; size_t at; } SIZES[] = {
    {"mem", offsetof(Gpu, memory)}, {"bar1", offsetof(Gpu, bar1)}, {"cpus", offsetof(Gpu, cpus)},
};

static void set(Gpu *g, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (!strcmp(key, NUMBERS[i].key)) *(int *)((char *)g + NUMBERS[i].at) = (int)strtol(value, NULL, 0);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        if (!strcmp(key, SIZES[i].key)) *(unsigned long long *)((char *)g + SIZES[i].at) = strtoull(value, NULL, 0);
    if (!strcmp(key, "name")) {
        copy(g->name, sizeof g->name, value);
        for (char *c = g->name; *c; c++)
            if (*c == '_') *c = ' ';
    }
    if (!strcmp(key, "uuid")) copy(g->uuid, sizeof g->uuid, value);
    if (!strcmp(key, "pci")) copy(g->pci, sizeof g->pci, value);
    if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &g->major, &g->minor);
    if (!strcmp(key, "links")) {
        g->links = atoi(value);
        if (g->links > LINKS) g->links = LINKS;
        for (int l = 0; l < g->links; l++) g->link[l].state = 1, g->link[l].type = 2;
    }
}

static Gpu *declared(int index) {
    Gpu *g = &gpu[index];
    if (!g->present) {
        memset(g, 0, sizeof *g);
        g->present = 1;
        g->numa = g->own_numa = g->gen = g->gen_max = g->card_gen_max = g->width = g->width_max = ABSENT;
        g->ecc = g->mig = g->mig_count = g->fabric = ABSENT;
        copy(g->name, sizeof g->name, "STUB GPU");
        snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012d", index);
        snprintf(g->pci, sizeof g->pci, "00000000:%02X:00.0", 0x10 + index);
    }
    if (index >= gpus) gpus = index + 1;
    return g;
}

static void statement(char **word, int count) {
    const char *what = word[0];
    if (!strcmp(what, "driver") && count > 1) copy(driver_version, sizeof driver_version, word[1]);
    else if (!strcmp(what, "nvml") && count > 1) copy(nvml_version, sizeof nvml_version, word[1]);
    else if (!strcmp(what, "cuda") && count > 1) cuda_version = atoi(word[1]);
    else if (!strcmp(what, "init") && count > 1) init_code = atoi(word[1]);
    else if (!strcmp(what, "hang") && count > 1) sleep((unsigned)atoi(word[1]));
    else if (!strcmp(what, "gpu") && count > 1 && atoi(word[1]) >= 0 && atoi(word[1]) < GPUS) {
        Gpu *g = declared(atoi(word[1]));
        for (int i = 2; i < count; i++) {
            char *equals = strchr(word[i], '=');
            if (equals) *equals = 0, set(g, word[i], equals + 1);
        }
    } else if ((!strcmp(what, "p2p") || !strcmp(what, "oneway")) && count > 2 + CAPABILITIES) {
        for (int a = 0; a < GPUS; a++)
            for (int b = 0; b < GPUS; b++)
                for (int c = 0; c < CAPABILITIES && matches(word[1], a) && matches(word[2], b); c++) {
                    p2p[a][b][c] = value_of(STATUS, word[3 + c]);
                    if (*what == 'p') p2p[b][a][c] = p2p[a][b][c];
                }
    } else if (!strcmp(what, "topo") && count > 3) {
        for (int a = 0; a < GPUS; a++)
            for (int b = 0; b < GPUS; b++)
                if (matches(word[1], a) && matches(word[2], b)) ancestor[a][b] = ancestor[b][a] = value_of(LEVEL, word[3]);
    } else if (!strcmp(what, "link") && count > 4) {
        for (int a = 0; a < GPUS; a++)
            for (int l = 0; l < (*word[2] == '*' ? gpu[a].links : LINKS); l++)
                if (matches(word[1], a) && matches(word[2], l)) {
                    gpu[a].link[l].state = atoi(word[3]);
                    gpu[a].link[l].type = value_of(REMOTE, word[4]);
                    if (count > 5) copy(gpu[a].link[l].remote, sizeof gpu[a].link[l].remote, word[5]);
                }
    } else if (!strcmp(what, "fail") && count > 2 && failures < FAILURES) {
        copy(failure[failures].function, sizeof failure[failures].function, word[1]);
        failure[failures].code = atoi(word[2]);
        failure[failures++].gpu = count > 3 ? atoi(word[3]) : ABSENT;
    }
}

static Code load(void) {
    const char *path = getenv("NVML_STUB_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2048];
    if (!file) return NO_DRIVER;
    memset(gpu, 0, sizeof gpu);
    gpus = failures = init_code = 0;
    cuda_version = 12080;
    copy(driver_version, sizeof driver_version, "570.124.06");
    copy(nvml_version, sizeof nvml_version, "12.570.124.06");
    for (int a = 0; a < GPUS; a++)
        for (int b = 0; b < GPUS; b++) {
            ancestor[a][b] = SYSTEM;
            for (int c = 0; c < CAPABILITIES; c++) p2p[a][b][c] = P2P_UNKNOWN;
        }
    while (fgets(line, sizeof line, file)) {
        char *word[WORDS], *rest, *comment = strchr(line, '#');
        int count = 0;
        if (comment) *comment = 0;
        for (char *w = strtok_r(line, " \t\r\n", &rest); w && count < WORDS; w = strtok_r(NULL, " \t\r\n", &rest))
            word[count++] = w;
        if (count) statement(word, count);
    }
    fclose(file);
    return SUCCESS;
}

/* ---- answers ---- */

static int forced(const char *function, int index) {
    for (int i = failures - 1; i >= 0; i--)
        if (!strcmp(failure[i].function, function) && (failure[i].gpu == ABSENT || failure[i].gpu == index))
            return failure[i].code;
    return ABSENT;
}

static int index_of(const void *handle) {
    const Gpu *g = handle;
    return g >= gpu && g < gpu + gpus && g->present ? (int)(g - gpu) : ABSENT;
}

static Code check(const char *function, const void *handle, int of_gpu) {
    int index = of_gpu ? index_of(handle) : ABSENT, code;
    if (!started) return UNINITIALIZED;
    if (of_gpu && index == ABSENT) return INVALID_ARGUMENT;
    code = forced(function, index);
    return code == ABSENT ? SUCCESS : code;
}

#define SYSTEM_CALL do { Code c_ = check(__func__, NULL, 0); if (c_) return c_; } while (0)
#define DEVICE_CALL(handle) \
    do { Code c_ = check(__func__, handle, 1); if (c_) return c_; } while (0); \
    Gpu *g = (Gpu *)(handle); \
    (void)g
#define NUMBER(function, field) \
    EXPORT Code function(void *h, unsigned *out) { \
        DEVICE_CALL(h); \
        if (g->field < 0) return NOT_SUPPORTED; \
        *out = (unsigned)g->field; \
        return SUCCESS; \
    }
#define TWICE(function, field) \
    EXPORT Code function(void *h, unsigned *current, unsigned *pending) { \
        DEVICE_CALL(h); \
        if (g->field < 0) return NOT_SUPPORTED; \
        *current = *pending = (unsigned)g->field; \
        return SUCCESS; \
    }

static Code text(char *out, unsigned size, const char *value) {
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

EXPORT Code nvmlInitWithFlags(unsigned flags) {
    Code code = load();
    (void)flags;
    if (code || init_code) return code ? code : init_code;
    started++;
    return SUCCESS;
}
EXPORT Code nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT Code nvmlShutdown(void) { return started ? (started--, SUCCESS) : UNINITIALIZED; }
EXPORT const char *nvmlErrorString(Code code) { return code == 777 ? "A Code Of The Future" : "Unknown Error"; }

EXPORT Code nvmlSystemGetDriverVersion(char *out, unsigned n) { SYSTEM_CALL; return text(out, n, driver_version); }
EXPORT Code nvmlSystemGetNVMLVersion(char *out, unsigned n) { SYSTEM_CALL; return text(out, n, nvml_version); }
EXPORT Code nvmlSystemGetCudaDriverVersion(int *out) { SYSTEM_CALL; *out = cuda_version; return SUCCESS; }
EXPORT Code nvmlSystemGetCudaDriverVersion_v2(int *out) { SYSTEM_CALL; *out = cuda_version; return SUCCESS; }
EXPORT Code nvmlDeviceGetCount_v2(unsigned *out) { SYSTEM_CALL; *out = (unsigned)gpus; return SUCCESS; }
EXPORT Code nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    int code;
    SYSTEM_CALL;
    if ((int)index >= gpus || !gpu[index].present) return INVALID_ARGUMENT;
    code = forced(__func__, (int)index);
    if (code != ABSENT) return code;
    *out = &gpu[index];
    return SUCCESS;
}

EXPORT Code nvmlDeviceGetName(void *h, char *out, unsigned n) { DEVICE_CALL(h); return text(out, n, g->name); }
EXPORT Code nvmlDeviceGetUUID(void *h, char *out, unsigned n) { DEVICE_CALL(h); return text(out, n, g->uuid); }
EXPORT Code nvmlDeviceGetIndex(void *h, unsigned *out) { DEVICE_CALL(h); *out = (unsigned)index_of(h); return SUCCESS; }

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; } PciInfo;
static void pci_info(PciInfo *out, const char *id, unsigned device_id) {
    unsigned function = 0;
    memset(out, 0, sizeof *out);
    sscanf(id, "%x:%x:%x.%u", &out->domain, &out->bus, &out->device, &function);
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.%u", out->domain, out->bus & 255, out->device & 255, function & 7);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%u", out->domain & 0xffff, out->bus & 255,
             out->device & 255, function & 7);
    out->device_id = device_id;
}
EXPORT Code nvmlDeviceGetPciInfo_v3(void *h, PciInfo *out) { DEVICE_CALL(h); pci_info(out, g->pci, g->device_id); return SUCCESS; }

typedef struct { unsigned long long total, free, used; } Memory;
EXPORT Code nvmlDeviceGetMemoryInfo(void *h, Memory *out) {
    DEVICE_CALL(h);
    *out = (Memory){g->memory, g->memory, 0};
    return SUCCESS;
}
EXPORT Code nvmlDeviceGetBAR1MemoryInfo(void *h, Memory *out) {
    DEVICE_CALL(h);
    if (!g->bar1) return NOT_SUPPORTED;
    *out = (Memory){g->bar1, g->bar1, 0};
    return SUCCESS;
}

EXPORT Code nvmlDeviceGetP2PStatus(void *h, void *other, unsigned capability, unsigned *out) {
    DEVICE_CALL(h);
    int b = index_of(other);
    if (b == ABSENT || capability >= CAPABILITIES || h == other) return INVALID_ARGUMENT;
    *out = (unsigned)p2p[index_of(h)][b][capability];
    return SUCCESS;
}
EXPORT Code nvmlDeviceGetTopologyCommonAncestor(void *h, void *other, unsigned *out) {
    DEVICE_CALL(h);
    int b = index_of(other);
    if (b == ABSENT) return INVALID_ARGUMENT;
    *out = h == other ? 0 : (unsigned)ancestor[index_of(h)][b];
    return SUCCESS;
}

#define LINK_CALL(handle, number) \
    DEVICE_CALL(handle); \
    if (!g->links) return NOT_SUPPORTED; \
    if ((number) >= (unsigned)g->links) return INVALID_ARGUMENT
EXPORT Code nvmlDeviceGetNvLinkState(void *h, unsigned l, unsigned *out) { LINK_CALL(h, l); *out = (unsigned)g->link[l].state; return SUCCESS; }
EXPORT Code nvmlDeviceGetNvLinkVersion(void *h, unsigned l, unsigned *out) { LINK_CALL(h, l); *out = (unsigned)g->link_version; return SUCCESS; }
EXPORT Code nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, unsigned *out) { LINK_CALL(h, l); *out = (unsigned)g->link[l].type; return SUCCESS; }
EXPORT Code nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, PciInfo *out) {
    LINK_CALL(h, l);
    if (g->link[l].state != 1 || !*g->link[l].remote) return NOT_SUPPORTED;
    pci_info(out, g->link[l].remote, 0);
    return SUCCESS;
}

typedef struct {
    unsigned field, scope; long long timestamp, latency; int type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
EXPORT Code nvmlDeviceGetFieldValues(void *h, int count, Field *f) {
    DEVICE_CALL(h);
    for (int i = 0; i < count; i++) {
        unsigned l = f[i].scope;
        f[i].type = 1, f[i].value.ull = 0;
        f[i].code = g->links && (f[i].field == 90 || f[i].field == 91 || f[i].field == 164) ? SUCCESS : NOT_SUPPORTED;
        if (f[i].code) continue;
        if (f[i].field == 91) f[i].value.u = (unsigned)g->links;                 /* NVLINK_LINK_COUNT */
        else if (f[i].field == 90) f[i].value.u = (unsigned)g->link_mb_s;        /* NVLINK_SPEED_MBPS_COMMON */
        else if (l >= (unsigned)g->links) f[i].code = INVALID_ARGUMENT;          /* NVLINK_GET_SPEED of one link */
        else f[i].value.u = g->link[l].state == 1 ? (unsigned)g->link_mb_s : 0;
    }
    return SUCCESS;
}

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, width)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gen_max)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, width_max)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, card_gen_max)
NUMBER(nvmlDeviceGetNumaNodeId, own_numa)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, mig_count)
TWICE(nvmlDeviceGetEccMode, ecc)
TWICE(nvmlDeviceGetMigMode, mig)
EXPORT Code nvmlDeviceGetPcieReplayCounter(void *h, unsigned *out) { DEVICE_CALL(h); *out = 0; return SUCCESS; }
EXPORT Code nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned place, void **out) {
    DEVICE_CALL(h);
    if (g->mig_count < 0 || (int)place >= g->mig_count) return NOT_FOUND;
    *out = h;
    return SUCCESS;
}
EXPORT Code nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { DEVICE_CALL(h); *major = g->major, *minor = g->minor; return SUCCESS; }
EXPORT Code nvmlDeviceGetCpuAffinity(void *h, unsigned n, unsigned long *out) {
    DEVICE_CALL(h);
    if (!g->cpus) return NOT_SUPPORTED;
    memset(out, 0, n * sizeof *out);
    if (n) *out = (unsigned long)g->cpus;
    return SUCCESS;
}
EXPORT Code nvmlDeviceGetMemoryAffinity(void *h, unsigned n, unsigned long *out, unsigned scope) {
    DEVICE_CALL(h);
    (void)scope;
    if (g->numa < 0) return NOT_SUPPORTED;
    memset(out, 0, n * sizeof *out);
    if ((unsigned)g->numa / 64 < n) out[g->numa / 64] = 1ul << g->numa % 64;
    return SUCCESS;
}

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } Fabric;
EXPORT Code nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *out) {
    DEVICE_CALL(h);
    if (g->fabric < 0) return NOT_SUPPORTED;
    out->status = 0, out->clique = 0, out->health = 0, out->state = (unsigned char)g->fabric;
    memset(out->cluster, 0, sizeof out->cluster);
    return SUCCESS;
}
