/* The report in words. The library's statements about a problem are printed unchanged. */
#include "common/words.h"
#include "explain/explain.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Print a line "  name   text", or "  text" without a name, wrapped if it is long. */
static void say(const char *name, const char *format, ...) MHA_PRINTF(2, 3);

static void say(const char *name, const char *format, ...)
{
    char label[32] = "  ", text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (name) snprintf(label, sizeof label, "  %-15s ", name);
    words_print(label, text);
}

#define COUNT(n) words_count(n).text

/* ---- The problem ----------------------------------------------------------------------------- */

/* Parts of a line, separated by commas. */
typedef struct line {
    char text[512];
} line;

static void add(line *l, bool given, const char *format, ...) MHA_PRINTF(3, 4);

static void add(line *l, bool given, const char *format, ...)
{
    if (!given) return;
    const size_t used = strlen(l->text), comma = used ? 2 : 0, size = sizeof l->text;
    va_list arguments;
    snprintf(l->text + used, size - used, "%s", used ? ", " : "");
    va_start(arguments, format);
    if (used + comma < size)
        vsnprintf(l->text + used + comma, size - used - comma, format, arguments);
    va_end(arguments);
}

static line list_mask(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    line l = {""};
    add(&l, d->flags & MHA_ATTENTION_CAUSAL, "causal");
    add(&l, d->q_offset, "query 0 at position %" PRId64, d->q_offset);
    add(&l, d->flags & MHA_ATTENTION_WINDOW && (d->left_keys >= 0 || d->right_keys >= 0),
        "a window of %s keys before and %s after", d->left_keys < 0 ? "all" : COUNT(d->left_keys),
        d->right_keys < 0 ? "all" : COUNT(d->right_keys));
    add(&l, d->sink_keys, "the first %s key%s always visible", COUNT(d->sink_keys),
        words_s(d->sink_keys));
    add(&l, d->keep_blocks, "%s of %s blocks of %s x %s", COUNT(p->kept_blocks),
        COUNT(p->block_rows * p->block_cols), COUNT(d->block_keys), COUNT(d->block_keys));
    add(&l, d->keep_mask, "a dense mask");
    add(&l, !*l.text, "none: every query sees every key");
    return l;
}

static line list_features(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    line l = {""};
    add(&l, d->softcap > 0, "softcap %g", (double)d->softcap);
    add(&l, d->bias, "a dense bias");
    add(&l, d->alibi_slopes, "ALiBi");
    add(&l, d->t5_table, "T5 buckets");
    add(&l, d->shaw_keys, "Shaw's positions");
    add(&l, d->sink_logits, "sink logits");
    add(&l, d->dropout > 0, "dropout %g", (double)d->dropout);
    add(&l, d->gates, "gates");
    return l;
}

static line list_outputs(const explain_problem *p)
{
    const mha_attention_outputs *out = &p->outputs;
    line l = {"o"};
    add(&l, out->lse, "log-sum-exp");
    add(&l, out->probabilities, "all weights");
    add(&l, out->average_probabilities, "weights averaged over heads");
    add(&l, out->scores, "all scores");
    add(&l, out->entropy, "statistics of each row");
    add(&l, out->column_sums, "the total weight of each key");
    return l;
}

/* "[1, 8, 10, 64]" */
static line shape_of(const mha_tensor *tensor)
{
    const int64_t *n = tensor->shape;
    line l;
    snprintf(l.text, sizeof l.text, "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", n[0],
             n[1], n[2], n[3]);
    return l;
}

static void print_problem(const explain_problem *p)
{
    const line features = list_features(p);
    cli_print("%s: attention of one layer\n", p->config.name);
    say("q", "%s   sequences, query heads, queries, head size", shape_of(&p->q).text);
    say("k", "%s", shape_of(&p->k).text);
    say("v", "%s", shape_of(&p->v).text);
    say("mask", "%s", list_mask(p).text);
    if (*features.text) say("scores", "%s", features.text);
    say("wanted", "%s", list_outputs(p).text);
    say("type", "%s, computed in %s", mha_dtype_name(p->q.dtype),
        p->plan.path == MHA_PATH_TILED ? mha_compute_name(p->plan.compute) : "double");
    if (p->config.source) say("sizes", "%s", p->config.source);
}

/* ---- Path and cost --------------------------------------------------------------------------- */

static void print_path(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    bool tiled = plan->path == MHA_PATH_TILED;
    cli_print("\nWhat would run\n");
    say("path", "%s, because %s", tiled ? "tiled" : "plain", plan->reason);
    say("instructions", "%s", mha_isa_name(plan->isa));
    say("keys at a time", "%s%s", COUNT(plan->key_block),
        !tiled                                 ? ""
        : plan->flags & MHA_PLAN_KEYS_IN_PLACE ? ", read in place"
                                               : ", packed");
    say("rows at a time", "%s", COUNT(plan->row_block));
    say("work", "%s piece%s for %d thread%s%s", COUNT(plan->work_items), words_s(plan->work_items),
        p->threads, words_s(p->threads),
        plan->flags & MHA_PLAN_KEYS_SHARED        ? ", blocks of keys"
        : plan->work_items == 1 && p->threads > 1 ? ": no other thread is woken"
                                                  : "");
}

