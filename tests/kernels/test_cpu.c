/* The library's detection of the processor, compared with the operating system's. */
#include "support/suite.h"

#include "base/cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
static bool all_in(const char *flags, const char *names)
{
    char name[32];
    int length;
    for (; sscanf(names, "%31s%n", name, &length) == 1; names += length) {
        char word[40];
        snprintf(word, sizeof word, " %s ", name);
        if (!strstr(flags, word)) return false;
    }
    return true;
}

static void as_the_system_says(void)
{
    static const struct {
        unsigned bit;
        const char *names;
    } rows[] = {
        {MHAI_CPU_AVX2, "avx2 fma f16c"},
        {MHAI_CPU_AVX512, "avx2 fma f16c avx512f avx512dq avx512bw avx512vl"},
        {MHAI_CPU_AVX512_VNNI, "avx512f avx512dq avx512bw avx512vl avx512_vnni"},
        {MHAI_CPU_AVX512_BF16, "avx512f avx512dq avx512bw avx512vl avx512_bf16"},
    };
    static char line[1 << 14];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file) && strncmp(line, "flags", 5) != 0) continue;
    if (file) fclose(file);
    if (strncmp(line, "flags", 5) != 0) {
        printf("  skipped: /proc/cpuinfo has no flags\n");
        skip();
    }
    line[strcspn(line, "\n")] = ' ';
    /* The system may list tiles without granting them. */
    if (mha_isa_available(MHA_ISA_AMX))
        assert_true(all_in(line, "avx512_vnni amx_tile amx_int8 amx_bf16"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const bool there = mhai_cpu_features() & rows[i].bit;
        printf("  %s: %s\n", rows[i].names, there ? "yes" : "no");
        assert_int_equal(there, all_in(line, rows[i].names));
    }
}
#else
static void as_the_system_says(void)
{
    assert_int_equal(mhai_cpu_features(), MHAI_CPU_ASKED);
}
#endif

RUN_TESTS(TEST(as_the_system_says))
