#include "support/machines.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    mha_isa isa;
    mha_path path;
    const char *name;
} wanted[] = {
#define ISA_ROW(isa, value, text) {isa, MHA_PATH_TILED, "tiled " text},
    MHA_ISA_LIST(ISA_ROW)
#undef ISA_ROW
        {MHA_ISA_PORTABLE, MHA_PATH_PLAIN, "plain"}};

/* Indexed by number of threads. */
enum { MOST_THREADS = 64 };
static machines made[MOST_THREADS + 1];

static mha_context *make_context(mha_isa isa, int num_threads, const char *name)
{
    mha_context *context = NULL;
    const mha_context_desc desc = {
        .struct_size = sizeof desc, .num_threads = num_threads, .isa = isa};
    if (mha_context_create(&desc, &context) == MHA_OK) return context;
    fprintf(stderr, "machines: %s: %s\n", name, mha_error_detail());
    abort();
}

/* amx has the kernels of avx512, and others for int8 products, which tests/kernels compares. */
static mha_isa with_tiles(mha_isa isa)
{
    return isa == MHA_ISA_AVX512 && mha_isa_available(MHA_ISA_AMX) ? MHA_ISA_AMX : isa;
}

machines machines_make(int num_threads)
{
    if (num_threads < 0 || num_threads > MOST_THREADS) abort();
    machines all = made[num_threads];
    if (all.count > 0) return all;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (wanted[i].isa == MHA_ISA_AUTO || wanted[i].isa == MHA_ISA_AMX ||
            !mha_isa_available(wanted[i].isa))
            continue;
        all.each[all.count++] =
            (machine){make_context(with_tiles(wanted[i].isa), num_threads, wanted[i].name),
                      wanted[i].path, wanted[i].isa, wanted[i].name};
    }
    return made[num_threads] = all;
}

mha_context *machines_context(int num_threads, int64_t i)
{
    const machines all = machines_make(num_threads);
    return all.each[i % all.count].context;
}

void machines_finish(void)
{
    for (int n = 0; n <= MOST_THREADS; n++)
        while (made[n].count > 0) mha_context_destroy(made[n].each[--made[n].count].context);
}

void machines_print_missing(void)
{
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!mha_isa_available(wanted[i].isa)) printf("not tested here: %s\n", wanted[i].name);
}

machines machines_tiled(void)
{
    machines all = machines_make(1), three = machines_make(3);
    machines both = {.count = 0};
    for (int i = 0; i < all.count; i++)
        if (all.each[i].path == MHA_PATH_TILED) {
            both.each[both.count++] = all.each[i];
            both.each[both.count++] = three.each[i];
        }
    return both;
}
_Static_assert(MOST_MACHINES >= 6, "three instruction sets twice");
