/* See launched.h. */
#include "common/launched.h"

#include "common/commands.h"
#include "common/files.h"

#include <multihead/component.h>
#ifdef CLI_HAS_MPI
#include <multihead/mpi.h>

#include <dlfcn.h>
#endif

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MPI_LIBRARY "libmultihead-mpi.so." CLI_TEXT_OF(MHA_VERSION_MAJOR)
#define COMPUTE_LIBRARY "libmultihead.so." CLI_TEXT_OF(MHA_VERSION_MAJOR)

enum { PATH_BYTES = 4096 };

static struct {
    const mha_transport *transport;
    char message[1024]; /* the last error, printed later */
    bool agreed;        /* every rank has received the error */
    bool lost;          /* a rank is lost, so messages cannot reach all ranks */
    bool released;
#ifdef CLI_HAS_MPI
    mha_mpi *mpi;
    void (*finish)(mha_mpi *mpi);
    void (*abort)(mha_mpi *mpi, int exit_status);
#endif
} ranks;

const mha_transport *ranks_transport(void)
{
    return ranks.transport;
}

const mha_transport *ranks_together(void)
{
    return ranks.released ? NULL : ranks.transport;
}

bool ranks_first(void)
{
    return !ranks.transport || ranks.transport->rank == 0;
}

/* ---- the launcher's environment -------------------------------------------------------------- */

static int64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text >= '0' && *text <= '9' ? strtoll(text, NULL, 10) : -1;
}

/* Open MPI, MPICH and its derivatives, and Slurm with PMIx. */
static int64_t launched(void)
{
    const int64_t open_mpi = number_of("OMPI_COMM_WORLD_SIZE"), pmi = number_of("PMI_SIZE");
    if (open_mpi > 0 || pmi > 0) return open_mpi > pmi ? open_mpi : pmi;
    return getenv("PMIX_RANK") ? number_of("SLURM_STEP_NUM_TASKS") : 1;
}

static int64_t launched_rank(void)
{
    const int64_t ranked[] = {number_of("OMPI_COMM_WORLD_RANK"), number_of("PMI_RANK"),
                              number_of("PMIX_RANK")};
    for (int i = 0; i < 3; i++)
        if (ranked[i] >= 0) return ranked[i];
    return 0;
}

/* ---- joining the ranks ----------------------------------------------------------------------- */

#ifdef CLI_HAS_MPI

/* Load the companion library and its dependency from the program's folder, which may be outside the
 * system's paths. Symbols of the program take precedence, so that both share the text of the last
 * error. */
static void *open_beside(const char *folder)
{
    char name[PATH_BYTES], path[PATH_BYTES];
    snprintf(name, sizeof name, "%s" COMPUTE_LIBRARY, folder);
    if (files_beside_program(name, path, sizeof path) && access(path, R_OK) == 0)
        (void)dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    snprintf(name, sizeof name, "%s" MPI_LIBRARY, folder);
    return files_beside_program(name, path, sizeof path) && access(path, R_OK) == 0
               ? dlopen(path, RTLD_NOW | RTLD_GLOBAL)
               : NULL;
}

/* RTLD_GLOBAL, because plug-ins of Open MPI look for its functions among the global symbols. */
static void *open_library(void)
{
    const char *named = getenv("MHA_MPI_LIBRARY");
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    /* Relative paths in a build and in an installed tree, so that an installation can be moved. */
    static const char *const folders[] = {"", "../lib/", "../lib64/"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof folders / sizeof *folders; i++)
        library = open_beside(folders[i]);
    return library ? library : dlopen(MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
}

/* The address of a function; function and data pointers have the same size. */
static bool find(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address;
}

static cli_exit read_deadline(double *deadline)
{
    const char *text = getenv("MHA_MPI_DEADLINE");
    char *end = NULL;
    *deadline = 0;
    if (!text || !*text) return CLI_OK;
    *deadline = strtod(text, &end);
    if (*end == '\0' && *deadline > 0 && *deadline < 1e9) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    "MHA_MPI_DEADLINE is '%s', expected seconds that a rank may wait for another",
                    text);
}

