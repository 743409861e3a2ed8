// How the cells of a row are computed: its query q and the key k of every column, their product
// channel by channel, the sum q . k, the score, and the cell.

const KEY_HEIGHT = 19, NEURON_TOP = 58;
const neuronNames = ["queries", "keys"];
let neuronPlace = null;

const canNeurons = i => Boolean(panels[i]?.queries);
const vectors = new Map();

// [items, channels] of queries or keys; NaN where a value is not finite.
function vectorsOf(i, name) {
    const source = panels[i][name];
    if (!vectors.has(source)) vectors.set(source, decodeVectors(source));
    return vectors.get(source);
}

function decodeVectors(source) {
    const bytes = bytesOf(source.data), bits = data.neuron_bits;
    if (bits === 32) return new Float32Array(bytes.buffer);
    const codes = bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
    const last = bits === 16 ? 65535 : 255, middle = Math.floor(last / 2);
    return Float32Array.from(codes, q => q === last ? NaN : (q - middle) / middle * source.most);
}

const vectorError = source =>
    data.neuron_bits === 32 ? 0 : source.most / (2 * (data.neuron_bits === 16 ? 32767 : 127));

// {dot, score} of a row and a column of the figure.
function scoreOf(i, row, col) {
    const D = panels[i].channels, q = vectorsOf(i, "queries"), k = vectorsOf(i, "keys");
    let dot = 0;
    for (let d = 0; d < D; d++) dot += q[row * D + d] * k[col * D + d];
    return {dot, score: dot * panels[i].score_scale};
}

function placeNeurons(D) {
    const width = Math.max(byId("neurons").clientWidth, 260), narrow = width < 560;
    const [, cols] = itemsInView(), most = narrow ? 64 : 110;
    const label = Math.min(cols.slice(0, 2000).reduce((w, item) =>
        Math.max(w, widthOf(item.text, 12, true)), 30), most) + 12;
    const numbers = narrow ? 96 : 230, strip = Math.max((width - label - numbers - 24) / 2, 40);
    const wide = Math.min(strip, D * 8), x1 = label, x2 = label + wide + 12;
    return {cols, width, narrow, D, wide, x1, x2, dot: x2 + wide + 10,
        height: NEURON_TOP + cols.length * KEY_HEIGHT + 6};
}

function drawNeurons() {
    const i = shownPanel();
    if (state.view !== "neurons" || !canNeurons(i)) return;
    const p = neuronPlace = placeNeurons(panels[i].channels), cell = cursor();
    const {context, top, height} = openScroll("neurons", p.width, p.height);
    if (!view.rows.includes(cell.row)) return;
    paintKeys(context, p, i, cell, top, height);
    paintNeuronHead(context, p, i, cell, top);
}

// Paint a strip of channels in the signed colours, with 0 as the middle colour.
function paintStrip(context, valueAt, D, most, x, y, w, h) {
    const picture = make("canvas", ""), colours = paletteOf("diverging", state.dark);
    picture.width = D;
    picture.height = 1;
    const inner = picture.getContext("2d"), pixels = inner.createImageData(D, 1);
    const flat = new Uint32Array(pixels.data.buffer);
    for (let d = 0; d < D; d++) {
        const step = Math.round(127.5 + 127.5 * Math.min(Math.max(valueAt(d) / (most || 1), -1), 1));
        flat[d] = step >= 0 ? pixel(colours[3 * step], colours[3 * step + 1], colours[3 * step + 2])
            : pixel(...rgbOf(theme.bad));
    }
    inner.putImageData(pixels, 0, 0);
    new CanvasSurface(context).image(picture, x, y, w, h);
}

// The largest magnitude among a row's products, which share one scale.
function greatestProduct(i, row) {
    const D = panels[i].channels, q = vectorsOf(i, "queries"), k = vectorsOf(i, "keys");
    let most = 0;
    for (const c of view.cols)
        for (let d = 0; d < D; d++) {
            const size = Math.abs(q[row * D + d] * k[c * D + d]);
            if (size > most) most = size;
        }
    return most;
}

function paintKeys(context, p, i, cell, top, height) {
    const {D} = p, q = vectorsOf(i, "queries"), k = vectorsOf(i, "keys"), map = mapOf(i);
    const surface = new CanvasSurface(context), at = view.rows.indexOf(cell.row);
    const product = greatestProduct(i, cell.row), reach = reachOf(sourceOf(i));
    const most = Math.max(Math.abs(reach.least), Math.abs(reach.greatest)) || 1;
    const first = Math.max(0, Math.floor((top - KEY_HEIGHT) / KEY_HEIGHT));
    for (let n = first; n < p.cols.length; n++) {
        const y = NEURON_TOP + n * KEY_HEIGHT, c = view.cols[n], h = KEY_HEIGHT - 3;
        if (y > top + height) break;
        const here = c === cell.col, kind = map.kind ? map.kind[at * map.cols + n] : VALUE;
        const color = here ? theme.accent : kind === VALUE ? theme.ink : theme.muted;
        surface.text(p.x1 - 8, y + 12.5, cutTo(p.cols[n].text, 12, p.x1 - 10),
            {size: 12, color, anchor: "end", bold: here});
        paintStrip(context, d => k[c * D + d], D, panels[i].keys.most, p.x1, y, p.wide, h);
        paintStrip(context, d => q[cell.row * D + d] * k[c * D + d], D, product, p.x2, y, p.wide, h);
        paintScore(surface, p, i, cell.row, c, y + 12.5, kind === VALUE
            ? map.value[at * map.cols + n] : NaN, most, color);
    }
}

