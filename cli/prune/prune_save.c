/* The saved model: with heads removed, or with their columns of W_o set to 0. */
#include "common/arena.h"
#include "common/signals.h"
#include "prune/prune.h"

#include <multihead/component.h>

#include <string.h>

/* Copy the original model and set the outputs of closed heads to 0. */
static mha_status silence(prune_job *job, const float *gates)
{
    const mha_transformer_desc *d = &job->model.desc;
    MHA_TRY(mha_transformer_copy(job->model.context, job->model.net, &job->made));
    float *data = mha_transformer_data(job->made);
    for (int64_t l = 0; l < d->num_layers; l++) {
        mha_parameter p;
        const int64_t heads = mha_transformer_heads(&job->model.desc, l),
                      wide = heads * d->head_dim;
        if (heads == 0) continue;
        MHA_TRY(mha_transformer_find(job->made, l, "self_attn.o_proj.weight", &p));
        for (int64_t k = 0; k < p.count; k++)
            if (!(gates[l * d->num_heads + k % wide / d->head_dim] > 0)) data[p.offset + k] = 0;
    }
    return mha_transformer_update(job->model.context, job->made);
}

ARENA_RELEASE(destroy, mha_transformer_destroy)

cli_exit prune_keep(mha_transformer *net)
{
    return arena_keep(net, destroy);
}

cli_exit prune_make(prune_job *job)
{
    const mha_transformer_desc *d = &job->model.desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    float *gates;
    CLI_TRY(ARENA_ALLOC(shape[0] * shape[1], &gates));
    prune_gates(job, job->order, job->points[job->chosen].removed, gates);
    const mha_tensor keep = mha_tensor_contiguous(gates, MHA_F32, 2, shape);
    const mha_status status =
        job->options->mask
            ? silence(job, gates)
            : mha_transformer_prune(job->model.context, job->model.net, &keep, &job->made);
    if (job->made) CLI_TRY(prune_keep(job->made));
    return cli_check(status);
}

cli_exit prune_save(prune_job *job)
{
    const char *folder = job->options->folder;
    const mha_checkpoint_settings settings = {.struct_size = sizeof settings,
                                              .like = job->model.folder};
    signals_hold();
    const mha_status status =
        mha_checkpoint_save(folder, job->made ? job->made : job->model.net, &settings);
    signals_release();
    CLI_TRY(cli_check(status));
    cli_note(job->options->quiet, "wrote %s; to see it: multihead view %s \"a text\"", folder,
             folder);
    return CLI_OK;
}
