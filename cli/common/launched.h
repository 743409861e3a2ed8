/* The ranks of a run: processes that mpirun, srun or another MPI launcher started together. Only
 * then MPI (libmultihead-mpi) is loaded.
 *
 * Only rank 0 prints, writes files and answers the user. All ranks run the same code. If one
 * fails, every rank receives the error at the next agreement (ranks_agree(), ranks_share(), a
 * library call with a transport, or the end of main()), and rank 0 prints it once with the
 * rank's number. A failing rank therefore returns its exit code as a single process would. */
#ifndef CLI_LAUNCHED_H
#define CLI_LAUNCHED_H

#include "common/exits.h"

#include <multihead/transport.h>

/* Join the other ranks if a launcher started more than one process. This is main()'s first call.
 * All ranks must have the same version and command line. */
cli_exit ranks_begin(int count, char *const *arguments);

/* The transport of all ranks; NULL in a single process. */
const mha_transport *ranks_transport(void);

/* The transport of all ranks; NULL in a single process and after ranks_release(). */
const mha_transport *ranks_together(void);

/* Whether this process is the only one, or rank 0. */
bool ranks_first(void);

/* Agree on an exit code: the code of the lowest rank that failed. */
cli_exit ranks_agree(cli_exit code);

/* The same, and compare bytes with rank 0's: "rank 2: has another text than rank 0". After
 * ranks_release() nothing is compared. */
cli_exit ranks_same(const char *what, const void *bytes, size_t count, cli_exit code);

/* Agree that no rank failed, and broadcast rank 0's bytes. */
cli_exit ranks_share(void *bytes, size_t count);

/* cli_check() for a collective library call, which has already agreed. */
cli_exit ranks_check(mha_status status);

/* Ranks other than 0 have nothing more to do and return. */
void ranks_release(void);

/* main()'s last call: agree on the subcommand's exit code, print the error, and exit. */
cli_exit ranks_end(cli_exit code);

#endif
