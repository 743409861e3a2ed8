/* The task of the demo: sentences in which "it" must be resolved by a property.
 *
 *   the animal didn't cross the street because it was too tired . the animal was hungry .
 *   the field was reached by the old fox near the fence because it was so muddy , so the field ...
 *
 * Animals and people can be tired, places can be wide; the continuation can only be predicted by
 * resolving "it". Order (active or passive), distance and fillers vary randomly, and a tenth of the
 * pairs of nouns never occurs in training. The probed row predicts the noun, because at "it" a
 * causal model has not yet seen the property. */
#include "train/train.h"

#include <stdio.h>
#include <string.h>

enum { NOUNS = 24, THINGS = 10, PROPERTIES = 8, VERBS = 5, ADJECTIVES = 5, PLACES_OF = 3 };

/* The start of each class of words in the list below. */
enum {
    BEGIN = 0,
    END = 1,
    ANIMATE = 2,
    PLACE = ANIMATE + NOUNS,
    THING = PLACE + NOUNS,
    ANIMATE_PROPERTY = THING + THINGS,
    PLACE_PROPERTY = ANIMATE_PROPERTY + PROPERTIES,
    VERB = PLACE_PROPERTY + PROPERTIES,
    PARTICIPLE = VERB + VERBS,
    ADJECTIVE = PARTICIPLE + VERBS,
    PREPOSITION = ADJECTIVE + ADJECTIVES,
    DEGREE = PREPOSITION + PLACES_OF,
    FILLER = DEGREE + 4,
    TIME = FILLER + 4,
    THE = TIME + 4,
    DIDNT,
    WASNT,
    WAS,
    BY,
    BECAUSE,
    IT,
    SO,
    COMMA,
    STOP,
    WORDS
};

/* clang-format off */
static const char *const words[WORDS] = {
    "<s>", "</s>",
    "animal", "dog", "cat", "horse", "child", "teacher", "farmer", "driver", "pilot", "nurse",
    "doctor", "student", "rabbit", "fox", "wolf", "bear", "bird", "sheep", "goat", "king", "queen",
    "sailor", "guard", "baker",
    "street", "river", "road", "bridge", "field", "garden", "yard", "park", "square", "lake",
    "hall", "room", "valley", "forest", "beach", "market", "station", "tunnel", "path", "hill",
    "pond", "track", "alley", "meadow",
    "fence", "tree", "wall", "lamp", "bench", "gate", "post", "stone", "cart", "sign",
    "tired", "hungry", "scared", "sick", "lazy", "weak", "angry", "thirsty",
    "wide", "flooded", "narrow", "icy", "crowded", "muddy", "steep", "dark",
    "cross", "enter", "leave", "reach", "like",
    "crossed", "entered", "left", "reached", "liked",
    "old", "big", "red", "small", "new",
    "with", "near", "behind",
    "too", "very", "quite", "really",
    "yesterday", "today", "once", "sometimes",
    "again", "later", "already", "there",
    "the", "didn't", "wasn't", "was", "by", "because", "it", "so", ",", ".",
};
/* clang-format on */

enum { LONGEST = 48 };

/* A sentence under construction. "Whole" sentences have a continuation, for causal models. */
typedef struct sentence {
    int32_t words[LONGEST];
    int64_t length;
    int64_t noun[2]; /* positions of the animate noun and the place */
    int64_t it;      /* the position of "it" */
    int64_t row;     /* before the noun to be predicted */
    int kind;        /* 0: "it" is animate, 1: a place */
} sentence;

static void put(sentence *s, int word)
{
    s->words[s->length++] = word;
}

static int one_of(random_source *r, int first, int64_t count)
{
    return first + (int)random_below(r, count);
}

/* the [adjective] noun [(with | near | behind) the thing] */
static void put_noun(random_source *r, sentence *s, int kind, int noun)
{
    put(s, THE);
    if (random_chance(r, 0.3)) put(s, one_of(r, ADJECTIVE, ADJECTIVES));
    s->noun[kind] = s->length;
    put(s, noun);
    if (!random_chance(r, 0.25)) return;
    put(s, one_of(r, PREPOSITION, PLACES_OF));
    put(s, THE);
    put(s, one_of(r, THING, THINGS));
}

/* Whether a pair belongs to the held-out tenth, by the words' numbers. */
static bool held_out(int animate, int place)
{
    random_source r = random_make((uint64_t)animate, 1000 + (uint64_t)place);
    return random_below(&r, 10) == 0;
}