/* The approximate number of operations that a core performs in the time of reading a byte from
 * memory. docs/speed.md lists both rates for several machines. */
enum { BALANCE = 20 };

/* Print the limiting resource. Memory does not limit data that fits into the caches of the working
 * cores. */
static void print_limit(const explain_problem *p, double flops)
{
    const mha_attention_plan *plan = &p->plan;
    const int64_t cores = plan->work_items < p->threads ? plan->work_items : p->threads;
    const double intensity = plan->bytes > 0 ? flops / plan->bytes : 0;
    const bool fits = plan->bytes <= (double)p->l2_bytes * (double)cores;
    say("intensity", "%.3g operations per byte: %s", intensity,
        plan->path == MHA_PATH_PLAIN ? "limited by arithmetic in double precision"
        : intensity >= BALANCE       ? "limited by arithmetic"
        : !fits                      ? "limited by the bandwidth of memory or a shared cache"
        : cores > 1 ? "few, but all data fit in the L2 caches, so memory is not the limit"
                    : "few, but all data fit in the L2 cache, so memory is not the limit");
}

static void print_cost(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    const bool blocks = p->mask_pairs >= 0 && p->mask_pairs != plan->visible_pairs;
    const double flops =
        blocks ? plan->flops / (double)plan->visible_pairs * (double)p->mask_pairs : plan->flops;
    char pairs[64];
    snprintf(pairs, sizeof pairs, "%.0f", p->pairs);
    cli_print("\nWhat it costs\n");
    say("visible pairs", "%s of %s, %.3g%%%s", COUNT(plan->visible_pairs),
        p->pairs < 9e18 ? COUNT((int64_t)p->pairs) : pairs,
        p->pairs > 0 ? 100 * (double)plan->visible_pairs / p->pairs : 0.0,
        p->kept             ? ", blocks not counted"
        : p->desc.keep_mask ? ", pairs that the dense mask hides included"
                            : "");
    if (blocks)
        say("of the mask", "%s, %.3g%%, by blocks too", COUNT(p->mask_pairs),
            p->pairs > 0 ? 100 * (double)p->mask_pairs / p->pairs : 0.0);
    say("operations", "%s", words_flops(plan->flops).text);
    if (blocks)
        say("of the mask", "%s; tiles that blocks hide are omitted", words_flops(flops).text);
    say("bytes moved", "%s: inputs and outputs, each once", words_bytes(plan->bytes).text);
    print_limit(p, flops);
    say("scratch", "%s for all threads", words_bytes((double)plan->scratch_bytes).text);
    say("N x N instead", "%s, if all scores were stored in f32", words_bytes(p->matrix_bytes).text);
}

/* ---- The report ------------------------------------------------------------------------------ */

static void tell_heads(const explain_problem *p)
{
    static const char own[] = "queries, keys and values";
    const int64_t group = p->H / p->Hk;
    if (p->H == 1)
        say(NULL, "The head has its own %s of %s numbers per token.", own, COUNT(p->D));
    else if (p->Hk == p->H)
        say(NULL,
            "Each of the %s heads has its own %s of %s numbers per token, so that heads can "
            "look for different things.",
            COUNT(p->H), own, COUNT(p->D));
    else
        say(NULL,
            "%s%s query heads share %s%s%s: the cache of keys and values is %sx smaller than with "
            "a key/value head for each.",
            p->Hk == 1 ? "All " : "", COUNT(group), p->Hk == 1 ? "one" : "each of the ",
            p->Hk == 1 ? "" : COUNT(p->Hk), p->Hk == 1 ? " key/value head" : " key/value heads",
            COUNT(group));
}

static void tell_formula(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    const double softcap = (double)d->softcap, dropout = (double)d->dropout;
    char cap[96] = "", drop[128] = "";
    if (softcap > 0) snprintf(cap, sizeof cap, ", capped by %g tanh(score / %g)", softcap, softcap);
    if (dropout > 0 && dropout < 1)
        snprintf(drop, sizeof drop,
                 " Dropout sets weights to 0 with probability %g, and divides the others by %g.",
                 dropout, 1 - dropout);
    say(NULL,
        "A query's score for a key is their product%s divided by sqrt(%s)%s%s. The softmax turns "
        "the "
        "scores of the keys it sees into weights that sum to 1%s, and the output is the sum of the "
        "values with these weights%s.%s",
        d->shaw_keys ? ", with a learned vector for their distance added to the key," : "",
        COUNT(p->D), cap,
        d->alibi_slopes ? ", minus a slope times their distance"
        : d->t5_table   ? ", plus a learned number for their distance"
                        : "",
        d->sink_logits ? " together with the share of the sink, which has no value" : "",
        d->gates ? ", times the gate of the head" : "", drop);
}

