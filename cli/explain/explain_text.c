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

/* About as many operations as a core does while it waits for a byte of memory; docs/speed.md has both
 * rates of several machines. */
enum { BALANCE = 20 };

/* What takes the time. What stays in the caches of the cores that work does not wait for memory. */
static void print_limit(const explain_problem *p, double flops)
{
    const mha_attention_plan *plan = &p->plan;
    const int64_t cores = plan->work_items < p->threads ? plan->work_items : p->threads;
    const double intensity = plan->bytes > 0 ? flops / plan->bytes : 0;
    char text[160];
    if (plan->path == MHA_PATH_PLAIN)
        snprintf(text, sizeof text, "limited by arithmetic in double precision");
    else if (intensity >= BALANCE)
        snprintf(text, sizeof text, "limited by arithmetic");
    else if (plan->bytes <= (double)p->l2_bytes * (double)cores)
        snprintf(text, sizeof text, "few, but all fit in the L2 cache%s, so memory is no limit",
                 cores > 1 ? "s" : "");
    else
        snprintf(text, sizeof text, "limited by how fast memory or a shared cache can be read");
    say("intensity", "%.3g operations per byte: %s", intensity, text);
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
    say("visible pairs", "%s of %s, %.3g%%%s", words_count(plan->visible_pairs).text,
        p->pairs < 9e18 ? words_count((int64_t)p->pairs).text : pairs,
        p->pairs > 0 ? 100 * (double)plan->visible_pairs / p->pairs : 0.0,
        p->kept             ? ", blocks not counted"
        : p->desc.keep_mask ? ", what the dense mask hides is not counted"
                            : "");
    if (blocks)
        say("of the mask", "%s, %.3g%%, by blocks too", words_count(p->mask_pairs).text,
            p->pairs > 0 ? 100 * (double)p->mask_pairs / p->pairs : 0.0);
    say("operations", "%s", words_flops(plan->flops).text);
    if (blocks)
        say("of the mask", "%s; tiles that blocks hide are left out", words_flops(flops).text);
    say("bytes moved", "%s: inputs and outputs, each once", words_bytes(plan->bytes).text);
    print_limit(p, flops);
    say("scratch", "%s for all threads", words_bytes((double)plan->scratch_bytes).text);
    say("N x N instead", "%s, if all scores were kept in f32", words_bytes(p->matrix_bytes).text);
}

/* ---- In words -------------------------------------------------------------------------------- */

static void tell_heads(const explain_problem *p)
{
    char text[512];
    const char *own = "queries, keys and values";
    if (p->H == 1)
        snprintf(text, sizeof text, "The head has its own %s of %s numbers per token.", own,
                 words_count(p->D).text);
    else if (p->Hk == p->H)
        snprintf(text, sizeof text,
                 "Each of the %s heads has its own %s of %s numbers per token, and so looks for "
                 "something of its own.",
                 words_count(p->H).text, own, words_count(p->D).text);
    else
        snprintf(
            text, sizeof text,
            "%s%s query heads share %s%s%s: the keys and values that a generator keeps are %sx "
            "smaller than with a key/value head for each.",
            p->Hk == 1 ? "All " : "", words_count(p->H / p->Hk).text,
            p->Hk == 1 ? "one key/value head" : "each of the ",
            p->Hk == 1 ? "" : words_count(p->Hk).text, p->Hk == 1 ? "" : " key/value heads",
            words_count(p->H / p->Hk).text);
    words_print("  ", text);
}

static void tell_formula(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    char text[1024], cap[96] = "", drop[128] = "";
    if (d->softcap > 0)
        snprintf(cap, sizeof cap, ", capped by %g tanh(score / %g)", (double)d->softcap,
                 (double)d->softcap);
    if (d->dropout > 0 && d->dropout < 1)
        snprintf(drop, sizeof drop,
                 " Dropout sets weights to 0 with probability %g, and divides the others by %g.",
                 (double)d->dropout, 1 - (double)d->dropout);
    snprintf(text, sizeof text,
             "A query's score for a key is their product%s divided by sqrt(%s)%s%s. The softmax "
             "turns the scores of the keys it sees into weights that sum to 1%s, and the output is "
             "the sum of the values with these weights%s.%s",
             d->shaw_keys ? ", with a learned vector for their distance added to the key," : "",
             words_count(p->D).text, cap,
             d->alibi_slopes ? ", less a slope times their distance"
             : d->t5_table   ? ", plus a learned number for their distance"
                             : "",
             d->sink_logits ? " together with the share of the sink, which has no value" : "",
             d->gates ? ", times the gate of the head" : "", drop);
    words_print("  ", text);
}

