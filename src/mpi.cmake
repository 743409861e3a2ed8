# libmultihead-mpi: ranks that are processes of MPI. -DMPI_C_COMPILER=mpicc.mpich takes another MPI.
find_package(MPI REQUIRED COMPONENTS C)
file(GLOB mpi_sources CONFIGURE_DEPENDS mpi/*.c)
mha_library(multihead_mpi SOURCES ${mpi_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES MPI::MPI_C)
