/* Progress of long work on stderr: the completed part, the elapsed time and an estimate of the time
 * left.
 *
 *   on a terminal   one line, written over ten times a second at most, which disappears at the end
 *   elsewhere       a line after one second, then one every ten seconds
 *
 * The estimate assumes that the remaining work is as fast as the completed work.
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

/* Begin another stage: estimates count from here on. The time of the next line does not change. */
void progress_restart(progress *p);

/* Erase the line before anything else is printed. progress_show() may print it again. */
void progress_clear(const progress *p);

#endif
