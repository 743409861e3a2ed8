# libmultihead-mpi: a transport whose ranks are MPI processes. -DMPI_C_COMPILER=mpicc.mpich selects another
# MPI, and its launcher for the tests.
if(MPI_C_COMPILER MATCHES "mpicc(\\.[a-z]+)$")
  find_program(MPIEXEC_EXECUTABLE mpiexec${CMAKE_MATCH_1})
endif()
find_package(MPI REQUIRED COMPONENTS C)
file(GLOB mpi_sources CONFIGURE_DEPENDS mpi/*.c)
mha_library(multihead_mpi SOURCES ${mpi_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES MPI::MPI_C)
set_target_properties(multihead_mpi_shared PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON) # where MPI lies
