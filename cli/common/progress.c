/* See progress.h. */
#include "common/progress.h"

#include "common/print.h"
#include "common/screen.h"
#include "common/signals.h"

#include <stdarg.h>
#include <stdio.h>

progress progress_begin(bool quiet)
{
    const double now = seconds_now();
    const bool terminal = screen_shows_progress(quiet);
    return (progress){
        .terminal = terminal, .quiet = quiet, .begin = now, .next = terminal ? now : now + 1};
}

void progress_restart(progress *p)
{
    p->begin = seconds_now();
}

/* "45 s", "3 min" */
static void put_time(double seconds, char *text, size_t size)
{
    if (seconds < 100)
        snprintf(text, size, "%.0f s", seconds);
    else if (seconds < 6000)
        snprintf(text, size, "%.0f min", seconds / 60);
    else
        snprintf(text, size, "%.1f h", seconds / 3600);
}

void progress_show(progress *p, double part, const char *format, ...)
{
    enum { LINE = 256, TIME = 32 };
    char what[LINE], line[LINE + 3 * TIME], taken[TIME], left[TIME];
    const double now = seconds_now(), seconds = now - p->begin;
    va_list arguments;
    if (p->quiet || now < p->next) return;
    p->next = now + (p->terminal ? 0.1 : part > 0 ? 10 : 1); /* 1: no estimate yet */
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    put_time(seconds, taken, sizeof taken);
    snprintf(line, sizeof line, "%s, %s", what, taken);
    if (part > 0 && seconds > 0) {
        put_time(part < 1 ? seconds * (1 - part) / part : 0, left, sizeof left);
        snprintf(line, sizeof line, "%s, %s, about %s left", what, taken, left);
    }
    if (p->terminal)
        cli_print_to(stderr, "\r\033[K%.*s", (int)screen_width(2, 0) - 1, line);
    else
        cli_print_to(stderr, "%s\n", line);
    fflush(stderr);
}

void progress_clear(const progress *p)
{
    if (p->terminal) cli_print_to(stderr, "\r\033[K");
}
