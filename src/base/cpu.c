/* Instruction sets. Availability is asked of the processor and the operating system (the compiler's
 * run-time check includes XGETBV, so registers that the kernel does not save count as absent). */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpu.h"

#if defined(MHAI_HAVE_X86)
#include <cpuid.h>
#include <stdatomic.h>
#endif
#include <sched.h>
#include <string.h>
#include <unistd.h>

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
/* Clang 14 has no name for it. What the operating system saves is part of the question for AVX2.
 * Asked once: in a virtual machine the instruction takes some 20 microseconds. */
static bool has_f16c(void)
{
    enum { UNKNOWN, NO, YES };
    static atomic_int known;
    unsigned a, b, c, d;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == UNKNOWN) {
        answer = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}
#endif

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
#if defined(MHAI_HAVE_X86)
    case MHA_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case MHA_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
    case MHA_ISA_AVX2:
    case MHA_ISA_AVX512: return false;
#endif
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
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