function paintScore(surface, p, i, row, col, y, value, most, color) {
    const {dot, score} = scoreOf(i, row, col), write = (x, text, anchor = "end") =>
        surface.text(x, y, text, {size: 11.5, color, anchor});
    if (!p.narrow) write(p.dot + 48, tidy(dot, 100));
    write(p.dot + (p.narrow ? 40 : 104), tidy(score, 100));
    const x = p.dot + (p.narrow ? 52 : 120);
    if (Number.isNaN(value)) {
        write(x, t("masked"), "start");
        return;
    }
    if (!p.narrow)
        surface.rect(x, y - 9, Math.max(Math.abs(value) / most * 50, 0.5), 10, theme.accent);
    write(p.narrow ? x : x + 56, rowNumber(value, sourceOf(i), most).replace(/ ±.*/, ""), "start");
}

// Paint the query above the keys, channel above channel. It remains visible while keys are
// scrolled.
function paintNeuronHead(context, p, i, cell, top) {
    const surface = new CanvasSurface(context), {D} = p, q = vectorsOf(i, "queries");
    surface.rect(0, top, p.width, NEURON_TOP - 2, theme.paper);
    const write = (x, y, text, anchor, bold = false) => surface.text(x, top + y, text,
        {size: 11.5, color: bold ? theme.ink : theme.muted, anchor, bold});
    write(p.x1 - 8, 29, "q", "end", true);
    write(p.x1, 12, `${rowWord} ${cutTo(rowItems[cell.row].text, 11.5, p.wide - 40)}`, "start", true);
    paintStrip(context, d => q[cell.row * D + d], D, panels[i].queries.most, p.x1, top + 17, p.wide,
        KEY_HEIGHT - 3);
    write(p.x1, 50, "k", "start", true);
    const product = t("neurons.product");
    write(p.x2, 50, cutTo(product, 11.5, p.wide) === product ? product : "q × k", "start", true);
    if (!p.narrow) write(p.dot + 48, 50, "q · k", "end", true);
    write(p.dot + (p.narrow ? 40 : 104), 50, t(p.narrow ? "neurons.score" : "neurons.scaled"), "end", true);
    write(p.dot + (p.narrow ? 52 : 120), 50, valueWord, "start", true);
}

// -- pointer and keys ----------------------------------------------------------------------------

// The key and channel under the pointer: {col: index of the item, d: channel or -1}; null outside
// the keys.
function neuronAt(event) {
    const p = neuronPlace, box = byId("neurons"), frame = box.getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    const col = view.cols[Math.floor((y + box.scrollTop - NEURON_TOP) / KEY_HEIGHT)];
    const strip = [p.x1, p.x2].find(from => x >= from && x < from + p.wide);
    const d = strip === undefined ? -1 : Math.floor((x - strip) / p.wide * p.D);
    return y >= NEURON_TOP && col !== undefined ? {col, d} : null;
}

function onNeuronsMove(event) {
    const at = neuronPlace && neuronAt(event), tip = byId("tip");
    const row = state.row;
    tip.hidden = !at || at.d < 0 || event.pointerType === "touch";
    if (!tip.hidden) fillNeuronTip(tip, shownPanel(), row, at, event);
    if (state.locked || state.hover?.col === at?.col) return;
    state.hover = at && {row, col: at.col};
    drawCursor();
}

function fillNeuronTip(tip, i, row, {col, d}, event) {
    const D = panels[i].channels, q = vectorsOf(i, "queries")[row * D + d],
        k = vectorsOf(i, "keys")[col * D + d];
    const number = (value, name) => exactly(value, vectorError(panels[i][name]));
    tip.dataset.key = "";
    tip.replaceChildren(
        make("span", "pair", token(rowItems[row]), make("span", "to", "·"), token(colItems[col])),
        make("span", "line", ...tNodes("neurons.channel",
            {n: d, value: make("span", "value", exactly(q * k, 0))})),
        make("span", "rank", `q ${number(q, "queries")} × k ${number(k, "keys")}`));
    placeTip(tip, event);
}

function onNeuronsLeave() {
    byId("tip").hidden = true;
    if (!state.hover) return;
    state.hover = null;
    if (!state.locked) drawCursor();
}

function onNeuronsPick(event) {
    const at = neuronPlace && neuronAt(event);
    if (!at) return;
    const again = state.locked && at.col === state.col;
    state.col = at.col;
    setLock(!again);
}

// Up and down move through the keys, left and right through the queries.
function onNeuronsKey(event) {
    const move = moves[event.key], at = inView(cursor()) ?? {row: 0, col: 0};
    if (event.key === "Enter" || event.key === " ") setLock(!state.locked);
    else if (move && !event.altKey && !event.metaKey) {
        const [down, right] = move({row: at.col, col: at.row}, event.ctrlKey);
        moveTo(right, down);
        scrollToKey();
    } else return;
    event.preventDefault();
}

function scrollToKey() {
    const box = byId("neurons"), y = view.cols.indexOf(state.col) * KEY_HEIGHT;
    if (y < box.scrollTop || y > box.scrollTop + box.clientHeight - NEURON_TOP - KEY_HEIGHT)
        box.scrollTop = y - box.clientHeight / 2;
}

function buildNeurons() {
    const box = byId("neurons");
    box.addEventListener("scroll", drawNeurons);
    box.addEventListener("pointermove", onNeuronsMove);
    box.addEventListener("pointerleave", onNeuronsLeave);
    box.addEventListener("click", onNeuronsPick);
    box.addEventListener("keydown", onNeuronsKey);
}

function neuronsNote() {
    if (data.neuron_bits === 32) return "";
    const i = shownPanel(), worst = Math.max(...neuronNames.map(name => vectorError(panels[i][name])));
    return t("neurons.note", {bits: data.neuron_bits, error: Number(worst.toPrecision(1))});
}
