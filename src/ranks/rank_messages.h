/* Inside the library: messages between ranks. A call of several ranks checks its transport, then
 * agrees (transport.h), and then uses these, which check nothing. */
#ifndef MHAI_RANK_MESSAGES_H
#define MHAI_RANK_MESSAGES_H

#include <multihead/transport.h>

MHA_NODISCARD mha_status mhai_ranks_check(const mha_transport *transport);

/* Begun and waited for. */
MHA_NODISCARD mha_status mhai_ranks_send(const mha_transport *transport, int32_t to,
                                         const void *bytes, size_t count);
MHA_NODISCARD mha_status mhai_ranks_receive(const mha_transport *transport, int32_t from,
                                            void *bytes, size_t count);

#endif
