/* Instruction sets. One is available if the processor has it and the operating system saves its
 * registers. __builtin_cpu_supports() is not used: it depends on the compiler's run-time library,
 * and always returns false with zig, which builds the wheels. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpu.h"

#if defined(MHAI_HAVE_X86)
#include <cpuid.h>
#include <stdatomic.h>
#endif
#include <sched.h>
#include <string.h>
#include <unistd.h>

#if defined(MHAI_HAVE_X86) && defined(__linux__)
#include <sys/syscall.h>
#endif

static const struct {
    mha_isa isa;
    const char *name;
} isas[] = {
#define ISA_ROW(name, value, text) {name, text},
    MHA_ISA_LIST(ISA_ROW)
#undef ISA_ROW
};

enum { ISAS = sizeof isas / sizeof isas[0] };

const char *mha_compute_name(mha_compute compute)
{
    switch (compute) {
    case MHA_COMPUTE_F32: return "f32";
    case MHA_COMPUTE_INT8: return "int8";
    case MHA_COMPUTE_BF16: return "bf16";
    case MHA_COMPUTE_TILES: return "tiles";
    }
    return "?";
}

const char *mha_isa_name(mha_isa isa)
{
    for (int i = 0; i < ISAS; i++)
        if (isas[i].isa == isa) return isas[i].name;
    return "?";
}

bool mhai_isa_from_name(const char *name, mha_isa *isa)
{
    for (int i = 0; i < ISAS; i++)
        if (strcmp(isas[i].name, name) == 0) {
            *isa = isas[i].isa;
            return true;
        }
    return false;
}

#if defined(MHAI_HAVE_X86)
/* XCR0: a bit for each kind of register that the operating system saves. */
static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Leaf 29 must describe palette 1: eight tiles of 16 rows of 64 bytes. d: EDX of leaf 7. */
static bool has_tiles(unsigned d, unsigned saved)
{
    enum { TILES = 3 << 17, BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, PALETTE = 29 };
    const unsigned all = BF16 | TILE | INT8;
    unsigned bytes, row_and_names, rows, unused;
    return (saved & TILES) == TILES && (d & all) == all &&
           __get_cpuid_count(PALETTE, 1, &bytes, &row_and_names, &rows, &unused) &&
           bytes == (1024u << 16 | 8192) && row_and_names == (8u << 16 | 64) &&
           (rows & 0xFFFF) == 16;
}

static unsigned ask_processor(void)
{
    enum { YMM = 0x6, ZMM = 0xE6 };
    const unsigned one = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const unsigned zmm = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    unsigned a, b, c, d, last, features;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & one) != one) return 0;
    const unsigned saved = saved_registers();
    if ((saved & YMM) != YMM || !__get_cpuid_count(7, 0, &last, &b, &c, &d) || !(b & bit_AVX2))
        return 0;
    features = MHAI_CPU_AVX2;
    if ((saved & ZMM) != ZMM || (b & zmm) != zmm) return features;
    features |= MHAI_CPU_AVX512;
    if (c & bit_AVX512VNNI) features |= MHAI_CPU_AVX512_VNNI;
    if ((c & bit_AVX512VNNI) && has_tiles(d, saved)) features |= MHAI_CPU_AMX;
    if (last >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVX512BF16))
        features |= MHAI_CPU_AVX512_BF16;
    return features;
}

/* Queried only once, because CPUID takes about 20 microseconds in a virtual machine. */
unsigned mhai_cpu_features(void)
{
    static atomic_uint known;
    unsigned features = atomic_load_explicit(&known, memory_order_relaxed);
    if (!features) {
        features = ask_processor() | MHAI_CPU_ASKED;
        atomic_store_explicit(&known, features, memory_order_relaxed);
    }
    return features;
}
#else
unsigned mhai_cpu_features(void)
{
    return MHAI_CPU_ASKED;
}
#endif

/* Linux saves tiles only for processes that request them. The request lasts for the process, and
 * fails if a thread's signal stack is too small for a frame with tiles. */
static bool tiles_granted(void)
{
#if defined(MHAI_HAVE_X86) && defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST = 0x1023, TILE_DATA = 18, NO = 1, YES = 2 };
    static atomic_int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        const bool has = mhai_cpu_features() & MHAI_CPU_AMX;
        answer = has && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
#else
    return false;
#endif
}

bool mha_isa_available(mha_isa isa)
{
    switch (isa) {
    case MHA_ISA_AUTO:
    case MHA_ISA_PORTABLE: return true;
#if defined(MHAI_HAVE_NEON)
    case MHA_ISA_NEON: return true; /* every 64-bit Arm has it */
#else
    case MHA_ISA_NEON: return false;
#endif
    case MHA_ISA_AVX2: return mhai_cpu_features() & MHAI_CPU_AVX2;
    case MHA_ISA_AVX512: return mhai_cpu_features() & MHAI_CPU_AVX512;
    case MHA_ISA_AMX: return tiles_granted();
    }
    return false;
}

mha_isa mhai_cpu_best(mha_isa limit)
{
    for (int i = ISAS - 1; i > 0; i--)
        if ((limit == MHA_ISA_AUTO || isas[i].isa <= limit) && mha_isa_available(isas[i].isa))
            return isas[i].isa;
    return MHA_ISA_PORTABLE;
}

int64_t mhai_cpu_l2(void)
{
#ifdef _SC_LEVEL2_CACHE_SIZE /* not every C library has it */
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes > 0) return bytes;
#endif
    return 512 << 10;
}

int mhai_cpu_count(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
