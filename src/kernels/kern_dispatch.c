/* From instruction set to kernel table. One line per table; nothing else knows them. */
#include "kernels/kernels.h"

extern const mhai_kernels mhai_kernels_portable;
#if defined(MHAI_HAVE_X86)
extern const mhai_kernels mhai_kernels_avx2, mhai_kernels_avx512;
#endif

const mhai_kernels *mhai_kernels_for(mha_isa isa)
{
    switch (isa) {
#if defined(MHAI_HAVE_X86)
    case MHA_ISA_AVX512: return &mhai_kernels_avx512;
    case MHA_ISA_AVX2: return &mhai_kernels_avx2;
#endif
    default: return &mhai_kernels_portable;
    }
}