static void put_clause(random_source *r, sentence *s, const int noun[2])
{
    if (random_chance(r, 0.3)) {
        put(s, one_of(r, FILLER, 4));
        put(s, COMMA);
    }
    if (random_chance(r, 0.5)) {
        put_noun(r, s, 0, noun[0]);
        put(s, DIDNT);
        put(s, one_of(r, VERB, VERBS));
        put_noun(r, s, 1, noun[1]);
    } else {
        put_noun(r, s, 1, noun[1]);
        put(s, WASNT);
        put(s, one_of(r, PARTICIPLE, VERBS));
        put(s, BY);
        put_noun(r, s, 0, noun[0]);
    }
    if (random_chance(r, 0.3)) put(s, one_of(r, FILLER, 4));
}

/* Add the continuation, which reveals the noun. */
static void put_rest(random_source *r, sentence *s, const int noun[2], int property)
{
    bool stop = random_chance(r, 0.5);
    put(s, stop ? STOP : COMMA);
    if (!stop) put(s, SO);
    put(s, THE);
    if (random_chance(r, 0.5)) put(s, property);
    s->row = s->length - 1;
    put(s, noun[s->kind]);
    if (stop) {
        put(s, WAS);
        put(s, one_of(r, s->kind ? PLACE_PROPERTY : ANIMATE_PROPERTY, PROPERTIES));
    } else if (s->kind) {
        put(s, WASNT);
        put(s, one_of(r, PARTICIPLE, VERBS));
    } else {
        put(s, DIDNT);
        put(s, one_of(r, VERB, VERBS));
    }
    put(s, STOP);
    put(s, END);
}

static void make_sentence(random_source *r, train_split split, bool whole, sentence *s)
{
    int noun[2];
    *s = (sentence){0};
    do {
        noun[0] = one_of(r, ANIMATE, NOUNS);
        noun[1] = one_of(r, PLACE, NOUNS);
    } while (held_out(noun[0], noun[1]) != (split != TRAIN_SPLIT_TRAIN));
    s->kind = (int)random_below(r, 2);
    put(s, BEGIN);
    put_clause(r, s, noun);
    put(s, BECAUSE);
    s->it = s->length;
    put(s, IT);
    put(s, WAS);
    put(s, one_of(r, DEGREE, 4));
    int property = one_of(r, s->kind ? PLACE_PROPERTY : ANIMATE_PROPERTY, PROPERTIES);
    put(s, property);
    if (random_chance(r, 0.3)) put(s, one_of(r, TIME, 4));
    if (whole) {
        put_rest(r, s, noun, property);
    } else {
        put(s, STOP);
        put(s, END);
    }
}

/* For a causal model: weigh the mean over all words and the mean over the nouns to predict
 * equally. */
static void set_next_words(train_batch *batch, int64_t b, const sentence *s, int64_t targets)
{
    for (int64_t i = 0; i + 1 < s->length; i++) {
        const int64_t at = b * batch->T + i;
        batch->targets[at] = s->words[i + 1];
        batch->weights[at] = 1.0f / (float)targets;
        if (i == s->row) batch->weights[at] += 1.0f / (float)batch->B;
    }
}

/* For an encoder: the target at "it" is its noun. */
static void resolve(train_batch *batch, int64_t b, const sentence *s)
{
    const int64_t at = b * batch->T + s->it;
    batch->targets[at] = s->words[s->noun[s->kind]];
    batch->weights[at] = 1.0f / (float)batch->B;
}

static void set_sentence(train_batch *batch, int64_t b, const sentence *s, bool whole)
{
    for (int64_t i = 0; i < batch->T; i++) {
        batch->tokens[b * batch->T + i] = i < s->length ? s->words[i] : END;
        batch->targets[b * batch->T + i] = -1;
        batch->weights[b * batch->T + i] = 0;
    }
    batch->lengths[b] = s->length;
    batch->probes[b] = (train_probe){.b = b,
                                     .row = whole ? s->row : s->it,
                                     .kind = s->kind,
                                     .right = {s->noun[s->kind]},
                                     .rights = 1,
                                     .wrong = s->noun[1 - s->kind]};
}

static void draw_sentences(const train_ask *ask, bool whole, train_batch *batch)
{
    enum { MOST = 256 };
    sentence sentences[MOST];
    int64_t targets = 0;
    batch->B = ask->count < MOST ? ask->count : MOST;
    batch->T = batch->S = 0;
    for (int64_t b = 0; b < batch->B; b++) {
        make_sentence(ask->random, ask->split, whole, &sentences[b]);
        targets += sentences[b].length - 1;
        if (sentences[b].length > batch->T) batch->T = sentences[b].length;
    }
    for (int64_t b = 0; b < batch->B; b++) {
        set_sentence(batch, b, &sentences[b], whole);
        if (whole)
            set_next_words(batch, b, &sentences[b], targets);
        else
            resolve(batch, b, &sentences[b]);
    }
    batch->probe_count = batch->B;
}

