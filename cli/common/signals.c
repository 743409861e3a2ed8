/* See signals.h. */
#include "common/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

enum { COUNT = 3 };
static const int numbers[COUNT] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction before[COUNT];
static int holds;
static atomic_int came, last; /* the recorded signal; the last signal, even if postponed */

static void on_signal(int number)
{
    came = last = number;
}

bool signals_hold(void)
{
    const struct sigaction note = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (holds++ > 0) return false;
    for (int i = 0; i < COUNT; i++) {
        sigaction(numbers[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(numbers[i], &note, NULL);
    }
    return true;
}

bool signals_came(void)
{
    return came != 0;
}

/* End one hold, if there is one. Returns whether no hold remains. */
static bool let_go(void)
{
    if (holds == 0) return true;
    if (--holds > 0) return false;
    for (int i = 0; i < COUNT; i++) sigaction(numbers[i], &before[i], NULL);
    return true;
}

void signals_release(void)
{
    if (let_go() && came) signals_end();
}

bool signals_postpone(void)
{
    return let_go() && atomic_exchange(&came, 0) != 0;
}

void signals_end(void)
{
    if (!last) return;
    fflush(stdout);
    signal(last, SIG_DFL);
    raise(last);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
