/* The decompositions of circuits, for matrices stored by columns, in preallocated scratch. LAPACK
 * allocates nothing. Only circuits_lapack.c includes LAPACK. */
#ifndef MHAI_CIRCUITS_LAPACK_H
#define MHAI_CIRCUITS_LAPACK_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the sizes [E,D] and [D,D] fit in LAPACK's 32-bit integers. */
bool mhai_lapack_fits(int64_t E, int64_t D);

/* The workspace in doubles of the functions below, for matrices of at most E x D and D x D. */
int64_t mhai_lapack_room(int64_t E, int64_t D);

/* These functions return false if LAPACK does not converge. m rows, n columns. a is overwritten. */

/* a = Q R: R in the upper triangle, Q below it and in tau [min(m,n)]. */
bool mhai_lapack_qr(int64_t m, int64_t n, double *a, double *tau, double *room, int64_t size);

/* c [m,k] = Q c, with `rank` reflectors in q [m,.]. */
bool mhai_lapack_times_q(int64_t m, int64_t k, int64_t rank, const double *q, const double *tau,
                         double *c, double *room, int64_t size);

/* a [n,n] = u diag(values) vt, largest value first. u and vt may both be NULL. */
bool mhai_lapack_svd(int64_t n, double *a, double *values, double *u, double *vt, double *room,
                     int64_t size);

/* The eigenvalues of a [n,n]. */
bool mhai_lapack_eigenvalues(int64_t n, double *a, double *real, double *imaginary, double *room,
                             int64_t size);

#endif
