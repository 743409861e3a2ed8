/* Instruction sets that this processor supports and for which this build has kernels. */
#ifndef MHAI_CPU_H
#define MHAI_CPU_H

#include <multihead/base.h>

/* Processor features that kernels use. AVX2 includes FMA and F16C. AVX512 means F, DQ, BW
 * and VL. Only x86 has any. */
enum {
    MHAI_CPU_ASKED = 1, /* set once the processor has been queried */
    MHAI_CPU_AVX2 = 2,
    MHAI_CPU_AVX512 = 4,
    MHAI_CPU_AVX512_VNNI = 8,
    MHAI_CPU_AVX512_BF16 = 16,
    MHAI_CPU_AMX = 32 /* tiles, with products of int8 and bf16, if the system grants them */
};

unsigned mhai_cpu_features(void);

/* The best available instruction set up to limit; MHA_ISA_AUTO: no limit. */
mha_isa mhai_cpu_best(mha_isa limit);

/* Look up an instruction set by name. Returns false if there is none. */
bool mhai_isa_from_name(const char *name, mha_isa *isa);

/* L2 bytes per core, as reported by the system, or a typical size. */
int64_t mhai_cpu_l2(void);

/* Number of processors on which this process may run, at least 1. */
int mhai_cpu_count(void);

#endif
