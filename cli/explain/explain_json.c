/* The account as JSON; docs/program.md describes the object. */
#include "common/commands.h"
#include "common/json_out.h"
#include "explain/explain.h"

#include <inttypes.h>

static void put_int(json_out *json, const char *before, const char *name, int64_t value)
{
    json_print(json, "%s\"%s\": %" PRId64, before, name, value);
}

static void put_bool(json_out *json, const char *name, bool value)
{
    json_print(json, ", \"%s\": %s", name, value ? "true" : "false");
}

static void put_problem(json_out *json, const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    json_print(json, "  \"problem\": {\"name\": ");
    json_text(json, p->config.name);
    json_print(json, ", \"source\": ");
    json_text(json, p->config.source);
    put_int(json, ",\n    ", "batch", p->B);
    put_int(json, ", ", "heads", p->H);
    put_int(json, ", ", "kv_heads", p->k.shape[1]);
    put_int(json, ", ", "queries", p->T);
    put_int(json, ", ", "keys", p->S);
    put_int(json, ", ", "head_dim", p->D);
    put_int(json, ", ", "value_dim", p->Dv);
    put_int(json, ", ", "embed", p->E);
    json_print(json, ",\n    \"dtype\": \"%s\"", mha_dtype_name(p->q.dtype));
    json_print(json, ",\n    \"causal\": %s", d->flags & MHA_ATTENTION_CAUSAL ? "true" : "false");
    put_int(json, ", ", "offset", d->q_offset);
    put_bool(json, "window", d->flags & MHA_ATTENTION_WINDOW);
    if (d->flags & MHA_ATTENTION_WINDOW) {
        put_int(json, ", ", "left_keys", d->left_keys);
        put_int(json, ", ", "right_keys", d->right_keys);
        put_int(json, ", ", "sink_keys", d->sink_keys);
    }
    if (d->keep_blocks) {
        put_int(json, ", ", "block_size", d->block_keys);
        put_int(json, ", ", "blocks", p->block_rows * p->block_cols);
        put_int(json, ", ", "kept_blocks", p->kept_blocks);
    }
    json_print(json, "},\n");
}

static void put_plan(json_out *json, const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    json_print(json, "  \"plan\": {\"path\": \"%s\", \"reason\": ",
               plan->path == MHA_PATH_TILED ? "tiled" : "plain");
    json_text(json, plan->reason);
    json_print(json, ", \"compute\": \"%s\"", mha_compute_name(plan->compute));
    json_print(json, ", \"isa\": \"%s\"", mha_isa_name(plan->isa));
    put_int(json, ", ", "threads", p->threads);
    put_int(json, ",\n    ", "key_block", plan->key_block);
    put_int(json, ", ", "row_block", plan->row_block);
    put_int(json, ", ", "work_items", plan->work_items);
    json_print(json, ", \"keys_in_place\": %s",
               plan->flags & MHA_PLAN_KEYS_IN_PLACE ? "true" : "false");
    json_print(json, ", \"keys_shared\": %s",
               plan->flags & MHA_PLAN_KEYS_SHARED ? "true" : "false");
    json_print(json, ", \"one_block\": %s", plan->flags & MHA_PLAN_ONE_BLOCK ? "true" : "false");
    put_int(json, ",\n    ", "visible_pairs", plan->visible_pairs);
    if (p->mask_pairs >= 0)
        put_int(json, ", ", "mask_pairs", p->mask_pairs);
    else
        json_print(json, ", \"mask_pairs\": null");
    json_print(json, ", \"pairs\": %.0f", p->pairs);
    json_print(json, ", \"flops\": %.0f", plan->flops);
    json_print(json, ", \"bytes\": %.0f", plan->bytes);
    json_number(json, plan->bytes > 0 ? plan->flops / plan->bytes : 0, ", \"intensity\": ");
    json_print(json, ",\n    \"scratch_bytes\": %zu", plan->scratch_bytes);
    json_print(json, ", \"matrix_bytes\": %.0f}\n", p->matrix_bytes);
}

mha_status explain_write_json(const explain_problem *problem, const mha_sink *sink)
{
    json_out json = {.sink = sink};
    json_print(&json, "{\n  \"format\": \"multihead-explain\",\n  \"version\": 1,\n");
    json_print(&json, "  \"producer\": \"multihead " CLI_VERSION "\",\n");
    put_problem(&json, problem);
    put_plan(&json, problem);
    json_print(&json, "}\n");
    return json.status;
}
