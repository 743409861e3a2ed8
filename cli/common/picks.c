/* The selected heads: the lists of --layer and --head. */
#include "common/arena.h"
#include "common/maps.h"

#include <inttypes.h>
#include <string.h>

/* A list being parsed: its option, and the allowed range. */
typedef struct pick_list {
    const char *option; /* "--layer" */
    const char *text;   /* for messages: the whole list */
    int64_t layers, heads;
    uint8_t *layer_on;   /* [L] */
    uint8_t *head_on;    /* [H] plain head numbers, for every selected layer */
    maps_picks *picks;   /* receives L4H11 */
    bool plain, located; /* which forms of heads occurred */
} pick_list;

static cli_exit malformed(const pick_list *list)
{
    return cli_fail(CLI_USAGE, "%s %s: %s", list->option, list->text,
                    list->option[2] == 'l' ? "expected a list such as 0,2-3"
                                           : "expected a list such as 0,2-3 or L4H11,5.2");
}

static cli_exit check_below(const pick_list *list, const char *what, int64_t number, int64_t count)
{
    if (number < count) return CLI_OK;
    return cli_fail(CLI_USAGE, "%s %s: there is no %s %" PRId64 "; %ss are 0 to %" PRId64,
                    list->option, list->text, what, number, what, count - 1);
}

/* Parse "3" or "3-5" and select these numbers. */
static cli_exit take_range(const pick_list *list, const char **at, int64_t first, const char *what,
                           int64_t count, uint8_t *on)
{
    int64_t last = first;
    if (**at == '-') {
        ++*at;
        if (!args_digits(at, &last) || last < first) return malformed(list);
    }
    CLI_TRY(check_below(list, what, last, count));
    for (int64_t i = first; i <= last; i++) on[i] = 1;
    return CLI_OK;
}

/* Parse the head number after "L4H" or "4.". */
static cli_exit take_located(pick_list *list, const char **at, int64_t layer)
{
    int64_t head;
    if (!args_digits(at, &head)) return malformed(list);
    CLI_TRY(check_below(list, "layer", layer, list->layers));
    CLI_TRY(check_below(list, "head", head, list->heads));
    list->located = true;
    list->picks->on[layer * list->heads + head] = 1;
    return CLI_OK;
}

static cli_exit take_head(pick_list *list, const char **at)
{
    int64_t number;
    bool letter = **at == 'L' || **at == 'l';
    if (letter) ++*at;
    if (!args_digits(at, &number)) return malformed(list);
    bool located = letter ? **at == 'H' || **at == 'h' : **at == '.';
    if (letter && !located) return malformed(list);
    if (located) {
        ++*at;
        return take_located(list, at, number);
    }
    list->plain = true;
    return take_range(list, at, number, "head", list->heads, list->head_on);
}

static cli_exit take_layer(pick_list *list, const char **at)
{
    int64_t number;
    if (!args_digits(at, &number)) return malformed(list);
    return take_range(list, at, number, "layer", list->layers, list->layer_on);
}

static cli_exit take_list(pick_list *list, const args_texts *texts,
                          cli_exit (*take)(struct pick_list *list, const char **at))
{
    for (int i = 0; i < texts->count; i++) {
        const char *at = list->text = texts->items[i];
        for (;;) {
            CLI_TRY(take(list, &at));
            if (!*at) break;
            if (*at++ != ',') return malformed(list);
        }
    }
    return CLI_OK;
}

static cli_exit take_lists(pick_list *list, const args_texts *layers, const args_texts *heads)
{
    list->option = "--layer";
    if (layers) CLI_TRY(take_list(list, layers, take_layer));
    list->option = layers ? "--head" : "--without";
    CLI_TRY(take_list(list, heads, take_head));
    if (layers && layers->count > 0 && list->located && !list->plain)
        return cli_fail(CLI_USAGE, "--head %s already names its layer; omit --layer", list->text);
    return CLI_OK;
}

/* Select plain heads in the given layers. If every head names its layer, --layer has no effect. */
static void cross(const pick_list *list, bool all_layers, bool all_heads)
{
    maps_picks *picks = list->picks;
    bool only_located = list->located && !list->plain;
    for (int64_t l = 0; l < list->layers && !only_located; l++)
        for (int64_t h = 0; h < list->heads; h++)
            if ((all_layers || list->layer_on[l]) && (all_heads || list->head_on[h]))
                picks->on[l * list->heads + h] = 1;
    for (int64_t i = 0; i < list->layers * list->heads; i++) picks->count += picks->on[i];
}

cli_exit maps_pick(const args_texts *layers, const args_texts *heads, int64_t layer_count,
                   int64_t head_count, maps_picks *picks)
{
    *picks = (maps_picks){.layers = layer_count, .heads = head_count};
    pick_list list = {.layers = layer_count, .heads = head_count, .picks = picks};
    CLI_TRY(ARENA_ALLOC(layer_count * head_count, &picks->on));
    CLI_TRY(ARENA_ALLOC(layer_count, &list.layer_on));
    CLI_TRY(ARENA_ALLOC(head_count, &list.head_on));
    CLI_TRY(take_lists(&list, layers, heads));
    cross(&list, !layers || layers->count == 0, heads->count == 0);
    return CLI_OK;
}
