/* Progress of long work on stderr: how far it is, how long it has taken, and about how long it will
 * take.
 *
 *   on a terminal   one line, written over ten times a second at most, which disappears at the end
 *   elsewhere       a line after one second, then every ten: a log stays short and is never
 *                   silent for long
 *
 * The estimate takes the work that is left to be as fast as what is done.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <multihead/base.h>

typedef struct progress {
    bool terminal, quiet;
    double begin, next; /* seconds: when it began, when the next line is due */
} progress;

progress progress_begin(bool quiet);

/* The current activity, and the completed part of all work, 0 to 1. */
void progress_show(progress *p, double part, const char *format, ...) MHA_PRINTF(3, 4);

/* Begin another stage: estimates count from here on. The next line stays due when it was. */
void progress_restart(progress *p);

/* Erase the line before anything else is printed. progress_show() may print it again. */
void progress_clear(const progress *p);

#endif
