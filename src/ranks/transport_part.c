/* A subset of the ranks of a transport as a transport: it translates rank numbers and forwards
 * messages. */
#include "base/need.h"
#include "ranks/rank_messages.h"

#include <multihead/component.h>

static mha_status send(void *user, int32_t to, int32_t tag, const void *bytes, size_t count,
                       mha_transfer *transfer)
{
    const mha_transport_part *p = user;
    return p->whole->send(p->whole->user, p->ranks[to], tag, bytes, count, transfer);
}

static mha_status receive(void *user, int32_t from, int32_t tag, void *bytes, size_t count,
                          mha_transfer *transfer)
{
    const mha_transport_part *p = user;
    return p->whole->receive(p->whole->user, p->ranks[from], tag, bytes, count, transfer);
}

static mha_status wait(void *user, mha_transfer *transfer)
{
    const mha_transport_part *p = user;
    return p->whole->wait(p->whole->user, transfer);
}

static void cancel(void *user, mha_transfer *transfer)
{
    const mha_transport_part *p = user;
    p->whole->cancel(p->whole->user, transfer);
}

/* Returns this rank's index in the list, or -1 if the list is invalid. */
static int32_t place_in(const mha_transport *whole, const int32_t *ranks, int32_t count)
{
    int32_t place = -1;
    for (int32_t i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= whole->size) return -1;
        for (int32_t j = 0; j < i; j++)
            if (ranks[j] == ranks[i]) return -1;
        if (ranks[i] == whole->rank) place = i;
    }
    return place;
}

mha_status mha_transport_part_make(const mha_transport *whole, const int32_t *ranks, int32_t count,
                                   mha_transport_part *part)
{
    MHA_NEED("mha_transport_part_make", ranks, part);
    MHA_TRY(mhai_ranks_check(whole));
    const int32_t place = place_in(whole, ranks, count);
    if (place < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_transport_part_make: the list of %d ranks must have rank %d, and each "
                        "of its ranks, 0 .. %d, once",
                        (int)count, (int)whole->rank, (int)whole->size - 1);
    *part = (mha_transport_part){.whole = whole,
                                 .ranks = ranks,
                                 .transport = {.struct_size = sizeof(mha_transport),
                                               .rank = place,
                                               .size = count,
                                               .most_tag = whole->most_tag,
                                               .user = part,
                                               .send = send,
                                               .receive = receive,
                                               .wait = wait,
                                               .cancel = cancel}};
    return MHA_OK;
}
