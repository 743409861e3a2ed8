/* Instruction sets that this processor supports and this build has kernels for. */
#ifndef MHAI_CPU_H
#define MHAI_CPU_H

#include <multihead/base.h>

/* Features that kernels use beyond the baseline. AVX2 includes FMA and F16C; AVX512 means F, DQ, BW
 * and VL. Only x86 has any. */
enum {
    MHAI_CPU_ASKED = 1, /* always set: the processor has been queried */
    MHAI_CPU_AVX2 = 2,
    MHAI_CPU_AVX512 = 4,
    MHAI_CPU_AVX512_VNNI = 8,
    MHAI_CPU_AVX512_BF16 = 16
};

unsigned mhai_cpu_features(void);

/* The best available instruction set up to limit (MHA_ISA_AUTO: no limit). */
mha_isa mhai_cpu_best(mha_isa limit);

/* The instruction set with this name; false if there is none. */
bool mhai_isa_from_name(const char *name, mha_isa *isa);

/* L2 bytes per core as the system reports them; a typical size if it does not. */
int64_t mhai_cpu_l2(void);

/* Processors that this process may run on, at least 1. */
int mhai_cpu_count(void);

#endif