/* The keys that a query sees: the interval that causal and window allow. */
static void tell_interval(const explain_problem *p, bool window)
{
    const mha_attention_desc *d = &p->desc;
    const bool causal = d->flags & MHA_ATTENTION_CAUSAL;
    const int64_t at = d->q_offset, last = p->S - 1 - at; /* the first query that sees every key */
    const int64_t beyond = p->S - p->T;
    if (window && d->left_keys < p->S - 1)
        say(NULL, "%s: a query sees the %s key%s before its position%s%s.",
            causal ? "Causal, with a window" : "A window", COUNT(d->left_keys),
            words_s(d->left_keys), causal ? " and its own" : ", its own, and some after it",
            d->sink_keys ? ", and the first keys" : "");
    else if (!causal)
        return;
    else if (at < 0)
        say(NULL,
            "Causal: the first %s quer%s before all keys and see%s none, so their output is 0.",
            COUNT(-at < p->T ? -at : p->T), at == -1 ? "y is" : "ies are", at == -1 ? "s" : "");
    else if (at == 0 && beyond > 0)
        say(NULL,
            "Causal: query 0 is at key position 0, so no query sees the last %s key%s. If the "
            "queries are the last ones of a longer sequence, add --offset %" PRId64 ".",
            COUNT(beyond), words_s(beyond), beyond);
    else if (at == beyond && p->T == 1 && p->S > 1)
        say(NULL,
            "Causal: one query, the last token, sees all %s keys: a step of decoding from a cache.",
            COUNT(p->S));
    else if (last > 0 && last < p->T - 1)
        say(NULL, "Causal: from query %s on, queries see every key.", COUNT(last));
    else if (p->T > 1 && last > 0)
        say(NULL, "Causal: a token sees itself and earlier tokens, and none after it.");
}

static void tell_mask(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    const bool window = d->flags & MHA_ATTENTION_WINDOW && d->left_keys >= 0;
    tell_interval(p, window);
    if (window && d->left_keys < p->S - 1)
        say(NULL, "So the cost grows with the length times the window, not with the square of the "
                  "length.");
    else if (window)
        say(NULL, "The window covers all keys and hides none before a query.");
    if (p->plan.path == MHA_PATH_TILED && p->S > p->plan.key_block && p->T > 1 &&
        d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) && !d->keep_blocks)
        say(NULL, "Blocks of keys that a strip of queries does not see are not computed.");
    if (d->keep_blocks) say(NULL, "Blocks that the pattern omits are neither computed nor read.");
    if (d->keep_mask || d->bias)
        say(NULL, "A dense mask or bias is an N x N array that the caller provides; causal masks, "
                  "windows and blocks hide the same pairs at less cost.");
}

static void tell_memory(const explain_problem *p)
{
    const mha_attention_plan *plan = &p->plan;
    const double factor = plan->scratch_bytes ? p->matrix_bytes / (double)plan->scratch_bytes : 0;
    const char *times = ": the matrix of all scores is never stored.";
    char many[128];
    if (plan->path == MHA_PATH_PLAIN) {
        say(NULL, "The plain path evaluates the formula directly, one row of scores at a time in "
                  "double precision: accurate, with little memory, but slow.");
        return;
    }
    snprintf(many, sizeof many,
             ": the matrix of all scores, %s times the scratch, is never stored.",
             COUNT((int64_t)factor));
    if (factor >= 2)
        times = many;
    else if (factor < 1)
        times = ". Its scratch does not depend on the length; here it exceeds the matrix of all "
                "scores.";
    if (p->S <= plan->key_block)
        say(NULL,
            "The tiled path takes all keys as one block, and stores the scores of a few rows at a "
            "time%s",
            times);
    else
        say(NULL,
            "The tiled path processes %s keys at a time and stores for each row only its largest "
            "score, the sum so far and the output so far (online softmax)%s",
            COUNT(plan->key_block), times);
    if (plan->compute == MHA_COMPUTE_BF16)
        say(NULL, "In bf16, queries, keys, values and weights are rounded to 8 significant bits, "
                  "and their products are summed in f32: up to twice as fast with instructions for "
                  "bf16, and within 0.2 %% for ordinary numbers stored in bf16.");
    if (p->outputs.probabilities || p->outputs.scores || p->outputs.average_probabilities)
        say(NULL, "Weights or scores were requested: this output is itself an N x N array, and "
                  "takes more work than o alone.");
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
