/* Every kernel of src/kernels/kernels.inc and int8.inc, on every instruction set of this machine, against plain
 * arithmetic, between inaccessible pages (kernel_test.h):
 *
 *     test_kernels [slot ...]           checks
 *     test_kernels --bench [slot ...]   time of a call of typical size: median, half the interquartile range, and
 * GFLOP/s or GB/s test_kernels --list               the slots
 */
#include "kernel_test.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct slot {
    const char *name;
    void (*check)(kernel_test *t);
} slot;

static const slot slots[] = {
#define MHAI_KERNEL(name, arguments) {#name, check_##name},
#include "kernels/kernels.inc"

#include "kernels/int8.inc"
#undef MHAI_KERNEL
};
enum { SLOTS = sizeof slots / sizeof *slots };

/* cmocka reports the signal, and this function reports the place. */
static kernel_test current;
static struct sigaction cmocka_action[2];

static void say_where(int signal)
{
    static const char what[] = ": touches what it must not\n";
    ssize_t written = write(STDERR_FILENO, current.place, strlen(current.place));
    written += write(STDERR_FILENO, what, sizeof what - 1);
    (void)written;
    sigaction(signal, &cmocka_action[signal == SIGBUS], NULL);
    cmocka_action[signal == SIGBUS].sa_handler(signal);
}

static void watch(void)
{
    const struct sigaction ours = {.sa_handler = say_where, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &ours, &cmocka_action[0]);
    sigaction(SIGBUS, &ours, &cmocka_action[1]);
}

static void check_slot(void **state)
{
    const slot *s = &slots[*(int *)*state];
    const int cases = rng_cases(100, 1000);
    current = (kernel_test){.slot = s->name, .tally.name = s->name};
    watch();
    for (int i = 0; i < cases && !current.failed; i++) {
        current.r = rng_make(rng_run_seed(), (uint64_t)((s - slots) * 1000000 + i));
        current.rows = 0;
        current.undefined = false;
        s->check(&current);
    }
    free(current.bits.at);
    free(current.first_bits.at);
    if (current.equal > 0)
        printf("  %-34s %9lld values, equal\n", s->name, (long long)current.equal);
    if (current.tally.compared > 0) tally_print(&current.tally);
    assert_false(current.failed);
    assert_true(current.equal > 0 || tally_is_sharp(&current.tally));
}

static void time_slot(const slot *s)
{
    current =
        (kernel_test){.slot = s->name, .timed = true, .r = rng_make(1, (uint64_t)(s - slots))};
    s->check(&current);
    free(current.bits.at);
    free(current.first_bits.at);
}

static bool is_chosen(const slot *s, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], s->name) == 0) return true;
    return count == 0;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[SLOTS];
    int numbers[SLOTS];
    size_t count = 0;
    const int options = argc > 1 && argv[1][0] == '-';
    const bool bench = options && strcmp(argv[1], "--bench") == 0;
    const bool list = options && strcmp(argv[1], "--list") == 0;
    for (int i = 0; i < SLOTS && bench + list == options; i++) {
        numbers[i] = i;
        if (!is_chosen(&slots[i], argc - 1 - options, argv + 1 + options)) continue;
        tests[count++] = (struct CMUnitTest){
            .name = slots[i].name, .test_func = check_slot, .initial_state = &numbers[i]};
        if (list) printf("%s\n", slots[i].name);
        if (bench) time_slot(&slots[i]);
    }
    if (count == 0) {
        fprintf(stderr,
                "usage: test_kernels [--bench | --list] [slot ...]; --list has the slots\n");
        return 2;
    }
    return options ? 0 : _cmocka_run_group_tests("kernels", tests, count, NULL, NULL);
}
