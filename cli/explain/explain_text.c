/* The report in words. What the library states about a problem is printed unchanged. */
#include "common/words.h"
#include "explain/explain.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A line "  name   text", the text broken where it is long. */
static void say(const char *name, const char *format, ...) MHA_PRINTF(2, 3);

static void say(const char *name, const char *format, ...)
{
    char label[32], text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(label, sizeof label, "  %-15s ", name);
    words_print(label, text);
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- The problem ----------------------------------------------------------------------------- */

static void add(char *text, size_t size, const char *what)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", what);
}

static void list_mask(const explain_problem *p, char *text, size_t size)
{
    const mha_attention_desc *d = &p->desc;
    char part[256];
    if (d->flags & MHA_ATTENTION_CAUSAL) add(text, size, "causal");
    if (d->q_offset) {
        snprintf(part, sizeof part, "query 0 at position %" PRId64, d->q_offset);
        add(text, size, part);
    }
    if ((d->flags & MHA_ATTENTION_WINDOW) && (d->left_keys >= 0 || d->right_keys >= 0)) {
        words left = words_count(d->left_keys), right = words_count(d->right_keys);
        snprintf(part, sizeof part, "a window of %s keys before and %s after",
                 d->left_keys < 0 ? "all" : left.text, d->right_keys < 0 ? "all" : right.text);
        add(text, size, part);
    }
    if (d->sink_keys) {
        snprintf(part, sizeof part, "the first %s key%s always seen",
                 words_count(d->sink_keys).text, plural(d->sink_keys));
        add(text, size, part);
    }
    if (d->keep_blocks) {
        snprintf(part, sizeof part, "%s of %s blocks of %s x %s", words_count(p->kept_blocks).text,
                 words_count(p->block_rows * p->block_cols).text, words_count(d->block_keys).text,
                 words_count(d->block_keys).text);
        add(text, size, part);
    }
    if (d->keep_mask) add(text, size, "a dense mask");
    if (!*text) add(text, size, "none: every query sees every key");
}

static void list_features(const explain_problem *p, char *text, size_t size)
{
    const mha_attention_desc *d = &p->desc;
    char part[64];
    if (d->softcap > 0) {
        snprintf(part, sizeof part, "softcap %g", (double)d->softcap);
        add(text, size, part);
    }
    if (d->bias) add(text, size, "a dense bias");
    if (d->alibi_slopes) add(text, size, "ALiBi");
    if (d->t5_table) add(text, size, "T5 buckets");
    if (d->shaw_keys) add(text, size, "Shaw's positions");
    if (d->sink_logits) add(text, size, "sink logits");
    if (d->dropout > 0) {
        snprintf(part, sizeof part, "dropout %g", (double)d->dropout);
        add(text, size, part);
    }
    if (d->gates) add(text, size, "gates");
}

static void list_outputs(const explain_problem *p, char *text, size_t size)
{
    const mha_attention_outputs *out = &p->outputs;
    add(text, size, "o");
    if (out->lse) add(text, size, "log-sum-exp");
    if (out->probabilities) add(text, size, "all weights");
    if (out->average_probabilities) add(text, size, "weights averaged over heads");
    if (out->scores) add(text, size, "all scores");
    if (out->entropy) add(text, size, "statistics of each row");
    if (out->column_sums) add(text, size, "what each key receives");
}

static void print_problem(const explain_problem *p)
{
    char mask[512] = "", features[256] = "", outputs[256] = "";
    list_mask(p, mask, sizeof mask);
    list_features(p, features, sizeof features);
    list_outputs(p, outputs, sizeof outputs);
    cli_print("%s: attention of one layer\n", p->config.name);
    say("q",
        "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
        "]   sequences, query heads, queries, head size",
        p->B, p->H, p->T, p->D);
    say("k", "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", p->k.shape[0], p->k.shape[1],
        p->k.shape[2], p->k.shape[3]);
    say("v", "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", p->v.shape[0], p->v.shape[1],
        p->v.shape[2], p->v.shape[3]);
    say("mask", "%s", mask);
    if (*features) say("scores", "%s", features);
    say("wanted", "%s", outputs);
    say("type", "%s, computed in %s", mha_dtype_name(p->dtype),
        p->plan.path == MHA_PATH_TILED ? mha_compute_name(p->plan.compute) : "double");
    if (p->config.source) say("sizes", "%s", p->config.source);
}

