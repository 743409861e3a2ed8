/* Inside the library: messages between ranks. A call of several ranks checks its transport, then
 * agrees (transport.h), and then uses these, which check nothing. */
#ifndef MHAI_RANK_MESSAGES_H
#define MHAI_RANK_MESSAGES_H

#include <multihead/transport.h>

MHA_NODISCARD mha_status mhai_ranks_check(const mha_transport *transport);

/* Each of count numbers becomes the largest that any rank has. */
MHA_NODISCARD mha_status mhai_ranks_most(const mha_transport *transport, int64_t *numbers,
                                         int64_t count);

/* Complete a transfer that is pending: by waiting, or only if that takes no time. */
MHA_NODISCARD mha_status mhai_ranks_settle(const mha_transport *transport, bool wait,
                                           mha_transfer *transfer, bool *pending);

#endif
