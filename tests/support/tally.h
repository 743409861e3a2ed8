/* Measures how closely results approach their bounds.
 *
 * Exceeding a bound is a failure. A loose bound could hide failures, so the largest ratio of error
 * to bound is printed and checked. */
#ifndef TEST_TALLY_H
#define TEST_TALLY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tally {
    const char *name;
    int64_t compared, exceeded;
    double worst; /* the largest error / bound */
} tally;

/* Compare a result. Returns false if |got - exact| > bound, or if got is NaN and exact is not.
 * Equal values pass, including infinite values. */
bool tally_compare(tally *t, double got, double exact, double bound);

/* Print one line: name, number of comparisons, largest ratio. */
void tally_print(const tally *t);

/* Whether something was compared and the bound is meaningful: the worst ratio is above 0.001. With
 * few values only their existence is checked, and with a reduced sample nothing. */
bool tally_is_sharp(const tally *t);

/* Print the tally, and fail the test if it is not sharp. */
void tally_judge(const tally *t);

/* The same with this name. */
void tally_judge_as(tally t, const char *machine, const char *what);

#endif
