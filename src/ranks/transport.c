/* Collective messages, composed of messages between two ranks. Trees are binomial: the parent of
 * rank r, counted from the root, is r with its lowest set bit cleared. */
#include "ranks/rank_messages.h"

#include "base/hash.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

mha_status mhai_ranks_check(const mha_transport *t)
{
    if (!t) return mha_fail(MHA_ERR_NULL, "mha_transport: transport is NULL");
    MHA_TRY(mha_struct_check_size("mha_transport", t->struct_size, sizeof *t));
    if (t->size < 1 || t->rank < 0 || t->rank >= t->size)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transport: rank %d of %d, expected 0 .. size - 1",
                        (int)t->rank, (int)t->size);
    if (t->size > 1 && (!t->send || !t->receive || !t->wait || !t->cancel))
        return mha_fail(MHA_ERR_NULL, "mha_transport: send, receive, wait and cancel must be set");
    if (t->size > 1 && t->most_tag < 32767)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transport: most_tag is %d, expected 32767 or more",
                        (int)t->most_tag);
    return MHA_OK;
}

mha_status mha_transport_send(const mha_transport *t, int32_t to, const void *bytes, size_t count)
{
    mha_transfer transfer;
    MHA_TRY(t->send(t->user, to, 0, bytes, count, &transfer));
    return t->wait(t->user, &transfer);
}

mha_status mha_transport_receive(const mha_transport *t, int32_t from, void *bytes, size_t count)
{
    mha_transfer transfer;
    MHA_TRY(t->receive(t->user, from, 0, bytes, count, &transfer));
    return t->wait(t->user, &transfer);
}

static mha_status check_root(const mha_transport *t, int32_t root, const void *bytes, size_t count)
{
    MHA_TRY(mhai_ranks_check(t));
    if (root < 0 || root >= t->size)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_transport: root is %d of %d ranks", (int)root,
                        (int)t->size);
    if (!bytes && count > 0) return mha_fail(MHA_ERR_NULL, "mha_transport: bytes is NULL");
    return MHA_OK;
}

static int32_t rank_of(const mha_transport *t, int32_t root, int64_t place)
{
    return (int32_t)((place + root) % t->size);
}

mha_status mha_transport_broadcast(const mha_transport *t, int32_t root, void *bytes, size_t count)
{
    MHA_TRY(check_root(t, root, bytes, count));
    const int64_t place = ((int64_t)t->rank - root + t->size) % t->size;
    int64_t bit = 1;
    while (bit < t->size && !(place & bit)) bit <<= 1;
    if (place > 0) MHA_TRY(mha_transport_receive(t, rank_of(t, root, place - bit), bytes, count));
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (place + bit < t->size)
            MHA_TRY(mha_transport_send(t, rank_of(t, root, place + bit), bytes, count));
    return MHA_OK;
}

mha_status mha_transport_gather(const mha_transport *t, int32_t root, const void *bytes,
                                size_t count, void *all)
{
    MHA_TRY(check_root(t, root, bytes, count));
    if (t->rank != root) return mha_transport_send(t, root, bytes, count);
    if (!all && count > 0) return mha_fail(MHA_ERR_NULL, "mha_transport_gather: all is NULL");
    for (int32_t r = 0; r < t->size; r++) {
        unsigned char *to = (unsigned char *)all + (size_t)r * count;
        if (r != root)
            MHA_TRY(mha_transport_receive(t, r, to, count));
        else if (count > 0)
            memcpy(to, bytes, count);
    }
    return MHA_OK;
}

mha_status mhai_ranks_most(const mha_transport *t, int64_t *numbers, int64_t count)
{
    enum { MOST = 32 };
    int64_t others[MOST];
    if (count > MOST) return mha_fail(MHA_ERR_SIZE, "mha_transport: too many numbers");
    const size_t bytes = (size_t)count * sizeof *numbers;
    for (int64_t bit = 1; bit < t->size; bit <<= 1) {
        if (t->rank & bit) {
            MHA_TRY(mha_transport_send(t, (int32_t)(t->rank - bit), numbers, bytes));
            break;
        }
        if (t->rank + bit >= t->size) continue;
        MHA_TRY(mha_transport_receive(t, (int32_t)(t->rank + bit), others, bytes));
        for (int64_t i = 0; i < count; i++)
            if (others[i] > numbers[i]) numbers[i] = others[i];
    }
    return mha_transport_broadcast(t, 0, numbers, bytes);
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* The status of a rank. The error of the lowest failed rank is reported. */
typedef struct verdict {
    int32_t status, rank;
    char detail[448];
} verdict;

/* Send the verdict of this rank and the ranks below it up the tree. */
static mha_status collect(const mha_transport *t, verdict *mine)
{
    for (int64_t bit = 1; bit < t->size; bit <<= 1) {
        if (t->rank & bit)
            return mha_transport_send(t, (int32_t)(t->rank - bit), mine, sizeof *mine);
        verdict other;
        if (t->rank + bit >= t->size) continue;
        MHA_TRY(mha_transport_receive(t, (int32_t)(t->rank + bit), &other, sizeof other));
        if (other.status != MHA_OK && (mine->status == MHA_OK || other.rank < mine->rank))
            *mine = other;
    }
    return MHA_OK;
}

mha_status mha_transport_agree(const mha_transport *t, mha_status status)
{
    verdict v = {.status = (int32_t)status};
    if (status != MHA_OK) snprintf(v.detail, sizeof v.detail, "%s", mha_error_detail());
    MHA_TRY(mhai_ranks_check(t));
    v.rank = t->rank;
    if (t->size == 1 || status == MHA_ERR_RANK) return status; /* no more messages can arrive */
    MHA_TRY(collect(t, &v));
    MHA_TRY(mha_transport_broadcast(t, 0, &v, sizeof v));
    if (v.status == MHA_OK) return MHA_OK;
    v.detail[sizeof v.detail - 1] = '\0';
    return mha_fail((mha_status)v.status, "rank %d: %s", (int)v.rank, v.detail);
}

mha_status mha_transport_same(const mha_transport *t, const char *what, const void *bytes,
                              size_t count, mha_status status)
{
    MHA_TRY(mhai_ranks_check(t));
    if (t->size == 1) return status;
    uint64_t first[2] = {mhai_hash(MHAI_HASH_START, bytes, count), count};
    const uint64_t own[2] = {first[0], first[1]};
    MHA_TRY(mha_transport_broadcast(t, 0, first, sizeof first));
    if (status == MHA_OK && memcmp(first, own, sizeof own) != 0)
        status =
            mha_fail(MHA_ERR_ARGUMENT, "has another %s than rank 0; all ranks must agree", what);
    return mha_transport_agree(t, status);
}
