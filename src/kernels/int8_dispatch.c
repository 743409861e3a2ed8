/* Select the int8 kernels for an instruction set. All give bit-identical results, so a processor
 * with AVX-512 but without VNNI uses the AVX2 kernels. Tiles are used after a comparison. */
#include "kernels/int8.h"

#include "base/cpu.h"

#include <stdatomic.h>
#include <string.h>

extern const mhai_int8_kernels mhai_int8_kernels_portable;
#if defined(MHAI_HAVE_X86)
extern const mhai_int8_kernels mhai_int8_kernels_avx2, mhai_int8_kernels_avx512,
    mhai_int8_kernels_amx, mhai_int8_kernels_amx_int8;
#endif
#if defined(MHAI_HAVE_NEON)
extern const mhai_int8_kernels mhai_int8_kernels_neon;
#endif

#if defined(MHAI_HAVE_X86)
/* Whether tiles give the sums of vectors: 9 rows of 96 inputs, in three runs. An input of 127 and
 * scales of 1 make all outputs integers. */
static bool compare_tiles(void)
{
    enum { ROWS = 9, INPUTS = 96, COLS = MHA_CODED_ROWS };
    const mhai_int8_kernels *tables[] = {&mhai_int8_kernels_avx512, &mhai_int8_kernels_amx};
    static const float zeros[COLS];
    mha_coded w = {.run = MHAI_INT8_BLOCK};
    int32_t small[ROWS * (MHA_CODED_COLUMNS / 4 + 16)];
    mhai_int8_block blocks[ROWS * MHAI_INT8_BLOCKS];
    float x[INPUTS], out[2][ROWS * COLS];
    uint32_t random = 1;
    for (int i = 0; i < INPUTS * COLS; i++) {
        random = random * 1664525u + 1013904223u;
        w.number[i % INPUTS / 4][i / INPUTS][i % 4] = (int8_t)((int)(random >> 24) - 128);
        w.scale[i / COLS / MHAI_INT8_BLOCK][i % COLS] = 1;
    }
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < INPUTS; i++)
            x[i] = i % MHAI_INT8_BLOCK ? (float)((i * 37 + r * 101) % 255 - 127) : 127;
        tables[0]->int8_inputs(x, INPUTS, small + r * tables[0]->row_stride,
                               blocks + r * MHAI_INT8_BLOCKS);
    }
    for (int i = 0; i < 2; i++)
        tables[i]->int8_product(&(mhai_int8_product){.rows = ROWS,
                                                     .w = &w,
                                                     .inputs = INPUTS,
                                                     .cols = COLS,
                                                     .x = small,
                                                     .blocks = blocks,
                                                     .from = zeros,
                                                     .out = out[i],
                                                     .out_stride = COLS});
    return memcmp(out[0], out[1], sizeof out[0]) == 0;
}

/* The same for bf16: 17 rows of 96 pairs of numbers with 8 bits and exponents from -8 to 7, whose
 * sums round and cancel. */
static bool compare_bf16_tiles(void)
{
    enum { ROWS = 17, PAIRS = 96, COLS = MHAI_PANEL };
    const mhai_int8_kernels *tables[] = {&mhai_int8_kernels_avx512, &mhai_int8_kernels_amx};
    static const float zeros[COLS];
    int32_t x[ROWS * PAIRS], w[PAIRS * COLS];
    float out[2][ROWS * COLS];
    uint32_t random = 1;
    for (int i = 0; i < (ROWS + COLS) * PAIRS; i++) {
        random = random * 1664525u + 1013904223u; /* keep signs and mantissas */
        const uint32_t half = random & 0x87FF87FFu;
        *(i < ROWS * PAIRS ? &x[i] : &w[i - ROWS * PAIRS]) = (int32_t)(half + 0x3B803B80u);
    }
    for (int i = 0; i < 2; i++)
        tables[i]->bf16_product(&(mhai_bf16_product){.rows = ROWS,
                                                     .pairs = PAIRS,
                                                     .cols = COLS,
                                                     .x = x,
                                                     .x_stride = PAIRS,
                                                     .w = w,
                                                     .from = zeros,
                                                     .out = out[i],
                                                     .out_stride = COLS});
    return memcmp(out[0], out[1], sizeof out[0]) == 0;
}

/* Compared once per process. */
static const mhai_int8_kernels *table_of_tiles(void)
{
    enum { NONE = 1, INT8, ALL };
    static atomic_int known;
    int agree = atomic_load_explicit(&known, memory_order_relaxed);
    if (!agree) {
        agree = !compare_tiles() ? NONE : compare_bf16_tiles() ? ALL : INT8;
        atomic_store_explicit(&known, agree, memory_order_relaxed);
    }
    if (agree == ALL) return &mhai_int8_kernels_amx;
    return agree == INT8 ? &mhai_int8_kernels_amx_int8 : &mhai_int8_kernels_avx512;
}
#endif

const mhai_int8_kernels *mhai_int8_kernels_for(mha_isa isa)
{
    switch (isa) {
#if defined(MHAI_HAVE_X86)
    case MHA_ISA_AMX: return table_of_tiles();
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
