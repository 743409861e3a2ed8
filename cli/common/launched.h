/* The ranks of a run: the processes that mpirun, srun or another launcher of MPI started together. MPI is
 * loaded only then (libmultihead-mpi).
 *
 * Rank 0 alone prints, writes files and answers the user. All ranks run the same code; what one of
 * them fails at, all learn where they next agree, and rank 0 prints it once, with the rank's number:
 * ranks_agree(), ranks_share(), the library's calls with a transport, or the end of main(). So a
 * failing rank returns its exit code as if it were alone, and needs to tell nobody.
 */
#ifndef CLI_LAUNCHED_H
#define CLI_LAUNCHED_H

#include "common/exits.h"

#include <multihead/transport.h>

/* Join, if a launcher started more than one process: main()'s first call. All must have the same
 * version and the same command line. */
cli_exit ranks_begin(int count, char *const *arguments);

/* The transport of all ranks; NULL: this process is alone. */
const mha_transport *ranks_transport(void);

/* The same until ranks_release(). */
const mha_transport *ranks_together(void);

/* Alone, or rank 0. */
bool ranks_first(void);

/* The same code at all ranks: that of the lowest rank that failed. */
cli_exit ranks_agree(const char *command, cli_exit code);

/* The same; and that all have rank 0's bytes: "rank 2: has another text than rank 0". After
 * ranks_release() nothing is compared. */
cli_exit ranks_same(const char *command, const char *what, const void *bytes, size_t count,
                    cli_exit code);

/* Agree that all is well, and give rank 0's bytes to all. */
cli_exit ranks_share(const char *command, void *bytes, size_t count);

/* cli_check() for a call of the library that all ranks make together, which has agreed. */
cli_exit ranks_check(const char *command, mha_status status);

/* From here on only rank 0 has something to do; the others return. */
void ranks_release(void);

/* main()'s last call: agree on how the subcommand (NULL: none) ended, say so, and leave. */
cli_exit ranks_end(const char *command, cli_exit code);

#endif
