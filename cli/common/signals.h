/* Signals that ask a subcommand to end, which it does when its work is whole; and the time. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <stdbool.h>

/* From here to signals_release() SIGINT and SIGTERM are noted instead of ending the program. */
void signals_hold(void);
void signals_release(void);

/* Whether one came. */
bool signals_came(void);

/* If one came, end as programs end that are stopped by it; after signals_release(). */
void signals_end(void);

/* Seconds of a clock that never goes back. */
double seconds_now(void);

#endif
