/* Links the installed MPI library. It starts no ranks because there is no launcher. */
#include <multihead/mpi.h>
#include <multihead/multihead.h>

int main(void)
{
    mha_mpi_finish(NULL);
    return !mha_version() || mha_mpi_transport(NULL) || *mha_mpi_library(NULL);
}