/* ---- What runs, what it costs ---------------------------------------------------------------- */

static void print_path(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    bool tiled = plan->path == MHA_PATH_TILED;
    cli_print("\nWhat would run\n");
    say("path", "%s, because %s", tiled ? "tiled" : "plain", plan->reason);
    say("instructions", "%s", mha_isa_name(plan->isa));
    say("keys at a time", "%s%s", words_count(plan->key_block).text,
        !tiled                                 ? ""
        : plan->flags & MHA_PLAN_KEYS_IN_PLACE ? ", read where they lie"
                                               : ", packed");
    say("rows at a time", "%s", words_count(plan->row_block).text);
    say("work", "%s piece%s for %d thread%s%s", words_count(plan->work_items).text,
        plural(plan->work_items), p->threads, plural(p->threads),
        plan->flags & MHA_PLAN_KEYS_SHARED        ? ", blocks of keys"
        : plan->work_items == 1 && p->threads > 1 ? ": no other is woken"
                                                  : "");
}

static void print_cost(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    double intensity = plan->bytes > 0 ? plan->flops / plan->bytes : 0;
    const bool blocks = p->mask_pairs >= 0 && p->mask_pairs != plan->visible_pairs;
    char pairs[64];
    snprintf(pairs, sizeof pairs, "%.0f", p->pairs);
    cli_print("\nWhat it costs\n");
    say("visible pairs", "%s of %s, %.3g%%%s", words_count(plan->visible_pairs).text,
        p->pairs < 9e15 ? words_count((int64_t)p->pairs).text : pairs,
        p->pairs > 0 ? 100 * (double)plan->visible_pairs / p->pairs : 0.0,
        p->kept             ? ", blocks not counted"
        : p->desc.keep_mask ? ", what the dense mask hides is not counted"
                            : "");
    if (blocks)
        say("of the mask", "%s, %.3g%%, by blocks too", words_count(p->mask_pairs).text,
            p->pairs > 0 ? 100 * (double)p->mask_pairs / p->pairs : 0.0);
    say("operations", "%s", words_flops(plan->flops).text);
    if (blocks)
        say("of the mask", "%s; tiles that blocks hide are left out",
            words_flops(plan->flops / (double)plan->visible_pairs * (double)p->mask_pairs).text);
    say("bytes moved", "%s: inputs and outputs, each once", words_bytes(plan->bytes).text);
    say("intensity", "%.3g operations a byte: %s", intensity,
        intensity >= 20 ? "limited by arithmetic" : "limited by memory bandwidth");
    say("scratch", "%s for all threads", words_bytes((double)plan->scratch_bytes).text);
    say("N x N instead", "%s, if all scores were kept in f32", words_bytes(p->matrix_bytes).text);
}

/* ---- In words -------------------------------------------------------------------------------- */

static void tell_heads(const explain_problem *p)
{
    char text[512];
    if (p->Hk == p->H)
        snprintf(text, sizeof text,
                 "%s%s%s its own queries, keys and values of %s numbers a token, and so looks for "
                 "something of its own.",
                 p->H == 1 ? "The head" : "Each of the ", p->H == 1 ? "" : words_count(p->H).text,
                 p->H == 1 ? " has" : " heads has", words_count(p->D).text);
    else
        snprintf(text, sizeof text,
                 "%s query heads share each of the %s key/value head%s: the keys and values that a "
                 "generator keeps are %sx smaller than with a key/value head for each.",
                 words_count(p->H / p->Hk).text, words_count(p->Hk).text, plural(p->Hk),
                 words_count(p->H / p->Hk).text);
    words_print("  ", text);
}

