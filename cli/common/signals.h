/* Signals that request the program's end (SIGINT, SIGTERM, SIGHUP), and the time. A signal that
 * the caller ignores, as nohup does, stays ignored. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <stdbool.h>

/* Hold signals: until signals_release() or signals_postpone(), signals are recorded and do not end
 * the program. Holds nest. Returns true for the outermost hold. */
bool signals_hold(void);

/* Whether a signal arrived since the outermost hold began. */
bool signals_came(void);

/* End the outermost hold; a recorded signal ends the program here. */
void signals_release(void);

/* The same, but a recorded signal ends the program at the end of main(), so that the caller can
 * save and report its work first. Returns whether a signal was recorded. */
bool signals_postpone(void);

/* main()'s last call: if a signal arrived, end the program by that signal. */
void signals_end(void);

/* Seconds of a monotonic clock. */
double seconds_now(void);

#endif
