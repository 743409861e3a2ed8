/* An mha_attention_backward_call from all fields in order. */
#ifndef SUPPORT_BACKWARD_CALL_H
#define SUPPORT_BACKWARD_CALL_H

#include <multihead/backward.h>

#define BACKWARD_CALL(...) \
    (&(mha_attention_backward_call){sizeof(mha_attention_backward_call), 0, __VA_ARGS__})

#endif
