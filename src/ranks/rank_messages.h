/* Internal messages between ranks. A collective call checks its transport, agrees with the other
 * ranks (transport.h), and then uses these functions, which check nothing. */
#ifndef MHAI_RANK_MESSAGES_H
#define MHAI_RANK_MESSAGES_H

#include <multihead/transport.h>

MHA_NODISCARD mha_status mhai_ranks_check(const mha_transport *transport);

/* Replace each of `count` numbers by its maximum over all ranks. */
MHA_NODISCARD mha_status mhai_ranks_most(const mha_transport *transport, int64_t *numbers,
                                         int64_t count);

#endif
