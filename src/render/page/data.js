// The figure's data: decoding, labels, and the part that is in view (tokens can be hidden).

performance.mark("report-parse");
let data, panels;
let trackBytes = null; // of data.track
const VALUE = 0, MASKED = 1, NOT_FINITE = 2;

function bytesOf(base64) {
    const text = atob(base64), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
}

// One axis, with an item for every cell: a label, or a block of labels if cells are blocks of
// tokens. Cells are blocks if the figure has them (cell_tokens) or if the file had no room (pool).
// On a live page, cells of a large map can be finer (map_tokens) than those of a small one.
let unit, block, perCell; // tokens of a label, tokens of a cell, labels of a cell
let coarse = false;       // whether small maps have larger cells than the large one
function axisOf(labels, shown, cells) {
    const count = data.token_count || cells;
    const one = i => (shown[i] ?? labels?.[i] ?? String(i * unit)) || '""';
    const seen = new Map();
    for (let i = 0; i < count; i++) seen.set(one(i), (seen.get(one(i)) ?? 0) + 1);
    const items = [];
    for (let from = 0; from < count; from += perCell) {
        const to = Math.min(from + perCell, count) - 1, last = (to + 1) * unit - 1;
        const single = from === to;
        const text = single ? one(from) : to - from < 3
            ? Array.from({length: to - from + 1}, (_, k) => one(from + k)).join(" ")
            : one(from) + " … " + one(to);
        const raw = labels?.[from] ?? null;
        items.push({text, raw: single && raw !== text ? raw : null, from, to,
            all: single ? text : Array.from({length: to - from + 1}, (_, k) => one(from + k))
                .join(" "),
            place: from * unit === last ? String(last) : from * unit + "–" + last,
            twin: single && labels?.[from] != null && seen.get(text) > 1});
    }
    return items;
}

