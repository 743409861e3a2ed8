/* Select the kernel table of an instruction set. No other file lists the tables. */
#include "kernels/kernels.h"

#include "base/cpu.h"

extern const mhai_kernels mhai_kernels_portable;
#if defined(MHAI_HAVE_X86)
extern const mhai_kernels mhai_kernels_avx2, mhai_kernels_avx512;
#endif
#if defined(MHAI_HAVE_NEON)
extern const mhai_kernels mhai_kernels_neon;
#endif

const mhai_kernels *mhai_kernels_for(mha_isa isa)
{
    switch (isa) {
#if defined(MHAI_HAVE_X86)
    case MHA_ISA_AMX:
    case MHA_ISA_AVX512: return &mhai_kernels_avx512;
    case MHA_ISA_AVX2: return &mhai_kernels_avx2;
#endif
#if defined(MHAI_HAVE_NEON)
    case MHA_ISA_NEON: return &mhai_kernels_neon;
#endif
    default: return &mhai_kernels_portable;
    }
}

bool mhai_kernels_have_pairs(const mhai_kernels *kernels)
{
    return kernels->isa == MHA_ISA_AVX512 && (mhai_cpu_features() & MHAI_CPU_AVX512_BF16);
}
