// Convert values to colours, like src/render/range.c, and numbers to text.

const SCALES = ["linear", "sqrt", "log", "rank"];
const LOG_DECADES = 1e4;

const palettes = new Map();
function paletteOf(name, dark) {
    const key = (dark ? "dark " : "light ") + name;
    if (!palettes.has(key)) {
        const cmap = data.cmaps.find(c => c.name === name);
        palettes.set(key, bytesOf(dark ? cmap.dark : cmap.light));
    }
    return palettes.get(key);
}

const isSigned = name => data.cmaps.find(c => c.name === name).signed;

function bend(kind, v) {
    if (kind === "sqrt") return v < 0 ? -Math.sqrt(-v) : Math.sqrt(v);
    return kind === "log" ? Math.log(v) : v;
}

function unbend(kind, f) {
    if (kind === "sqrt") return f * Math.abs(f);
    return kind === "log" ? Math.exp(f) : f;
}

// All values of some sources, sorted, for ranks.
function sortedValues(sources) {
    const list = sources.map(coarse ? smallCellsOf : mapFrom);
    const all = new Float32Array(list.reduce((sum, map) => sum + map.value.length, 0));
    let used = 0;
    for (const map of list)
        for (let k = 0; k < map.value.length; k++)
            if (!map.kind || map.kind[k] === VALUE) all[used++] = map.value[k];
    return all.subarray(0, used).sort();
}

function countBelow(sorted, v, orEqual) {
    let low = 0, high = sorted.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (sorted[middle] < v || (orEqual && sorted[middle] === v)) low = middle + 1;
        else high = middle;
    }
    return low;
}

// A scale over some sources, extended to include `others`. options: kind, cmap, range ("shared",
// "panel", "fixed").
function makeScale(sources, options, others = []) {
    let least = Infinity, greatest = -Infinity;
    for (const source of [...sources, ...others]) {
        const r = reachOf(source);
        least = Math.min(least, r.least);
        greatest = Math.max(greatest, r.greatest);
    }
    if (least > greatest) least = greatest = 0;
    let lo = Math.min(least, 0), hi = Math.max(greatest, 0);
    if (options.range === "fixed") [lo, hi] = [data.lo, data.hi];
    else {
        if (lo === hi) hi = 1;
        if (isSigned(options.cmap)) { hi = Math.max(-lo, hi); lo = -hi; }
    }
    const kind = options.kind;
    if (kind === "log" && lo <= 0) lo = hi / LOG_DECADES;
    const sorted = kind === "rank" ? sortedValues(sources) : null;
    const fLo = bend(kind, lo), fHi = bend(kind, hi);
    const rankPosition = v => {
        if (sorted.length < 2) return 0.5;
        const rank = (countBelow(sorted, v, false) + countBelow(sorted, v, true) - 1) / 2;
        return Math.min(Math.max(rank / (sorted.length - 1), 0), 1);
    };
    return {kind, lo, hi, clippedLow: least < lo, clippedHigh: greatest > hi,
        position(value) {
            const v = Math.min(Math.max(value, lo), hi);
            return sorted ? rankPosition(v) : (bend(kind, v) - fLo) / (fHi - fLo);
        },
        middle() {
            if (sorted) return sorted.length ? sorted[Math.floor((sorted.length - 1) / 2)] : 0;
            return unbend(kind, (fLo + fHi) / 2);
        }};
}

// The colour steps of a map's cells. Faster than calling position() for each cell if values repeat.
function stepsOf(scale, values) {
    const steps = new Uint8Array(values.length);
    let last = NaN, step = 0;
    for (let i = 0; i < values.length; i++) {
        if (values[i] !== last) {
            last = values[i];
            step = Math.round(255 * scale.position(last));
        }
        steps[i] = step;
    }
    return steps;
}

function luminance(palette, step) {
    const part = i => {
        const s = palette[3 * step + i] / 255;
        return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2);
}

// Black or white, whichever has a contrast of at least 4.58 on this colour.
const inkOn = (palette, step) => luminance(palette, step) > 0.179 ? "#000" : "#fff";
const cssColor = (palette, step) =>
    `rgb(${palette[3 * step]},${palette[3 * step + 1]},${palette[3 * step + 2]})`;

const short = v => String(Number(v.toPrecision(3)));

// The positions of round numbers along a colour bar, 0 to 1, and their texts; for ranks, the ends
// and the median.
const BAR_TICKS = 3;
function barTicks(scale) {
    if (scale.kind === "rank") return [[0, scale.lo], [0.5, scale.middle()], [1, scale.hi]].map(([at, v]) => [at, short(v)]);
    const powers = scale.kind === "log" ? ticksOf(Math.log10(scale.lo), Math.log10(scale.hi), BAR_TICKS)
        .filter(Number.isInteger).map(power => 10 ** power) : [];
    const list = powers.length > 1 ? powers : ticksOf(scale.lo, scale.hi, BAR_TICKS);
    return list.map(v => [scale.position(v), short(v)]);
}

// Write a value with as many digits as are exact.
function exactly(value, error) {
    if (error > 0) {
        const digits = Math.min(Math.max(Math.ceil(-Math.log10(2 * error)), 0), 9);
        return `${value.toFixed(digits)} ± ${Number(error.toPrecision(1))}`;
    }
    if (value === 0 || (Number.isInteger(value) && Math.abs(value) > 1)) return String(value);
    const size = Math.abs(value);
    return size >= 0.001 && size < 10 ? value.toFixed(4) : String(Number(value.toPrecision(4)));
}

// Write numbers of a column whose largest magnitude is `most`, all with the same number of
// decimals.
function tidy(value, most) {
    if (value === null || Number.isNaN(value)) return "–";
    if (!(most >= 0.01 && most < 1e6)) return short(value);
    const decimals = most <= 1.5 ? 3 : most < 15 ? 2 : most < 150 ? 1 : 0;
    return value.toFixed(decimals).replace(/^-(0\.?0*)$/, "$1");
}

function inCell(value, greatest) {
    if (greatest >= 0.01 && greatest < 9.995) return value.toFixed(2).replace("-0.00", "0.00");
    if (greatest >= 9.995 && greatest < 99.95) return value.toFixed(1);
    if (greatest >= 99.95 && greatest < 99999.5) return value.toFixed(0);
    return value === 0 ? "0" : String(Number(value.toPrecision(2)));
}

const percent = share => share > 0 && share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(1)} %`;