static cli_exit join(int64_t size)
{
    mha_status (*start)(const mha_mpi_desc *, mha_mpi **);
    const mha_transport *(*transport)(const mha_mpi *);
    const char *(*name)(const mha_mpi *);
    mha_mpi_desc desc = {.struct_size = sizeof desc};
    CLI_TRY(read_deadline(&desc.deadline));
    void *library = open_library();
    if (!library)
        return cli_fail(CLI_UNSUPPORTED,
                        "started as one of %" PRId64 " ranks, which needs " MPI_LIBRARY
                        " (Debian: libmultihead-mpi%d; or its path in MHA_MPI_LIBRARY): %s",
                        size, MHA_VERSION_MAJOR, dlerror());
    if (!find(library, "mha_mpi_start", &start) || !find(library, "mha_mpi_library", &name) ||
        !find(library, "mha_mpi_transport", &transport) ||
        !find(library, "mha_mpi_finish", &ranks.finish) ||
        !find(library, "mha_mpi_abort", &ranks.abort))
        return cli_fail(CLI_UNSUPPORTED,
                        "MHA_MPI_LIBRARY: not a libmultihead-mpi of this version: %s", dlerror());
    CLI_TRY(cli_check(start(&desc, &ranks.mpi)));
    const mha_transport *joined = transport(ranks.mpi);
    if (joined->size != size) {
        cli_fail(CLI_UNSUPPORTED,
                 "the launcher started %" PRId64
                 " ranks, but %s sees %d: the launcher belongs to another MPI; use the launcher of "
                 "the MPI that libmultihead-mpi was built with",
                 size, name(ranks.mpi), (int)joined->size);
        ranks.finish(ranks.mpi);
        return CLI_UNSUPPORTED;
    }
    ranks.transport = joined;
    return CLI_OK;
}

#else

static cli_exit join(int64_t size)
{
    return cli_fail(CLI_UNSUPPORTED,
                    "started as one of %" PRId64 " ranks, but this build is without MPI", size);
}

#endif

/* Ranks other than 0 write stdout to /dev/null and print no notes. */
static void be_silent(void)
{
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, 1);
    if (nowhere > 2) close(nowhere);
    cli_print_silence(true);
}

static cli_exit compare(int count, char *const *arguments)
{
    const char *version = CLI_VERSION CLI_LEFT_OUT;
    size_t size = 1, used = 0;
    CLI_TRY(ranks_same("version of multihead", version, strlen(version), CLI_OK));
    for (int i = 1; i < count; i++) size += strlen(arguments[i]) + 1;
    char *all = malloc(size);
    for (int i = 1; all && i < count; i++)
        used += (size_t)snprintf(all + used, size - used, "%s", arguments[i]) + 1;
    const cli_exit code = ranks_same("command line", all, used,
                                     all ? CLI_OK : cli_fail(CLI_NO_MEMORY, "out of memory"));
    free(all);
    return code;
}

cli_exit ranks_begin(int count, char *const *arguments)
{
    const int64_t size = launched();
    const char *named = getenv("MHA_MPI_LIBRARY");
    if (size <= 1 || (named && !strcmp(named, "none"))) return CLI_OK;
    if (launched_rank() > 0) be_silent();
    CLI_TRY(join(size));
    cli_fail_into(ranks.message, sizeof ranks.message);
    return compare(count, arguments);
}

/* ---- agreeing -------------------------------------------------------------------------------- */

cli_exit ranks_check(mha_status status)
{
    if (status != MHA_OK && ranks.transport) {
        ranks.lost = ranks.lost || status == MHA_ERR_RANK;
        ranks.agreed = true;
    }
    return cli_check(status);
}

cli_exit ranks_agree(cli_exit code)
{
    mha_status status = MHA_OK;
    if (!ranks.transport) return code;
    if (code == CLI_NO_RANK) { /* ranks no longer receive messages; the text names the rank */
        ranks.lost = ranks.agreed = true;
        return code;
    }
    if (code != CLI_OK)
        status =
            mha_fail(*ranks.message ? cli_status_of(code) : MHA_ERR_CALLBACK, "%s", ranks.message);
    return ranks_check(mha_transport_agree(ranks.transport, status));
}

cli_exit ranks_same(const char *what, const void *bytes, size_t count, cli_exit code)
{
    if (!ranks_together()) return code;
    CLI_TRY(ranks_agree(code));
    return ranks_check(mha_transport_same(ranks.transport, what, bytes, count, MHA_OK));
}

cli_exit ranks_share(void *bytes, size_t count)
{
    if (!ranks.transport) return CLI_OK;
    CLI_TRY(ranks_agree(CLI_OK));
    return ranks_check(mha_transport_broadcast(ranks.transport, 0, bytes, count));
}

void ranks_release(void)
{
    ranks.released = true;
}

/* The command line is the same on all ranks, so an error in it names no rank. An error that all
 * ranks return names the rank where it occurred first. */
static void print_message(cli_exit code)
{
    const char *text = ranks.message;
    if (!strncmp(text, "rank 0: ", 8) && (code == CLI_USAGE || !strncmp(text + 8, "rank ", 5)))
        text += 8;
    cli_fail_into(NULL, 0);
    cli_print_silence(false);
    if (ranks.lost)
        cli_fail(code, "rank %d: %s", (int)ranks.transport->rank, text);
    else if (*text)
        cli_fail(code, "%s", text);
}

cli_exit ranks_end(cli_exit code)
{
    if (!ranks.transport) return code;
    if (!ranks.released && !ranks.agreed) code = ranks_agree(code);
    if (code != CLI_OK && (ranks.lost || ranks.transport->rank == 0)) print_message(code);
#ifdef CLI_HAS_MPI
    if (ranks.lost) ranks.abort(ranks.mpi, (int)code);
    ranks.finish(ranks.mpi);
#endif
    return code;
}
