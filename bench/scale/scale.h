/* Attention over simulated hosts: shared by scale.c and replaced.c. */
#ifndef SCALE_H
#define SCALE_H

#include <stdint.h>
#include <stdio.h>

/* The problem: causal, MODEL's heads, the requested number of tokens. */
enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128 };

/* Number of pairs of a query in rows q0 .. q1 and a key in rows k0 .. k1 that a causal mask
 * keeps. */
double scale_pairs(int64_t q0, int64_t q1, int64_t k0, int64_t k1);

/* Simulate the computation of pairs of heads, and record the time in the timeline. */
void scale_compute(double pairs, int64_t heads);

/* Write a line of the timeline: the rank's activity from `begin` until now. */
void scale_note(const char *what, double begin);

/* NULL: no timeline. */
extern FILE *scale_timeline;

#endif