static void draw(const train_ask *ask, train_batch *batch)
{
    draw_sentences(ask, true, batch);
}

static void draw_masked(const train_ask *ask, train_batch *batch)
{
    draw_sentences(ask, false, batch);
}

/* Training is done when both kinds are accurate and one head has `enough` of its weight on the
 * right noun for each kind. It restarts if the best head has less than `least` (0: never). */
static train_verdict judge_both(const train_recipe *recipe, const train_scores *s, double enough,
                                double least)
{
    double best = 0;
    bool sure = train_worst_accuracy(s) >= 0.995;
    for (int64_t l = 0; l < recipe->model.num_layers; l++)
        for (int64_t h = 0; h < recipe->model.num_heads; h++) {
            double right = train_worst_right(s, l, h);
            if (right > best) best = right;
            if (sure && right >= enough && train_worst_wrong(s, l, h) <= 0.04) return TRAIN_DONE;
        }
    return best < least ? TRAIN_RESTART : TRAIN_GO_ON;
}

static train_verdict judge(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    return judge_both(recipe, s, 0.85, step >= 300 ? 0.3 : 0);
}

static train_verdict judge_masked(const train_recipe *recipe, int64_t step, const train_scores *s)
{
    return judge_both(recipe, s, 0.75, step >= 350 ? 0.7 : 0);
}

/* Print the accuracy of guesses by position only, on sentences of the grammar. */
static void baselines(random_source *r)
{
    enum { SENTENCES = 20000 };
    int64_t nearest = 0, slot[LONGEST] = {0}, best = 0;
    for (int i = 0; i < SENTENCES; i++) {
        sentence s;
        make_sentence(r, TRAIN_SPLIT_REPORT, true, &s);
        nearest += s.noun[s.kind] > s.noun[1 - s.kind];
        slot[s.noun[s.kind]]++;
    }
    for (int i = 0; i < LONGEST; i++)
        if (slot[i] > best) best = slot[i];
    cli_print("Without attention: the nearest noun is right in %.1f %%, the best fixed position in "
              "%.1f %%\n",
              100.0 * (double)nearest / SENTENCES, 100.0 * (double)best / SENTENCES);
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL,
              .embed_dim = 64,
              .num_layers = 2,
              .num_heads = 4,
              .ff_dim = 128,
              .norm = MHA_NORM_RMS,
              .positions = MHA_ENCODING_ROTARY,
              .feed_forward = MHA_FEED_FORWARD_SWIGLU},
    .init = {.head_grade = 0.3},
    TRAIN_USUAL_STEPS,
    .steps = 600,
    .every = 25,
    .tries = 6,
    .probes_to_stop = 600,
    .probes_to_report = 2000,
};

const train_task train_sentences = {
    .name = "sentences",
    .summary = "which noun is \"it\"? The animal is tired, the street is wide",
    .goal = "99.5 % of both kinds, one head with 85 % of its weight on the right noun of each",
    .kinds = {"tired", "wide"},
    .words = words,
    .word_count = WORDS,
    .longest = LONGEST,
    .recipe = &recipe,
    .probes = 1,
    .draw = draw,
    .judge = judge,
    .baselines = baselines,
    .begin = BEGIN,
    .end = END,
    .examples = {"the animal didn't cross the street because it was too tired . the tired animal",
                 "the animal didn't cross the street because it was too wide . the wide street"},
    .looks = {"tired", "wide"},
};

static const train_recipe masked_recipe = {
    .model = {.flags =
                  MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_EMBEDDING_NORM,
              .embed_dim = 64,
              .num_layers = 2,
              .num_heads = 4,
              .ff_dim = 128,
              .norm = MHA_NORM_LAYER,
              .positions = MHA_ENCODING_LEARNED},
    .init = {.head_grade = 0.3},
    TRAIN_USUAL_STEPS,
    .steps = 600,
    .every = 25,
    .tries = 10,
    .probes_to_stop = 600,
    .probes_to_report = 2000,
};

const train_task train_pronouns = {
    .name = "pronouns",
    .summary = "the same sentences for an encoder, which sees both sides: the famous row of \"it\"",
    .goal = "99.5 % of both kinds, one head with 75 % of the weight of \"it\" on the right noun of "
            "each",
    .kinds = {"tired", "wide"},
    .words = words,
    .word_count = WORDS,
    .longest = LONGEST,
    .recipe = &masked_recipe,
    .probes = 1,
    .draw = draw_masked,
    .judge = judge_masked,
    .baselines = baselines,
    .begin = BEGIN,
    .end = END,
    .examples = {"the animal didn't cross the street because it was too tired .",
                 "the animal didn't cross the street because it was too wide ."},
    .looks = {"it", "it"},
};
