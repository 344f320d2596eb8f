/* A stand-in for libnvidia-ml.so.1, ours from the first line: it answers the calls that the nvml collector makes, from a
 * control file that is read again whenever it changes (NVML_STUB, key=value lines). To answer another call: a function
 * below and its key in the control file. A key that is absent is "not supported"; `!4` is NVML's error 4.
 * Values: BASE, BASE+RATE@SINCE (a counter: RATE a second since that Unix time), either with ~JITTER.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };
enum { GPUS = 16, KEYS = 512, XIDS = 512, INSTANCES = 8 };
typedef struct { int set, error; double base, rate, since, jitter; char text[160]; } Value;
typedef struct { int number; } Gpu;
typedef Gpu *Handle;
typedef struct { int gpu, code, count; } Xid;

static char names[KEYS][48];
static int key_count;
static Value values[GPUS][KEYS];
static Gpu gpus[GPUS], instances[GPUS][INSTANCES];
static int order[GPUS], seen_gpus, total, epoch, session_epoch = -1, init_error;
static char driver[80];
static Xid xids[XIDS];
static int xid_count;
static struct timespec read_at;
static off_t read_size = -1;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void rest_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static int key(const char *name) {
    for (int i = 0; i < key_count; i++)
        if (!strcmp(names[i], name)) return i;
    if (key_count == KEYS) abort();
    snprintf(names[key_count], sizeof names[0], "%s", name);
    return key_count++;
}
#define KEY(name) ({ static int k_ = -1; if (k_ < 0) k_ = key(name); k_; })

static Value parse(const char *text) {
    Value v = {.set = 1};
    snprintf(v.text, sizeof v.text, "%s", text);
    if (text[0] == '!') { v.error = atoi(text + 1); return v; }
    char *end;
    v.base = strtod(text, &end);
    if (*end == '+') { v.rate = strtod(end + 1, &end); if (*end == '@') v.since = strtod(end + 1, &end); }
    if (*end == '~') v.jitter = strtod(end + 1, &end);
    return v;
}

static void reload(void) {
    const char *path = getenv("NVML_STUB");
    struct stat s;
    if (!path || stat(path, &s)) { fprintf(stderr, "NVML_STUB names no file\n"); abort(); }
    if (s.st_size == read_size && s.st_mtim.tv_sec == read_at.tv_sec && s.st_mtim.tv_nsec == read_at.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return; /* being replaced: what was read last still holds */
    read_size = s.st_size; read_at = s.st_mtim;
    memset(values, 0, sizeof values);
    total = xid_count = epoch = init_error = 0;
    strcpy(driver, "580.0");
    for (int i = 0; i < GPUS; i++) { gpus[i].number = i; order[i] = i; }
    char line[512];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = 0;
        const char *name = line, *text = equals + 1;
        int gpu = -1, used = 0;
        if (!strcmp(name, "gpus")) total = atoi(text);
        else if (!strcmp(name, "driver")) snprintf(driver, sizeof driver, "%s", text);
        else if (!strcmp(name, "epoch")) epoch = atoi(text);
        else if (!strcmp(name, "init")) init_error = atoi(text);
        else if (!strcmp(name, "xid") && xid_count < XIDS) {
            Xid *x = &xids[xid_count++];
            x->count = 1;
            sscanf(text, "%d,%d,%d", &x->gpu, &x->code, &x->count);
        } else if (!strcmp(name, "order")) {
            char *rest = (char *)text;
            for (int i = 0; i < GPUS && *rest; i++) { order[i] = strtol(rest, &rest, 10); if (*rest == ',') rest++; }
        } else if (sscanf(name, "gpu.%d.%n", &gpu, &used) == 1 && used && gpu >= 0 && gpu < GPUS)
            values[gpu][key(name + used)] = parse(text);
        else
            for (int i = 0; i < GPUS; i++) values[i][key(name)] = parse(text);
    }
    fclose(file);
    seen_gpus = 0;
    int missing = KEY("missing"), kept[GPUS];
    for (int i = 0; i < total; i++) if (!values[order[i]][missing].set) kept[seen_gpus++] = order[i];
    memcpy(order, kept, sizeof(int) * seen_gpus);
}

static double jitter(int gpu, double at) {
    uint64_t x = (uint64_t)(at * 50) * 2654435761u + gpu * 40503u + 1;
    x ^= x >> 13; x *= 0x9E3779B97F4A7C15ull; x ^= x >> 31;
    return (double)(x % 2001) / 1000.0 - 1.0;
}

