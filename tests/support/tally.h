/* Counting how near the results come to their bounds.
 *
 * A bound that is exceeded is a failure; one that is never approached could hide one, so the
 * largest ratio of error to bound is printed and judged. */
#ifndef TEST_TALLY_H
#define TEST_TALLY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tally {
    const char *name;
    int64_t compared, exceeded;
    double worst; /* the largest error / bound */
} tally;

/* Compare; false if |got - exact| > bound or got is NaN where exact is not. Equal values pass,
 * infinite ones too. */
bool tally_compare(tally *t, double got, double exact, double bound);

/* One line: name, number of comparisons, largest ratio. */
void tally_print(const tally *t);

/* True if something was compared and the bound means something: the worst ratio is above 0.001.
 * Of few values only that there are any is asked, and of a thinned sample nothing. */
bool tally_is_sharp(const tally *t);

/* Print it, and fail the test if it is not sharp. */
void tally_judge(const tally *t);

/* Likewise; it has no name but this one. */
void tally_judge_as(tally t, const char *machine, const char *what);

#endif
