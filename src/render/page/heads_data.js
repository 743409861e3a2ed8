"use strict";
// The page's data and the selection. A value is [value, chance, low, high, rows, deciles].

const data = JSON.parse(document.getElementById("data").textContent);
const columns = data.columns, heads = data.heads;
const byId = id => document.getElementById(id);
const nameOf = h => `L${heads[h].layer}H${heads[h].head}`;
const byName = new Map(heads.map((_, h) => [nameOf(h), h]));
const layers = [...new Set(heads.map(head => head.layer))].sort((a, b) => a - b);
const FEW_CARDS = 4;

const state = {x: data.x, y: data.y, colour: data.x, chosen: [], roles: new Set(), sort: data.x,
    descending: true, filter: "", rows: 60, lit: -1};
if (data.first >= 0) state.chosen.push(data.first);

function make(tag, kind, ...children) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...children);
    return element;
}

const isolated = text => {
    const element = make("bdi", "", text);
    element.dir = "auto";
    return element;
};

// The displayed name of a score; the address, files and options use its identifier.
const wordsOf = c => columns[c].label;

const valueOf = (c, h) => columns[c].values[h]?.[0] ?? null;

// Three digits, without an exponent for common magnitudes.
function tidy(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(1);
    return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(size >= 1 ? 2 : 3);
}

function extentOf(c) {
    if (columns[c].extent) return columns[c].extent;
    let low = Infinity, high = -Infinity;
    for (let h = 0; h < heads.length; h++) {
        const value = valueOf(c, h);
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
    }
    if (!(low <= high)) [low, high] = [0, 1];
    if (columns[c].share && low >= 0) low = 0;
    if (low === high) high = low + 1;
    return columns[c].extent = [low, high];
}

// The position of a value in its column's extent, 0 to 1.
const partOf = (c, value) => {
    const [low, high] = extentOf(c);
    return value === null ? 0 : Math.min(Math.max((value - low) / (high - low), 0), 1);
};

const colourOf = h => {
    const value = valueOf(state.colour, h);
    return value === null ? "transparent"
        : `color-mix(in srgb, var(--accent) ${(100 * partOf(state.colour, value)).toFixed(1)}%, var(--sunk))`;
};

const NO_ROLE = "no role";
const rolesOf = h => heads[h].roles.length ? heads[h].roles.map(role => role.name) : [NO_ROLE];
const isOn = h => !state.roles.size || rolesOf(h).some(role => state.roles.has(role));
