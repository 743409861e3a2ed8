/* See machines.h. */
#include "support/machines.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    mha_isa isa;
    mha_path path;
    const char *name;
} wanted[] = {{MHA_ISA_PORTABLE, MHA_PATH_TILED, "tiled portable"},
              {MHA_ISA_NEON, MHA_PATH_TILED, "tiled neon"},
              {MHA_ISA_AVX2, MHA_PATH_TILED, "tiled avx2"},
              {MHA_ISA_AVX512, MHA_PATH_TILED, "tiled avx512"},
              {MHA_ISA_PORTABLE, MHA_PATH_PLAIN, "plain"}};

machines machines_make(int num_threads)
{
    machines all = {.count = 0};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!mha_isa_available(wanted[i].isa)) continue;
        machine *m = &all.each[all.count++];
        *m = (machine){.path = wanted[i].path, .isa = wanted[i].isa, .name = wanted[i].name};
        const mha_context_desc desc = {
            .struct_size = sizeof desc, .num_threads = num_threads, .isa = wanted[i].isa};
        if (mha_context_create(&desc, &m->context) == MHA_OK) continue;
        fprintf(stderr, "machines: %s: %s\n", m->name, mha_error_detail());
        abort();
    }
    return all;
}

void machines_free(machines *all)
{
    for (int i = 0; i < all->count; i++) mha_context_destroy(all->each[i].context);
    all->count = 0;
}

void machines_print_missing(void)
{
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!mha_isa_available(wanted[i].isa)) printf("not tested here: %s\n", wanted[i].name);
}
