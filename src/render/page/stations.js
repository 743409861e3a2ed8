// The stations of the tour, in the order of docs/lessons.md. place() chooses a head and a cell of
// the current maps. ask() computes the question: its options, the right option, the numbers for the
// answer's text, and the state in which the page shows it.

const TOUR_TEXT = "the animal didn't cross the street because it was too tired . the tired";
const MOST_OPTIONS = 6, MOST_TRIED = 24; // heads named in a question; heads ablated to compute one

// -- measurements on maps ------------------------------------------------------------------------

// Signed maps, of recurrent layers, are not shares. Questions are about the other heads.
const hasShares = i => cellsOf(panels[i]).value.every(v => !(v < 0));
function everyHead() {
    const all = panels.map((_, i) => i), shares = all.filter(hasShares);
    return shares.length ? shares : all;
}
const lastRow = () => rowItems.length - 1;

function weightAt(i, row, col) {
    const cells = cellsOf(panels[i]), k = row * cells.cols + col;
    return cells.kind && cells.kind[k] !== VALUE ? 0 : cells.value[k];
}

const weightsOf = (i, row) => colItems.map((_, col) => weightAt(i, row, col));
const indexOfMost = list => list.reduce((best, v, i) => v > list[best] ? i : best, 0);
const mean = list => list.reduce((a, b) => a + b, 0) / Math.max(list.length, 1);

// Mean weight of the key that is `by` before the query.
const meanBack = (i, by) => mean(rowItems.slice(by).map((_, r) => weightAt(i, r + by, r)));
const headBy = score => everyHead().reduce((best, i) => score(i) > score(best) ? i : best);
const previousHead = () => headBy(i => meanBack(i, 1));

// A key token that is neither the first nor the query itself.
const inner = (i, row) => weightsOf(i, row).map((w, col) => col === 0 || col === row ? 0 : w);
const linkOf = (i, row) => ({head: i, row, col: indexOfMost(inner(i, row))});
const strongestOf = i => {
    const rows = rowItems.map((_, row) => Math.max(...inner(i, row)));
    return linkOf(i, indexOfMost(rows));
};

const nameOf = i => panels[i].name;
const tokenOf = i => () => token(rowItems[i]);
const wordFor = text => () => make("bdi", "", text || "\u2423");
const fixed = (v, digits = 2) => v.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");

// Heads as options: the heads with the best scores, in their original order.
function headOptions(list, score, most) {
    const best = indexOfMost(list.map(score)), few = list.map((_, k) => k)
        .sort((a, b) => score(list[b]) - score(list[a])).slice(0, MOST_OPTIONS).sort((a, b) => a - b);
    return {options: few.map(k => nameOf(list[k])), right: few.indexOf(best), best: list[best], ...most};
}

// Numbers as options in order of size, without duplicates of the right number.
function numberOptions(right, others) {
    const texts = [...new Set([right, ...others])].sort((a, b) => a - b).map(n => n.toLocaleString(language));
    return {options: texts, right: texts.indexOf(right.toLocaleString(language))};
}

// -- the model and its predictions ---------------------------------------------------------------

const TOUR_NEEDS = {
    next: () => Boolean(answer?.next),
    causal: () => Boolean(cellsOf(panels[0]).kind?.includes(MASKED))
};

const factOf = name => Number([...document.querySelectorAll(".facts dt")]
    .find(dt => dt.dataset.given === name)?.nextElementSibling.textContent);
const layersOf = () => groupList().length;
const shapeOf = () => ({E: factOf("width"), D: factOf("numbers per head"), H: Math.max(...groupList().map(
    g => g.list.length)), Hk: factOf("key/value heads"), L: layersOf(), T: answer.tokens});

const predictWithout = async list => (await (await post("look",
    {text: asked.text, off: list.map(nameOf), maps: false})).json()).next;
const effectOf = async list => (await predictWithout(list)).divergence ?? 0;

// The heads that may matter for the prediction; if there are many, those with the largest weights
// from the last token.
function candidates() {
    const score = i => Math.max(...inner(i, lastRow()));
    return everyHead().sort((a, b) => score(b) - score(a)).slice(0, MOST_TRIED).sort((a, b) => a - b);
}

async function effects(list) {
    const all = new Map();
    for (const i of list) all.set(i, await effectOf([i]));
    return all;
}

// -- the stations --------------------------------------------------------------------------------