static double at_time(const Value *v, int gpu, double at) {
    double value = v->base + (v->rate ? v->rate * (at - v->since) : 0);
    return v->jitter ? value + v->jitter * jitter(gpu, at) : value;
}

/* What every call about a GPU goes through: slowness, hanging, loss, a driver that was loaded anew. */
static int enter(Handle h, const char *call) {
    reload();
    if (!h || h < gpus || h >= gpus + GPUS) return INVALID;
    Value *mine = values[h->number];
    if (mine[KEY("slow_ms")].set) rest_ms((long)mine[KEY("slow_ms")].base);
    while (mine[KEY("hang")].set && (!strcmp(mine[KEY("hang")].text, "all") || !strcmp(mine[KEY("hang")].text, call))) {
        rest_ms(10);
        reload();
    }
    if (session_epoch != epoch) return UNKNOWN;
    if (mine[KEY("missing")].set) return LOST;
    return mine[KEY("fail")].set ? (int)mine[KEY("fail")].base : OK;
}

static int number(Handle h, int k, double *out) {
    Value *v = &values[h->number][k];
    if (!v->set) return UNSUPPORTED;
    if (v->error) return v->error;
    *out = at_time(v, h->number, now());
    return OK;
}

static int text(Handle h, int k, char *out, unsigned size) {
    Value *v = &values[h->number][k];
    if (!v->set) return UNSUPPORTED;
    if (v->error) return v->error;
    if (strlen(v->text) >= size) return SMALL;
    strcpy(out, v->text);
    return OK;
}

static unsigned as_uint(double d) { return d < 0 ? (unsigned)(int)d : (unsigned)(uint64_t)d; }