static void tell_formula(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    char text[512];
    snprintf(text, sizeof text,
             "A query's score for a key is their product divided by sqrt(%s)%s. The softmax turns "
             "the scores of the keys it sees into weights that sum to 1%s, and the output is the "
             "sum of the values with these weights.",
             words_count(p->D).text,
             d->alibi_slopes ? ", less a slope times their distance"
             : d->t5_table   ? ", plus a learned number for their distance"
             : d->shaw_keys  ? ", with a learned vector for their distance added to the key"
                             : "",
             d->sink_logits ? " together with the share of the sink, which has no value" : "");
    words_print("  ", text);
}

static void tell_mask(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    bool causal = d->flags & MHA_ATTENTION_CAUSAL;
    if (causal && d->q_offset == 0 && p->T == p->S)
        words_print("  ", "Causal: a token sees itself and what is before it, about half of all "
                          "pairs; the hidden half is not computed.");
    if (causal && d->q_offset == 0 && p->T < p->S) {
        char text[256];
        snprintf(text, sizeof text,
                 "Query 0 is at key position 0, so no query sees the last keys. If the "
                 "queries are the last ones of a longer sequence, add --offset %" PRId64 ".",
                 p->S - p->T);
        words_print("  ", text);
    }
    if (d->flags & MHA_ATTENTION_WINDOW)
        words_print("  ", "With a window the cost grows with the length times the window, not with "
                          "the square of the length.");
    if (d->keep_blocks)
        words_print("  ", "Blocks that the pattern leaves out are not computed and not read.");
    if (d->keep_mask || d->bias)
        words_print("  ",
                    "A dense mask or bias is an N x N array that the caller provides; causal, "
                    "windows and blocks hide the same pairs at less cost.");
}

static void tell_memory(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    char text[512];
    double factor = plan->scratch_bytes ? p->matrix_bytes / (double)plan->scratch_bytes : 0;
    if (plan->path == MHA_PATH_PLAIN) {
        words_print("  ", "The plain path evaluates the formula directly, one row of scores at a "
                          "time in double precision: accurate, in little memory, and slow.");
        return;
    }
    snprintf(text, sizeof text,
             "The tiled path walks over %s keys at a time and keeps for each row only its largest "
             "score, the sum so far and the output so far (online softmax), so the N x N matrix is "
             "never there",
             words_count(plan->key_block).text);
    size_t used = strlen(text);
    if (factor >= 2)
        snprintf(text + used, sizeof text - used, ": it would be %s times the scratch.",
                 words_count((int64_t)factor).text);
    else
        snprintf(text + used, sizeof text - used, ".");
    words_print("  ", text);
    if (plan->compute == MHA_COMPUTE_INT8)
        words_print("  ",
                    "In int8, queries, keys, values and weights are rounded to a byte each, "
                    "with a unit for each query, key and channel, and their products are "
                    "exact: more than twice as fast with instructions for bytes, and 1 to 2 % "
                    "off for ordinary numbers.");
    if (plan->compute == MHA_COMPUTE_BF16)
        words_print("  ",
                    "In bf16, queries, keys, values and weights are rounded to 8 significant bits, "
                    "and their products are summed in f32: up to twice as fast with instructions "
                    "for bf16, and 0.2 % off for ordinary numbers that are stored in bf16.");
    if (p->outputs.probabilities || p->outputs.scores || p->outputs.average_probabilities)
        words_print("  ", "Weights or scores were requested: such an output is itself an N x N "
                          "array, and a second pass computes the scores again.");
}

void explain_print(const explain_problem *problem)
{
    print_problem(problem);
    print_path(problem);
    print_cost(problem);
    cli_print("\nIn words\n");
    tell_heads(problem);
    tell_formula(problem);
    tell_mask(problem);
    tell_memory(problem);
}
