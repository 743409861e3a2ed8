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

/* the [adjective] noun [(with | near | behind) the thing] */
static void put_noun(random_source *r, train_sentence *s, int kind, int noun)
{
    train_put(s, THE);
    if (random_chance(r, 0.3)) train_put(s, train_one_of(r, ADJECTIVE, ADJECTIVES));
    s->noun[kind] = s->length;
    train_put(s, noun);
    if (!random_chance(r, 0.25)) return;
    train_put(s, train_one_of(r, PREPOSITION, PLACES_OF));
    train_put(s, THE);
    train_put(s, train_one_of(r, THING, THINGS));
}

/* Whether a pair belongs to the held-out tenth, by the words' numbers. */
static bool held_out(int animate, int place)
{
    random_source r = random_make((uint64_t)animate, 1000 + (uint64_t)place);
    return random_below(&r, 10) == 0;
}

static void put_clause(random_source *r, train_sentence *s, const int noun[2])
{
    if (random_chance(r, 0.3)) {
        train_put(s, train_one_of(r, FILLER, 4));
        train_put(s, COMMA);
    }
    if (random_chance(r, 0.5)) {
        put_noun(r, s, 0, noun[0]);
        train_put(s, DIDNT);
        train_put(s, train_one_of(r, VERB, VERBS));
        put_noun(r, s, 1, noun[1]);
    } else {
        put_noun(r, s, 1, noun[1]);
        train_put(s, WASNT);
        train_put(s, train_one_of(r, PARTICIPLE, VERBS));
        train_put(s, BY);
        put_noun(r, s, 0, noun[0]);
    }
    if (random_chance(r, 0.3)) train_put(s, train_one_of(r, FILLER, 4));
}

/* Add the continuation, which reveals the noun. */
static void put_rest(random_source *r, train_sentence *s, const int noun[2], int property)
{
    bool stop = random_chance(r, 0.5);
    train_put(s, stop ? STOP : COMMA);
    if (!stop) train_put(s, SO);
    train_put(s, THE);
    if (random_chance(r, 0.5)) train_put(s, property);
    s->probe.row = s->length - 1;
    train_put(s, noun[s->probe.kind]);
    if (stop) {
        train_put(s, WAS);
        train_put(s,
                  train_one_of(r, s->probe.kind ? PLACE_PROPERTY : ANIMATE_PROPERTY, PROPERTIES));
    } else if (s->probe.kind) {
        train_put(s, WASNT);
        train_put(s, train_one_of(r, PARTICIPLE, VERBS));
    } else {
        train_put(s, DIDNT);
        train_put(s, train_one_of(r, VERB, VERBS));
    }
    train_put(s, STOP);
    train_put(s, END);
}

static void make_sentence(random_source *r, train_split split, bool whole, train_sentence *s)
{
    int noun[2];
    *s = (train_sentence){.probe.rights = 1, .answer = -1};
    do {
        noun[0] = train_one_of(r, ANIMATE, NOUNS);
        noun[1] = train_one_of(r, PLACE, NOUNS);
    } while (held_out(noun[0], noun[1]) != (split != TRAIN_SPLIT_TRAIN));
    s->probe.kind = (int)random_below(r, 2);
    train_put(s, BEGIN);
    put_clause(r, s, noun);
    train_put(s, BECAUSE);
    s->probe.row = s->length; /* of a causal model: later */
    train_put(s, IT);
    train_put(s, WAS);
    train_put(s, train_one_of(r, DEGREE, 4));
    int property = train_one_of(r, s->probe.kind ? PLACE_PROPERTY : ANIMATE_PROPERTY, PROPERTIES);
    train_put(s, property);
    if (random_chance(r, 0.3)) train_put(s, train_one_of(r, TIME, 4));
    if (whole) {
        put_rest(r, s, noun, property);
    } else {
        s->answer = noun[s->probe.kind];
        train_put(s, STOP);
        train_put(s, END);
    }
    s->probe.right[0] = s->noun[s->probe.kind];
    s->probe.wrong = s->noun[1 - s->probe.kind];
}

static void make_whole(random_source *r, train_split split, train_sentence *s)
{
    make_sentence(r, split, true, s);
}

/* For an encoder: the target at "it" is its noun. */
static void make_masked(random_source *r, train_split split, train_sentence *s)
{
    make_sentence(r, split, false, s);
}

static void draw(const train_ask *ask, train_batch *batch)
{
    train_draw_sentences(ask, make_whole, batch);
}

static void draw_masked(const train_ask *ask, train_batch *batch)
{
    train_draw_sentences(ask, make_masked, batch);
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
    int64_t nearest = 0, slot[TRAIN_SENTENCE] = {0}, best = 0;
    for (int i = 0; i < SENTENCES; i++) {
        train_sentence s;
        make_whole(r, TRAIN_SPLIT_REPORT, &s);
        nearest += s.probe.right[0] > s.probe.wrong;
        slot[s.probe.right[0]]++;
    }
    for (int i = 0; i < TRAIN_SENTENCE; i++)
        if (slot[i] > best) best = slot[i];
    cli_print("Without attention: the nearest noun is right in %.1f %%, the best fixed position in "
              "%.1f %%\n",
              100.0 * (double)nearest / SENTENCES, 100.0 * (double)best / SENTENCES);
}

static const train_recipe recipe = {
    .model = {.flags = MHA_TRANSFORMER_CAUSAL, TRAIN_LLAMA(4)},
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
    .longest = TRAIN_SENTENCE,
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
              TRAIN_LEARNED(2, 4)},
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
    .longest = TRAIN_SENTENCE,
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