#define UINT(name, k) int name(Handle h, unsigned *out) { \
    double d; int e = enter(h, #name); if (e || (e = number(h, KEY(k), &d))) return e; *out = as_uint(d); return OK; }
#define TEXT(name, k) int name(Handle h, char *out, unsigned size) { \
    int e = enter(h, #name); return e ? e : text(h, KEY(k), out, size); }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    reload();
    if (init_error) return init_error;
    session_epoch = epoch;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { session_epoch = -1; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stub"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { reload(); snprintf(out, size, "%s", driver); return OK; }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { snprintf(out, size, "13.0"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { reload(); if (session_epoch != epoch) return UNKNOWN; *out = seen_gpus; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    reload();
    if (session_epoch != epoch) return UNKNOWN;
    if (index >= (unsigned)seen_gpus) return INVALID;
    *out = &gpus[order[index]];
    return enter(*out, "nvmlDeviceGetHandleByIndex");
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Handle *out) {
    reload();
    if (session_epoch != epoch) return UNKNOWN;
    for (int i = 0; i < seen_gpus; i++)
        if (!strcasecmp(values[order[i]][KEY("bus")].text, bus)) {
            *out = &gpus[order[i]];
            return enter(*out, "nvmlDeviceGetHandleByPciBusId");
        }
    return NOT_FOUND;
}

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "model")
TEXT(nvmlDeviceGetSerial, "serial")
UINT(nvmlDeviceGetPowerUsage, "power")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_gen")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
UINT(nvmlDeviceGetModuleId, "module")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replay_old")

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(Handle h, struct pci *out) {
    memset(out, 0, sizeof *out);
    int e = enter(h, "nvmlDeviceGetPciInfo");
    return e ? e : text(h, KEY("bus"), out->bus_id, sizeof out->bus_id);
}
static int clock_of(Handle h, unsigned type, unsigned *out, int sm, int mem, const char *call) {
    double d;
    int e = enter(h, call);
    if (e || (e = type == 1 ? number(h, sm, &d) : type == 2 ? number(h, mem, &d) : UNSUPPORTED)) return e;
    *out = as_uint(d);
    return OK;
}
int nvmlDeviceGetClockInfo(Handle h, unsigned t, unsigned *o) { return clock_of(h, t, o, KEY("sm_clock"), KEY("mem_clock"), "nvmlDeviceGetClockInfo"); }
int nvmlDeviceGetMaxClockInfo(Handle h, unsigned t, unsigned *o) { return clock_of(h, t, o, KEY("max_sm_clock"), KEY("max_mem_clock"), "nvmlDeviceGetMaxClockInfo"); }
struct temperature { unsigned version, sensor; int value; };
int nvmlDeviceGetTemperatureV(Handle h, struct temperature *t) {
    double d; int e = enter(h, "nvmlDeviceGetTemperatureV");
    if (e || (e = number(h, KEY("temperature"), &d))) return e;
    t->value = (int)d; return OK;
}
int nvmlDeviceGetTemperature(Handle h, unsigned sensor, unsigned *out) {
    (void)sensor; double d; int e = enter(h, "nvmlDeviceGetTemperature");
    if (e || (e = number(h, KEY("temperature_old"), &d))) return e;
    *out = as_uint(d); return OK;
}
struct margin { unsigned version; int value; };
int nvmlDeviceGetMarginTemperature(Handle h, struct margin *m) {
    double d; int e = enter(h, "nvmlDeviceGetMarginTemperature");
    if (e || (e = number(h, KEY("margin"), &d))) return e;
    m->value = (int)d; return OK;
}
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(Handle h, struct rates *r) {
    double d; int e = enter(h, "nvmlDeviceGetUtilizationRates");
    if (e || (e = number(h, KEY("utilization"), &d))) return e;
    r->gpu = as_uint(d);
    r->memory = number(h, KEY("memory_utilization"), &d) ? 0 : as_uint(d);
    return OK;
}
static int reasons(Handle h, uint64_t *out, int k, const char *call) {
    double d; int e = enter(h, call);
    if (e || (e = number(h, k, &d))) return e;
    *out = (uint64_t)d; return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle h, uint64_t *o) { return reasons(h, o, KEY("reasons"), "nvmlDeviceGetCurrentClocksEventReasons"); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle h, uint64_t *o) { return reasons(h, o, KEY("reasons_old"), "nvmlDeviceGetCurrentClocksThrottleReasons"); }
struct memory { unsigned version; uint64_t total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(Handle h, struct memory *m) {
    double t, u; int e = enter(h, "nvmlDeviceGetMemoryInfo");
    if (e || (e = number(h, KEY("memory_total"), &t)) || (e = number(h, KEY("memory_used"), &u))) return e;
    m->total = (uint64_t)t; m->used = (uint64_t)u; m->reserved = 0; m->free = m->total - m->used;
    return OK;
}
int nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    double d; int e = enter(h, "nvmlDeviceGetMigMode");
    if (e || (e = number(h, KEY("mig"), &d))) return e;
    *current = *pending = as_uint(d); return OK;
}
int nvmlDeviceGetTotalEccErrors(Handle h, unsigned kind, unsigned counter, uint64_t *out) {
    (void)counter; double d; int e = enter(h, "nvmlDeviceGetTotalEccErrors");
    if (e || (e = number(h, kind ? KEY("ecc_uncorrected_old") : KEY("ecc_corrected_old"), &d))) return e;
    *out = (uint64_t)d; return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(Handle h, uint64_t *out) {
    double d; int e = enter(h, "nvmlDeviceGetTotalEnergyConsumption");
    if (e || (e = number(h, KEY("energy_old"), &d))) return e;
    *out = (uint64_t)d; return OK;
}
int nvmlDeviceGetRemappedRows(Handle h, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
    double d; int e = enter(h, "nvmlDeviceGetRemappedRows");
    if (e || (e = number(h, KEY("remapped_old"), &d))) return e;
    *c = as_uint(d); *u = *p = *f = 0; return OK;
}
struct violation { uint64_t reference, violation; };
int nvmlDeviceGetViolationStatus(Handle h, unsigned policy, struct violation *v) {
    double d; int e = enter(h, "nvmlDeviceGetViolationStatus");
    if (e || (e = number(h, policy == 0 ? KEY("violation_power") : policy == 1 ? KEY("violation_thermal") : KEY("unused"), &d))) return e;
    v->reference = (uint64_t)(now() * 1e6); v->violation = (uint64_t)d; return OK;
}

union value { double d; unsigned u; uint64_t ull; };
struct field { unsigned id, scope; int64_t at, latency; unsigned type, result; union value value; };
int nvmlDeviceGetFieldValues(Handle h, int count, struct field *f) {
    static int keys[512];
    int e = enter(h, "nvmlDeviceGetFieldValues");
    if (e) return e;
    for (int i = 0; i < count; i++) {
        char name[24];
        double d;
        if (f[i].id >= 511) { f[i].result = INVALID; continue; }
        if (!keys[f[i].id]) { snprintf(name, sizeof name, "field.%u", f[i].id); keys[f[i].id] = key(name) + 1; }
        f[i].result = number(h, keys[f[i].id] - 1, &d);
        f[i].at = (int64_t)(now() * 1e6);
        if (f[i].result) continue;
        int narrow = f[i].id == 82 || f[i].id == 186 || f[i].id == 144 || f[i].id == 145 || f[i].id == 230;
        f[i].type = narrow ? 1 : 3;
        if (narrow) f[i].value.u = as_uint(d);
        else f[i].value.ull = d >= 18446744073709551615.0 ? UINT64_MAX : (uint64_t)d;
    }
    return OK;
}

struct sample { uint64_t at_us; union value value; };
int nvmlDeviceGetSamples(Handle h, unsigned kind, uint64_t last_us, unsigned *type, unsigned *count, struct sample *out) {
    int e = enter(h, "nvmlDeviceGetSamples");
    if (e) return e;
    int k = kind == 0 ? KEY("power") : kind == 1 ? KEY("utilization") : kind == 5 ? KEY("sm_clock") : KEY("unused");
    Value *v = &values[h->number][k];
    if (!v->set || !values[h->number][KEY("buffers")].set) return UNSUPPORTED;
    if (v->error) return v->error;
    *type = 1;
    if (!out) { *count = 120; return OK; }
    uint64_t end = (uint64_t)(now() * 1e6) / 20000 * 20000, first = end - 119 * 20000;
    if (last_us + 20000 > first) first = last_us / 20000 * 20000 + 20000;
    unsigned n = 0;
    for (uint64_t t = first; t <= end && n < *count; t += 20000, n++) {
        out[n].at_us = t;
        out[n].value.ull = 0;
        out[n].value.u = as_uint(at_time(v, h->number, t / 1e6 + 0.001));
    }
    *count = n;
    return n ? OK : NOT_FOUND;
}

struct fabric { unsigned version; uint8_t cluster[16]; unsigned status, clique; uint8_t state; unsigned mask; uint8_t summary; };
int nvmlDeviceGetGpuFabricInfoV(Handle h, struct fabric *f) {
    double d; int e = enter(h, "nvmlDeviceGetGpuFabricInfoV");
    if (e || (e = number(h, KEY("fabric_state"), &d))) return e;
    int third = f->version >> 24 >= 3;
    memset(f->cluster, 0, 16);
    const char *hex = values[h->number][KEY("fabric_cluster")].text;
    for (int i = 0; i < 16 && hex[2 * i]; i++) { unsigned byte; sscanf(hex + 2 * i, "%2x", &byte); f->cluster[i] = byte; }
    f->state = (uint8_t)d;
    f->status = number(h, KEY("fabric_status"), &d) ? 0 : as_uint(d);
    f->clique = number(h, KEY("fabric_clique"), &d) ? 0 : as_uint(d);
    f->mask = number(h, KEY("fabric_mask"), &d) ? 0 : as_uint(d);
    if (third) f->summary = number(h, KEY("fabric_summary"), &d) ? 0 : (uint8_t)d;
    return OK;
}
struct platform { unsigned version; char ib[16], chassis[16]; uint8_t slot, tray, host, peer, module; };
int nvmlDeviceGetPlatformInfo(Handle h, struct platform *p) {
    double d; int e = enter(h, "nvmlDeviceGetPlatformInfo");
    if (e || (e = number(h, KEY("platform_slot"), &d))) return e;
    p->slot = (uint8_t)d;
    memset(p->chassis, 0, 16);
    const char *serial = values[h->number][KEY("platform_chassis")].text;
    memcpy(p->chassis, serial, strnlen(serial, 16));
    p->tray = number(h, KEY("platform_tray"), &d) ? 0 : (uint8_t)d;
    p->host = number(h, KEY("platform_host"), &d) ? 0 : (uint8_t)d;
    p->module = number(h, KEY("platform_module"), &d) ? 0 : (uint8_t)d;
    return OK;
}

struct gpm_sample { int gpu; double at; };
struct gpm_metric { unsigned id, result; double value; const char *names[3]; };
struct gpm_get { unsigned version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
struct gpm_support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(Handle h, struct gpm_support *s) {
    int e = enter(h, "nvmlGpmQueryDeviceSupport");
    s->supported = !e && values[h->number][KEY("gpm")].set;
    return e;
}
int nvmlGpmSampleAlloc(struct gpm_sample **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(struct gpm_sample *s) { free(s); return OK; }
int nvmlGpmSampleGet(Handle h, struct gpm_sample *s) {
    int e = enter(h, "nvmlGpmSampleGet");
    if (e) return e;
    if (values[h->number][KEY("mig")].base) return UNSUPPORTED;
    s->gpu = h->number; s->at = now();
    return OK;
}
int nvmlGpmMetricsGet(struct gpm_get *g) {
    static int keys[512];
    if (!g->first->at || g->second->at <= g->first->at) return INVALID;
    for (unsigned i = 0; i < g->count; i++) {
        struct gpm_metric *m = &g->metrics[i];
        char name[16];
        if (!keys[m->id]) { snprintf(name, sizeof name, "gpm.%u", m->id); keys[m->id] = key(name) + 1; }
        m->result = number(&gpus[g->second->gpu], keys[m->id] - 1, &m->value);
    }
    return OK;
}

/* Processes, of a GPU or of an instance of MIG: PID:BYTES,... in `compute`, `mps`, `graphics`, or `mig.0`, `mig.1` ...;
 * `process_count` is what the call says there are, whatever it writes; with `churn` the numbers change at each call. */
int nvmlDeviceGetMaxMigDeviceCount(Handle h, unsigned *out) {
    int e = enter(h, "nvmlDeviceGetMaxMigDeviceCount");
    if (e) return e;
    *out = values[h->number][KEY("mig")].base ? 7 : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle h, unsigned index, Handle *out) {
    char name[16];
    int e = enter(h, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (e) return e;
    snprintf(name, sizeof name, "mig.%u", index);
    if (index >= INSTANCES || !values[h->number][key(name)].set) return NOT_FOUND;
    *out = &instances[h->number][index];
    (*out)->number = h->number;
    return OK;
}
struct process { unsigned pid; uint64_t bytes; unsigned instance, compute; };
static int processes(Handle h, unsigned *count, struct process *out, const char *list, const char *call) {
    static int churned;
    char name[16];
    Gpu *first = &instances[0][0];
    int inside = h >= first && h < first + GPUS * INSTANCES, room = *count, n = 0;
    snprintf(name, sizeof name, "mig.%d", inside ? (int)((h - first) % INSTANCES) : 0);
    Handle whole = inside ? &gpus[h->number] : h;
    int e = enter(whole, call);
    if (e) return e;
    Value *mine = values[whole->number], *v = &mine[key(inside ? name : list)];
    if (inside && strcmp(list, "compute")) { *count = 0; return OK; }
    if (!v->set) return UNSUPPORTED;
    if (v->error) return v->error;
    for (char *rest = v->text; *rest && n < room; n++, rest += *rest == ',') {
        out[n].pid = strtoul(rest, &rest, 10);
        if (mine[KEY("churn")].set) out[n].pid += churned++;
        out[n].bytes = *rest == ':' ? strtoull(rest + 1, &rest, 10) : UINT64_MAX;
        out[n].instance = out[n].compute = inside ? 1 : UINT32_MAX;
    }
    *count = mine[KEY("process_count")].set ? (unsigned)mine[KEY("process_count")].base : (unsigned)n;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *n, struct process *p) { return processes(h, n, p, "compute", "nvmlDeviceGetComputeRunningProcesses"); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle h, unsigned *n, struct process *p) { return processes(h, n, p, "mps", "nvmlDeviceGetMPSComputeRunningProcesses"); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *n, struct process *p) { return processes(h, n, p, "graphics", "nvmlDeviceGetGraphicsRunningProcesses"); }

struct event_set { int next, repeated, registered[GPUS]; };
struct event { Handle device; uint64_t type, data; unsigned gi, ci; };
int nvmlEventSetCreate(struct event_set **out) { reload(); *out = calloc(1, sizeof **out); (*out)->next = xid_count; return OK; }
int nvmlDeviceRegisterEvents(Handle h, uint64_t types, struct event_set *s) {
    (void)types; int e = enter(h, "nvmlDeviceRegisterEvents");
    if (e) return e;
    if (!values[h->number][KEY("events")].set) return UNSUPPORTED;
    s->registered[h->number] = 1; return OK;
}
int nvmlEventSetWait_v2(struct event_set *s, struct event *out, unsigned timeout_ms) {
    (void)timeout_ms;
    reload();
    while (s->next < xid_count) {
        Xid *x = &xids[s->next];
        if (s->repeated >= x->count || !s->registered[x->gpu]) { s->next++; s->repeated = 0; continue; }
        s->repeated++;
        out->device = &gpus[x->gpu]; out->type = 8; out->data = x->code;
        return OK;
    }
    return TIMEOUT;
}
int nvmlEventSetFree(struct event_set *s) { free(s); return OK; }
