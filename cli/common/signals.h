/* Signals that ask the program to end (SIGINT, SIGTERM, SIGHUP), and the time. A signal that the caller
 * has ignored, as nohup does, stays ignored. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <stdbool.h>

/* From here to signals_release() or signals_postpone() they are noted instead of ending the program.
 * Holds nest; true: this one is the outermost. */
bool signals_hold(void);

/* Whether one came since the outermost hold began. */
bool signals_came(void);

/* After the outermost hold a signal that came ends the program here. */
void signals_release(void);

/* The same, but a signal that came ends the program at the end of main(), so that the caller can save and
 * report its work first. Returns whether one came. */
bool signals_postpone(void);

/* main()'s last call: end as programs do that a signal ends, if one came. */
void signals_end(void);

/* Seconds of a clock that never goes back. */
double seconds_now(void);

#endif