const STATIONS = [
    {name: "heads", view: "model", place: () => strongestOf(previousHead()), ask() {
        const score = i => meanBack(i, 1), {options, right, best} = headOptions(everyHead(), score);
        return {options, right, shown: strongestOf(best), values: {head: nameOf(best), weight: fixed(score(best)),
            least: fixed(Math.min(...everyHead().map(score)))}};
    }},
    {name: "softmax", view: "map", place: () => strongestOf(headBy(i => -Math.abs(meanBack(i, 1) - 0.5))), ask() {
        const {row, panel} = state, order = colItems.map((_, c) => c)
            .sort((a, b) => weightAt(panel, row, b) - weightAt(panel, row, a));
        const [a, b] = order.slice(0, 2).map(c => weightAt(panel, row, c)), right = Math.log(a / b);
        const texts = [...new Set([a - b, a / b, right].sort((x, y) => x - y).map(v => fixed(v)))];
        return {options: texts, right: texts.indexOf(fixed(right)), values: {query: tokenOf(row),
            first: tokenOf(order[0]), second: tokenOf(order[1]), a: fixed(a, 4), b: fixed(b, 4),
            difference: fixed(right)}};
    }},
    {name: "projections", view: "map", place: () => strongestOf(0), ask() {
        const {E, D} = shapeOf();
        return {...numberOptions(E * D, [E * E, D * D, E + D]), values: {E, D, n: (E * D).toLocaleString(language)}};
    }},
    {name: "concat", view: "model", place: () => strongestOf(0), ask() {
        const {E, D, H} = shapeOf();
        return {...numberOptions(D / 2, [D, 2 * D, H]), values: {E, D, H, twice: 2 * H, half: D / 2}};
    }},
    {name: "masks", view: "map", needs: ["causal"], place: () => strongestOf(0), ask() {
        const T = rowItems.length, kind = cellsOf(panels[state.panel]).kind;
        const hidden = kind.reduce((sum, k) => sum + (k === MASKED), 0);
        return {...numberOptions(hidden, [T * T - hidden, T * T / 2, T * T].map(Math.round)),
            values: {T, all: T * T, hidden, seen: T * T - hidden}};
    }},
    {name: "roles", view: "map", plays: true, place: () => strongestOf(headBy(i => -evenness(i))), ask() {
        if (frames.length) return askTraining(state.panel);
        const {options, right, best} = headOptions(everyHead(), evenness);
        const sharp = headBy(i => -evenness(i));
        return {options, right, shown: strongestOf(best), values: {head: nameOf(best), tokens: fixed(evenness(best), 1), sharp: nameOf(sharp),
            few: fixed(evenness(sharp), 1)}};
    }},
    {name: "it", view: "lines", click: "off", needs: ["next"], place: () => linkOf(headBy(i => Math.max(...inner(i, lastRow()))),
        lastRow()), async ask() {
        const all = await effects(candidates()), score = i => all.get(i);
        const {options, right, best} = headOptions([...all.keys()], score);
        const {tokens} = await predictWithout([best]), {tokens: whole} = await predictWithout([]);
        return {options, right, shown: linkOf(best, lastRow()), values: {head: nameOf(best), token: wordFor(whole[0].text), before: percentOf(whole[0].p),
            after: percentOf(tokens.find(({id}) => id === whole[0].id)?.p ?? 0), nats: short(score(best)),
            query: tokenOf(lastRow())}};
    }},
    {name: "cache", view: "map", needs: ["causal"], place: () => strongestOf(0), ask() {
        const {D, H, Hk, L, T} = shapeOf(), one = Hk * 2 * D * 4;
        return {...numberOptions(one * L * T, [one * T, one * L, H * H * L * T * 4]),
            values: {D, H, Hk, L, T, bytes: (one * L * T).toLocaleString(language),
                all: (H * 2 * D * 4 * L * T).toLocaleString(language)}};
    }},
    {name: "positions", view: "map", place: () => strongestOf(groupList()[0].list[indexOfMost(groupList()[0].list.map(i => ratioPair(i).w))]),
        async ask() {
            const i = state.panel, {row, a, b} = ratioPair(i), ratio = (map, shift) =>
                map.at(row + shift, a + shift) / map.at(row + shift, b + shift);
            const once = await mapOfText(asked.text, i), twice = await mapOfText(`${asked.text} ${asked.text}`, i);
            const before = ratio(once, 0), after = ratio(twice, twice.side - once.side);
            const right = after > 1.05 * before ? 2 : after < 0.95 * before ? 0 : 1;
            return {options: ["less", "same", "more"].map(word => t(`tour.positions.${word}`)), right,
                values: {head: nameOf(i), query: tokenOf(row), first: tokenOf(a), second: tokenOf(b),
                    before: fixed(before), after: fixed(after)}};
        }},
    {name: "desk", view: "map", needs: ["next"], place: () => linkOf(headBy(i => Math.max(...inner(i, lastRow()))),
        lastRow()), async ask() {
        const all = await effects(candidates()), [a, b] = [...all.keys()].sort((x, y) => all.get(y) - all.get(x));
        const whole = (await predictWithout([])).tokens[0];
        const lost = async list => whole.logit - ((await predictWithout(list)).tokens
            .find(({id}) => id === whole.id)?.logit ?? NaN);
        const [one, two, both] = [await lost([a]), await lost([b]), await lost([a, b])];
        const right = Number.isNaN(both) || Math.abs(both - one - two) > 0.05 * Math.abs(one + two) ? 1 : 0;
        return {options: [t("tour.desk.sum"), t("tour.desk.other")], right, values: {a: nameOf(a), b: nameOf(b),
            token: wordFor(whole.text), one: fixed(one), two: fixed(two), both: fixed(both), sum: fixed(one + two)}};
    }},
    {name: "pruning", view: "model", needs: ["next"], place: () => strongestOf(0), async ask() {
        const all = await effects(candidates()), order = [...all.keys()].sort((x, y) => all.get(x) - all.get(y));
        const whole = (await predictWithout([])).tokens[0];
        let off = 0;
        while (off < order.length && (await predictWithout(order.slice(0, off + 1))).tokens[0].id === whole.id) off++;
        const H = order.length, others = [0, 1, Math.round(H / 4), Math.round(H / 2), H - 1, H];
        return {...numberOptions(off, others), values: {n: off, H, token: wordFor(whole.text),
            next: off < H ? nameOf(order[off]) : "–"}};
    }},
    {name: "window", view: "map", place: () => strongestOf(previousHead()), ask() {
        const W = 4, i = state.panel, share = mean(rowItems.map((_, r) => weightsOf(i, r)
            .reduce((sum, w, c) => sum + (c > r - W && c <= r ? w : 0), 0)));
        return {options: ["low", "middle", "high"].map(word => t(`tour.window.${word}`)),
            right: share < 1 / 3 ? 0 : share < 2 / 3 ? 1 : 2, values: {head: nameOf(i), W, share: percent(share),
                cells: rowItems.length * W, all: rowItems.length ** 2}};
    }}
];

