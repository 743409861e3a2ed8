/* An mha_module_call without positions and cache. */
#ifndef SUPPORT_MODULE_CALL_H
#define SUPPORT_MODULE_CALL_H

#include <multihead/module.h>

#define MODULE_CALL(description, queries, keys, values, result, more) \
    (&(mha_module_call){.struct_size = sizeof(mha_module_call),       \
                        .attention = (description),                   \
                        .query = (queries),                           \
                        .key = (keys),                                \
                        .value = (values),                            \
                        .out = (result),                              \
                        .outputs = (more)})

#endif
