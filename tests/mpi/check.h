/* For test ranks: exits with a message that names the line. */
#ifndef TEST_MPI_CHECK_H
#define TEST_MPI_CHECK_H

#include <multihead/base.h>

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s; %s\n", __FILE__, __LINE__, #condition, \
                    mha_error_detail());                                       \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#endif
