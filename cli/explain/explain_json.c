/* The report as JSON; docs/program.md describes the object. */
#include "common/files.h"
#include "explain/explain.h"

#define PROBLEM(name, type, member) MHA_JSON_NAMED(name, type, explain_problem, member)

static void put_problem(mha_json *json, const explain_problem *p)
{
    static const mha_json_field fields[] = {PROBLEM("name", CHARS, config.name),
                                            PROBLEM("source", TEXT, config.source),
                                            MHA_JSON_BREAK(4),
                                            PROBLEM("batch", INTEGER, B),
                                            PROBLEM("heads", INTEGER, H),
                                            PROBLEM("kv_heads", INTEGER, k.shape[1]),
                                            PROBLEM("queries", INTEGER, T),
                                            PROBLEM("keys", INTEGER, S),
                                            PROBLEM("head_dim", INTEGER, D),
                                            PROBLEM("value_dim", INTEGER, Dv),
                                            PROBLEM("embed", INTEGER, E),
                                            MHA_JSON_BREAK(4),
                                            {0}};
    static const mha_json_field window[] = {PROBLEM("left_keys", INTEGER, desc.left_keys),
                                            PROBLEM("right_keys", INTEGER, desc.right_keys),
                                            PROBLEM("sink_keys", INTEGER, desc.sink_keys),
                                            {0}};
    const mha_attention_desc *d = &p->desc;
    mha_json_object(json, "problem");
    mha_json_fields(json, fields, p);
    mha_json_text(json, "dtype", mha_dtype_name(p->q.dtype));
    mha_json_line(json, 4);
    mha_json_bool(json, "causal", d->flags & MHA_ATTENTION_CAUSAL);
    mha_json_integer(json, "offset", d->q_offset);
    mha_json_bool(json, "window", d->flags & MHA_ATTENTION_WINDOW);
    if (d->flags & MHA_ATTENTION_WINDOW) mha_json_fields(json, window, p);
    if (d->keep_blocks) {
        mha_json_integer(json, "block_size", d->block_keys);
        mha_json_integer(json, "blocks", p->block_rows * p->block_cols);
        mha_json_integer(json, "kept_blocks", p->kept_blocks);
    }
    mha_json_end(json);
}

static void put_plan(mha_json *json, const explain_problem *p)
{
    static const mha_json_field fields[] = {MHA_JSON_BREAK(4),
                                            PROBLEM("visible_pairs", INTEGER, plan.visible_pairs),
                                            PROBLEM("mask_pairs", COUNT, mask_pairs),
                                            PROBLEM("pairs", WHOLE, pairs),
                                            PROBLEM("flops", WHOLE, plan.flops),
                                            PROBLEM("bytes", WHOLE, plan.bytes),
                                            {0}};
    const mha_attention_plan *plan = &p->plan;
    mha_json_object(json, "plan");
    mha_json_text(json, "path", plan->path == MHA_PATH_TILED ? "tiled" : "plain");
    mha_json_text(json, "reason", plan->reason);
    mha_json_text(json, "compute", mha_compute_name(plan->compute));
    mha_json_text(json, "isa", mha_isa_name(plan->isa));
    mha_json_integer(json, "threads", p->threads);
    mha_json_line(json, 4);
    mha_json_integer(json, "key_block", plan->key_block);
    mha_json_integer(json, "row_block", plan->row_block);
    mha_json_integer(json, "work_items", plan->work_items);
    mha_json_bool(json, "keys_in_place", plan->flags & MHA_PLAN_KEYS_IN_PLACE);
    mha_json_bool(json, "keys_shared", plan->flags & MHA_PLAN_KEYS_SHARED);
    mha_json_bool(json, "one_block", plan->flags & MHA_PLAN_ONE_BLOCK);
    mha_json_fields(json, fields, p);
    mha_json_number(json, "intensity", plan->bytes > 0 ? plan->flops / plan->bytes : 0);
    mha_json_line(json, 4);
    mha_json_integer(json, "scratch_bytes", (int64_t)plan->scratch_bytes);
    mha_json_decimals(json, "matrix_bytes", p->matrix_bytes, 0);
    mha_json_end(json);
}

mha_status explain_write_json(const explain_problem *problem, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    files_begin_json(&json, "multihead-explain");
    put_problem(&json, problem);
    put_plan(&json, problem);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
