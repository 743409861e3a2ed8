/* Measures how closely results approach their bounds.
 *
 * Exceeding a bound is a failure. A bound that is never approached could hide one, so the largest ratio of error to
 * bound is printed and checked. */
#ifndef TEST_TALLY_H
#define TEST_TALLY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tally {
    const char *name;
    int64_t compared, exceeded;
    double worst; /* the largest error / bound */
} tally;

/* Compare; false if |got - exact| > bound, or if got is NaN and exact is not. Equal values pass, including infinite
 * ones. */
bool tally_compare(tally *t, double got, double exact, double bound);

/* One line: name, number of comparisons, largest ratio. */
void tally_print(const tally *t);

/* True if something was compared and the bound is meaningful: the worst ratio is above 0.001. For few values it only
 * checks that there are any, for a reduced sample nothing. */
bool tally_is_sharp(const tally *t);

/* Print it, and fail the test if it is not sharp. */
void tally_judge(const tally *t);

/* The same, with this name only. */
void tally_judge_as(tally t, const char *machine, const char *what);

#endif
