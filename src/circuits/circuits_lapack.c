/* The _work functions of LAPACKE call LAPACK directly for matrices stored by columns, without
 * transposition or allocation. A negative result means that LAPACK rejects an argument, which
 * would be an internal error. */
#include "circuits/circuits_lapack.h"

#include <lapacke.h>

#include <limits.h>

bool mhai_lapack_fits(int64_t E, int64_t D)
{
    return E <= INT_MAX && D <= INT_MAX && (D == 0 || (E <= INT_MAX / D && D <= INT_MAX / D));
}

static int64_t most(int64_t a, double b)
{
    return (double)a > b ? a : (int64_t)b;
}

int64_t mhai_lapack_room(int64_t E, int64_t D)
{
    const lapack_int m = (lapack_int)E, n = (lapack_int)D, r = m < n ? m : n;
    double none = 0, wanted = 0;
    int64_t room = 1;
    if (r == 0) return room;
    /* With a size of -1, these functions return the preferred workspace size. */
    (void)LAPACKE_dgeqrf_work(LAPACK_COL_MAJOR, m, n, &none, m, &none, &wanted, -1);
    room = most(room, wanted);
    (void)LAPACKE_dormqr_work(LAPACK_COL_MAJOR, 'L', 'N', m, r, r, &none, m, &none, &none, m,
                              &wanted, -1);
    room = most(room, wanted);
    (void)LAPACKE_dgesvd_work(LAPACK_COL_MAJOR, 'A', 'A', n, n, &none, n, &none, &none, n, &none, n,
                              &wanted, -1);
    room = most(room, wanted);
    (void)LAPACKE_dgeev_work(LAPACK_COL_MAJOR, 'N', 'N', n, &none, n, &none, &none, &none, 1, &none,
                             1, &wanted, -1);
    return most(room, wanted);
}

bool mhai_lapack_qr(int64_t m, int64_t n, double *a, double *tau, double *room, int64_t size)
{
    return LAPACKE_dgeqrf_work(LAPACK_COL_MAJOR, (lapack_int)m, (lapack_int)n, a, (lapack_int)m,
                               tau, room, (lapack_int)size) == 0;
}

bool mhai_lapack_times_q(int64_t m, int64_t k, int64_t rank, const double *q, const double *tau,
                         double *c, double *room, int64_t size)
{
    return LAPACKE_dormqr_work(LAPACK_COL_MAJOR, 'L', 'N', (lapack_int)m, (lapack_int)k,
                               (lapack_int)rank, q, (lapack_int)m, tau, c, (lapack_int)m, room,
                               (lapack_int)size) == 0;
}

bool mhai_lapack_svd(int64_t n, double *a, double *values, double *u, double *vt, double *room,
                     int64_t size)
{
    const char job = u ? 'A' : 'N';
    double none = 0;
    const lapack_int N = (lapack_int)n;
    return LAPACKE_dgesvd_work(LAPACK_COL_MAJOR, job, job, N, N, a, N, values, u ? u : &none,
                               u ? N : 1, vt ? vt : &none, vt ? N : 1, room, (lapack_int)size) == 0;
}

bool mhai_lapack_eigenvalues(int64_t n, double *a, double *real, double *imaginary, double *room,
                             int64_t size)
{
    double none = 0;
    const lapack_int N = (lapack_int)n;
    return LAPACKE_dgeev_work(LAPACK_COL_MAJOR, 'N', 'N', N, a, N, real, imaginary, &none, 1, &none,
                              1, room, (lapack_int)size) == 0;
}