/* Which keys a query sees, by the interval that causal and window leave. */
static void tell_interval(const explain_problem *p, char *text, size_t size)
{
    const mha_attention_desc *d = &p->desc;
    const bool causal = d->flags & MHA_ATTENTION_CAUSAL;
    const int64_t at = d->q_offset, last = p->S - 1 - at; /* the first query that sees every key */
    const bool window = d->flags & MHA_ATTENTION_WINDOW && d->left_keys >= 0;
    if (window && d->left_keys < p->S - 1)
        snprintf(text, size, "%s: a query sees the %s key%s before its position%s%s.",
                 causal ? "Causal, with a window" : "A window", words_count(d->left_keys).text,
                 plural(d->left_keys), causal ? " and its own" : ", its own, and some after it",
                 d->sink_keys ? ", and the first keys" : "");
    else if (!causal)
        return;
    else if (at < 0)
        snprintf(
            text, size,
            "Causal: the first %s quer%s before all keys and see%s none, so their output is 0.",
            words_count(-at < p->T ? -at : p->T).text, at == -1 ? "y is" : "ies are",
            at == -1 ? "s" : "");
    else if (at == 0 && p->T < p->S)
        snprintf(text, size,
                 "Causal: query 0 is at key position 0, so no query sees the last %s key%s. If the "
                 "queries are the last ones of a longer sequence, add --offset %" PRId64 ".",
                 words_count(p->S - p->T).text, plural(p->S - p->T), p->S - p->T);
    else if (at == p->S - p->T && p->T == 1 && p->S > 1)
        snprintf(text, size,
                 "Causal: one query, the last token, sees all %s keys: a step of "
                 "decoding from a cache.",
                 words_count(p->S).text);
    else if (last > 0 && last < p->T - 1)
        snprintf(text, size, "Causal: from query %s on, every key is seen.",
                 words_count(last).text);
    else if (p->T > 1 && last > 0)
        snprintf(text, size, "Causal: a token sees itself and those before it, and none after it.");
}

static void tell_mask(const explain_problem *p)
{
    const mha_attention_desc *d = &p->desc;
    const bool window = d->flags & MHA_ATTENTION_WINDOW && d->left_keys >= 0;
    char text[512] = "";
    tell_interval(p, text, sizeof text);
    if (*text) words_print("  ", text);
    if (window && d->left_keys < p->S - 1)
        words_print("  ", "So the cost grows with the length times the window, not with the square "
                          "of the length.");
    else if (window)
        words_print("  ", "The window reaches over all keys and hides none before a query.");
    if (p->plan.path == MHA_PATH_TILED && p->S > p->plan.key_block && p->T > 1 &&
        d->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) && !d->keep_blocks)
        words_print("  ", "Blocks of keys that a strip of queries does not see are not computed.");
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
    char times[128] = "";
    if (factor >= 2)
        snprintf(times, sizeof times,
                 ": the matrix of all scores, %s times the scratch, is never stored.",
                 words_count((int64_t)factor).text);
    else if (factor < 1)
        snprintf(times, sizeof times,
                 ". Its scratch does not depend on the length; here it exceeds the matrix of all "
                 "scores.");
    else
        snprintf(times, sizeof times, ": the matrix of all scores is never stored.");
    if (p->S <= plan->key_block)
        snprintf(
            text, sizeof text,
            "The tiled path takes all keys as one block, and keeps the scores of a few rows at "
            "a time%s",
            times);
    else
        snprintf(text, sizeof text,
                 "The tiled path walks over %s keys at a time and keeps for each row only its "
                 "largest score, the sum so far and the output so far (online softmax)%s",
                 words_count(plan->key_block).text, times);
    words_print("  ", text);
    if (plan->compute == MHA_COMPUTE_BF16)
        words_print("  ",
                    "In bf16, queries, keys, values and weights are rounded to 8 significant bits, "
                    "and their products are summed in f32: up to twice as fast with instructions "
                    "for bf16, and 0.2 % off for ordinary numbers that are stored in bf16.");
    if (p->outputs.probabilities || p->outputs.scores || p->outputs.average_probabilities)
        words_print("  ", "Weights or scores were requested: such an output is itself an N x N "
                          "array, and more work than o alone.");
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
