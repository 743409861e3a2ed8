/* Progress of long work on stderr: how far it is, how long it has taken, and about how long it will
 * take.
 *
 *   on a terminal   one line, written over ten times a second at most, which disappears at the end
 *   elsewhere       a line every ten seconds: a log stays short, and nobody waits without a word
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

/* What is going on, and how much of all the work is done, 0 to 1. */
void progress_show(progress *p, double part, const char *format, ...) MHA_PRINTF(3, 4);

/* Before anything else is printed: the line disappears. progress_show() may bring it back. */
void progress_clear(const progress *p);

#endif
