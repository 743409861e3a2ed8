/* Attention over simulated hosts: what scale.c and replaced.c share. */
#ifndef SCALE_H
#define SCALE_H

#include <stdint.h>
#include <stdio.h>

/* The problem: as many tokens as are asked for, causal, MODEL's heads. */
enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128 };

/* Pairs of a query in rows q0 .. q1 and a key in rows k0 .. k1 that a causal mask leaves. */
double scale_pairs(int64_t q0, int64_t q1, int64_t k0, int64_t k1);

/* Let the host compute so many pairs of so many heads, and note the time in the timeline. */
void scale_compute(double pairs, int64_t heads);

/* A line of the timeline: what the rank did, from a time on until now. */
void scale_note(const char *what, double begin);

/* NULL: nobody wants a timeline. */
extern FILE *scale_timeline;

#endif
