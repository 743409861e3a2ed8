/* The version, which the build takes from multihead.h (src/compute.cmake). */
#include <multihead/base.h>

const char *mha_version(void)
{
    return MHAI_VERSION;
}

int mha_version_number(void)
{
    return 10000 * MHAI_VERSION_MAJOR + 100 * MHAI_VERSION_MINOR + MHAI_VERSION_PATCH;
}
