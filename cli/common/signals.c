/* See signals.h. */
#include "common/signals.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

static volatile sig_atomic_t came;
static void (*before[2])(int);
static const int numbers[2] = {SIGINT, SIGTERM};

static void on_signal(int number)
{
    came = number;
}

void signals_hold(void)
{
    for (int i = 0; i < 2; i++) before[i] = signal(numbers[i], on_signal);
}

void signals_release(void)
{
    for (int i = 0; i < 2; i++) signal(numbers[i], before[i]);
}

bool signals_came(void)
{
    return came != 0;
}

void signals_end(void)
{
    if (!came) return;
    fflush(stdout);
    signal(came, SIG_DFL); /* the parent may have ignored it */
    raise(came);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
