/* Select the int8 kernels for an instruction set. All give bit-identical results, so a processor
 * with AVX-512 but without VNNI uses the AVX2 kernels. */
#include "kernels/int8.h"

#include "base/cpu.h"

extern const mhai_int8_kernels mhai_int8_kernels_portable;
#if defined(MHAI_HAVE_X86)
extern const mhai_int8_kernels mhai_int8_kernels_avx2, mhai_int8_kernels_avx512;
#endif
#if defined(MHAI_HAVE_NEON)
extern const mhai_int8_kernels mhai_int8_kernels_neon;
#endif

const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa)
{
    switch (isa) {
#if defined(MHAI_HAVE_X86)
    case MHA_ISA_AVX512:
        return mhai_cpu_features() & MHAI_CPU_AVX512_VNNI ? &mhai_int8_kernels_avx512
                                                          : &mhai_int8_kernels_avx2;
    case MHA_ISA_AVX2: return &mhai_int8_kernels_avx2;
#endif
#if defined(MHAI_HAVE_NEON)
    case MHA_ISA_NEON: return &mhai_int8_kernels_neon;
#endif
    default: return &mhai_int8_kernels_portable;
    }
}