// The first snapshot at which less than half of the initial distance to the final map remains. The
// distance is the weight that still moves.
function askTraining(i) {
    const value = ({kind, value}, k) => kind && kind[k] !== VALUE ? 0 : value[k];
    const last = cellsOf(panels[i]), left = frames.map(({maps}) => cellsOf(maps[i])).map(cells =>
        cells.value.reduce((sum, _, k) => sum + Math.abs(value(cells, k) - value(last, k)) / 2, 0) / cells.rows);
    const found = left.findIndex(share => share < left[0] / 2), k = found < 0 ? frames.length - 1 : found;
    return {...numberOptions(frames[k].at, frames.slice(Math.max(k - 2, 0), k + 4).map(({at}) => at)), key: "training",
        values: {head: nameOf(i), step: frames[k].at, share: percent(left[k]), before: percent(left[0])}};
}

// The effective number of tokens that a head attends to: e to the entropy of a row, on average.
const evenness = i => mean(rowItems.map((_, r) => Math.exp(weightsOf(i, r)
    .reduce((sum, w) => sum - (w > 0 ? w * Math.log(w) : 0), 0))));

// The row of a head with the largest weight on an earlier token, and the two largest weights of the
// row on tokens that are not special.
function ratioPair(i) {
    const rows = rowItems.map((_, row) => Math.max(...inner(i, row))), row = indexOfMost(rows);
    const order = rowItems.map((_, c) => c).filter(c => c > 0 && !special.has(rowItems[c].text))
        .sort((x, y) => weightAt(i, row, y) - weightAt(i, row, x));
    return {row, a: order[0], b: order[1], w: rows[row]};
}

async function mapOfText(text, i) {
    const map = new Float32Array(await (await post("map", {text, head: nameOf(i)})).arrayBuffer());
    const side = Math.round(Math.sqrt(map.length));
    return {side, at: (row, col) => map[row * side + col]};
}
