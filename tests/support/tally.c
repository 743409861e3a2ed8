#include "support/tally.h"

#include "support/rng.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>

bool tally_compare(tally *t, double got, double exact, double bound)
{
    t->compared++;
    if (got == exact) return true;
    double error = fabs(got - exact);
    if (error <= bound) {
        if (error / bound > t->worst) t->worst = error / bound;
        return true;
    }
    t->exceeded++;
    t->worst = bound > 0 && error / bound > t->worst ? error / bound : t->worst;
    return false;
}

void tally_print(const tally *t)
{
    printf("  %-34s %9lld values, largest error / bound %.3f%s\n", t->name, (long long)t->compared,
           t->worst, tally_is_sharp(t) ? "" : "  (too lax to mean much)");
}

bool tally_is_sharp(const tally *t)
{
    enum { FEW = 200 }; /* in runs with sanitizers, so few values may all be close by chance */
    if (!rng_whole_sample()) return true;
    return t->compared > 0 && (t->compared < FEW || t->worst > 0.001);
}

void tally_judge(const tally *t)
{
    tally_print(t);
    if (!tally_is_sharp(t)) fail_msg("%s: nothing was compared, or the bound is too lax", t->name);
}

void tally_judge_as(tally t, const char *machine, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s, %s", machine, what);
    t.name = name;
    tally_judge(&t);
}