const wordOf = axis => axis.split(/[\s(,:]/)[0] || axis;
let same, rowItems, colItems, rowWord, colWord, valueWord, frames, special, canHide, canRescale;

// Set everything that depends on the data only. A live page takes new data whenever its text
// changes.
function takeData(next) {
    next.cmaps ??= data.cmaps;
    data = next;
    panels = data.panels;
    unit = data.token_count ? 1 : data.cell_tokens;
    block = data.map_tokens ?? data.pool * data.cell_tokens;
    perCell = block / unit;
    coarse = block !== data.pool * data.cell_tokens;
    same = data.same_labels;
    rowItems = axisOf(data.row_labels, data.row_shown, data.rows);
    colItems = same ? rowItems : axisOf(data.col_labels, data.col_shown, data.cols);
    rowWord = wordOf(given(data.row_axis));
    colWord = wordOf(given(data.col_axis));
    valueWord = data.value_name ? given(data.value_name) : t("value");
    frames = data.frames;
    special = new Set(data.special ?? []);
    canHide = perCell === 1;
    canRescale = !data.negative;
    trackBytes = null;
    decoded.clear();
    maps.clear();
}

// A source of values is a panel, its twin, or a panel at a frame: least, greatest, data, bits.
const bitsOf = source => source.bits ?? data.bits;
const errorBits = source => source.exact ? 32 : bitsOf(source);
const sourceOf = i => frames[state.frame]?.maps[i] ?? panels[i];
// The map beside the large map: one that the reader chose, or the twin.
const twinOf = i => state.beside >= 0 ? sourceOf(state.beside)
    : state.frame < 0 ? panels[i].twin ?? null : null;
const twinName = () => state.beside >= 0 ? panels[state.beside].name : given(data.twin_name ?? t("twin.word"));
const twinWord = () => state.beside >= 0 ? panels[state.beside].name : given(data.twin_value ?? t("value"));

// The largest magnitude, to which codes of 16 and 8 bits are relative.
const reach = source => Math.max(Math.abs(source.least), Math.abs(source.greatest));

function decodeFloats(bytes, cells) {
    cells.value = new Float32Array(bytes.buffer);
    const bits = new Uint32Array(bytes.buffer);
    for (let i = 0; i < bits.length; i++) {
        if (Number.isFinite(cells.value[i])) continue;
        cells.kind ??= new Uint8Array(bits.length);
        cells.kind[i] = bits[i] === 0x7FC0A5A5 ? MASKED : NOT_FINITE;
    }
}

function decodeCodes(bytes, cells, source) {
    const bits = bitsOf(source), codes = bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
    const last = bits === 16 ? 65535 : 255;
    const middle = Math.floor((last - 3) / 2), most = reach(source);
    const table = new Float32Array(last + 1);
    for (let q = 0; q < last - 1; q++) {
        const s = data.negative ? (q - middle) / middle : q / (last - 2);
        table[q] = most * s * Math.abs(s);
    }
    cells.value = new Float32Array(codes.length);
    for (let i = 0; i < codes.length; i++) {
        cells.value[i] = table[codes[i]];
        if (codes[i] < last - 1) continue;
        cells.kind ??= new Uint8Array(codes.length);
        cells.kind[i] = codes[i] === last ? MASKED : NOT_FINITE;
    }
}

// The largest error of a shown value; 0: values are exact.
function errorOf(source, value) {
    if (errorBits(source) === 32) return 0;
    const last = bitsOf(source) === 16 ? 65535 : 255, most = reach(source);
    const top = data.negative ? Math.floor((last - 3) / 2) : last - 2;
    return Math.sqrt(Math.abs(value) * most) / top + most / (4 * top * top);
}

const decoded = new Map();
function cellsOf(source) {
    if (source.exact) return source.exact; // a live page has requested it
    return coarse ? spread(smallCellsOf(source)) : smallCellsOf(source);
}

// The cells as the data contains them.
function smallCellsOf(source) {
    if (!decoded.has(source)) {
        const side = items => coarse ? Math.ceil(data.rows / data.pool) : items.length;
        const cells = {rows: side(rowItems), cols: side(colItems), value: null, kind: null};
        const bytes = bytesOf(source.data);
        if (bitsOf(source) === 32) decodeFloats(bytes, cells);
        else decodeCodes(bytes, cells, source);
        decoded.set(source, cells);
    }
    return decoded.get(source);
}

// Enlarge a small map, which is shown until the large map arrives.
function spread(small) {
    const rows = rowItems.length, cols = colItems.length, part = block / data.cell_tokens;
    const map = {rows, cols, value: new Float32Array(rows * cols),
        kind: small.kind && new Uint8Array(rows * cols)};
    for (let r = 0; r < rows; r++)
        for (let c = 0; c < cols; c++) {
            const from = Math.floor(r * part) * small.cols + Math.floor(c * part);
            map.value[r * cols + c] = small.value[from];
            if (map.kind) map.kind[r * cols + c] = small.kind[from];
        }
    return map;
}

// The items in view: rows and cols are their indices, in order.
const view = {rows: [], cols: [], hiding: false, rescaled: false};

function chooseView(hidden, rescale) {
    const visible = items => items.map((_, i) => i).filter(i => !hidden.has(items[i].text));
    view.rows = visible(rowItems);
    view.cols = visible(colItems);
    view.hiding = view.rows.length < rowItems.length || view.cols.length < colItems.length;
    view.rescaled = rescale && canRescale && view.cols.length < colItems.length;
    maps.clear();
}

// Copy the visible values of one row. Returns the hidden share of its magnitude.
function takeRow(cells, from, map, to) {
    let all = 0, left = 0;
    const base = from * cells.cols, out = to * map.cols;
    const finite = at => !cells.kind || cells.kind[at] === VALUE;
    for (let c = 0; c < cells.cols; c++)
        if (finite(base + c)) all += Math.abs(cells.value[base + c]);
    view.cols.forEach((c, k) => {
        map.value[out + k] = cells.value[base + c];
        if (map.kind) map.kind[out + k] = cells.kind[base + c];
        if (finite(base + c)) left += Math.abs(cells.value[base + c]);
    });
    if (view.rescaled && left > 0)
        for (let k = 0; k < map.cols; k++) map.value[out + k] *= all / left;
    return all > 0 ? Math.max(0, 1 - left / all) : 0;
}

// The visible part of a source: value, kind (or null), hidden share of each row (or null).
const maps = new Map();
function mapFrom(source) {
    if (maps.has(source)) return maps.get(source);
    const cells = cellsOf(source);
    let map = {...cells, hidden: null};
    if (view.hiding) {
        const rows = view.rows.length, cols = view.cols.length;
        map = {rows, cols, value: new Float32Array(rows * cols),
            kind: cells.kind && new Uint8Array(rows * cols), hidden: new Float64Array(rows)};
        view.rows.forEach((r, k) => { map.hidden[k] = takeRow(cells, r, map, k); });
    }
    maps.set(source, map);
    return map;
}

const mapOf = i => mapFrom(sourceOf(i));
// The cells of a thumbnail. If they are larger than those of the large map, they include hidden
// tokens.
const smallMapOf = i => coarse ? smallCellsOf(sourceOf(i)) : mapOf(i);

// The least and greatest visible value of a source.
function reachOf(source) {
    if (!view.hiding || coarse) return {least: source.least, greatest: source.greatest};
    const map = mapFrom(source);
    if (map.least === undefined) {
        let least = Infinity, greatest = -Infinity;
        for (let k = 0; k < map.value.length; k++) {
            if (map.kind && map.kind[k] !== VALUE) continue;
            if (map.value[k] < least) least = map.value[k];
            if (map.value[k] > greatest) greatest = map.value[k];
        }
        map.least = least <= greatest ? least : 0;
        map.greatest = least <= greatest ? greatest : 0;
    }
    return map;
}

// 1 + the number of greater values in the row, and the number of values in the row.
function rankOf(map, row, col) {
    let greater = 0, count = 0;
    const base = row * map.cols, value = map.value[base + col];
    for (let c = 0; c < map.cols; c++) {
        if (map.kind && map.kind[base + c] !== VALUE) continue;
        count++;
        if (map.value[base + c] > value) greater++;
    }
    return {rank: greater + 1, count};
}

takeData(JSON.parse(document.getElementById("data").textContent));
