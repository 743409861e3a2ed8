// The scatter of all heads by two scores, and the grid of layers and heads.

const svgSpace = byId("theme").firstElementChild.namespaceURI;
function draw(tag, attributes, text) {
    const element = document.createElementNS(svgSpace, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
}

const LEFT = 68, RIGHT = 16, TOP = 24, BOTTOM = 46;
let WIDE = 720, HIGH = 470; // pixels of the page
const across = part => LEFT + part * (WIDE - LEFT - RIGHT);
const up = part => HIGH - BOTTOM - part * (HIGH - TOP - BOTTOM);
let dots = [], squares = [];

// Round numbers from low to high, 1, 2 or 5 times a power of ten apart, about `wanted` of them.
function ticksOf(c, wanted) {
    const [low, high] = extentOf(c), rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(n => n * power >= rough * (1 - 1e-9)), ticks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) ticks.push(n * step);
    const digits = Math.min(Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), 8);
    return ticks.map(value => [partOf(c, value), Math.abs(value) >= 1e6 ? tidy(value) : value.toFixed(digits)]);
}

function drawAxes(picture) {
    for (const [part, text] of ticksOf(state.x, WIDE < 480 ? 3 : 5))
        picture.append(
            draw("line", {class: "gridline", x1: across(part), x2: across(part), y1: up(0), y2: up(1)}),
            draw("text", {class: "tick", x: across(part), y: up(0) + 16, "text-anchor": "middle"}, text));
    for (const [part, text] of ticksOf(state.y, 5))
        picture.append(
            draw("line", {class: "gridline", x1: across(0), x2: across(1), y1: up(part), y2: up(part)}),
            draw("text", {class: "tick", x: across(0) - 7, y: up(part) + 4, "text-anchor": "end"}, text));
    const title = c => wordsOf(c) + (columns[c].unit ? `, ${columns[c].unit}` : "");
    const upward = draw("text", {class: "label", x: 14, y: TOP, transform: `rotate(-90 14 ${TOP})`,
        "text-anchor": "end"}, `${title(state.y)} →`);
    picture.append(draw("text", {class: "label", x: across(1), y: HIGH - 8, "text-anchor": "end"}, `${title(state.x)} →`),
        upward);
    if (upward.getComputedTextLength() > HIGH - TOP) { // on a phone
        upward.setAttribute("textLength", HIGH - TOP);
        upward.setAttribute("lengthAdjust", "spacingAndGlyphs");
    }
}

// Draw the best head's score under the permutation null.
function drawLuck(picture) {
    const x = columns[state.x].luck, y = columns[state.y].luck;
    const inside = (c, luck) => luck !== null && luck >= extentOf(c)[0] && luck <= extentOf(c)[1];
    if (inside(state.x, x)) {
        const at = across(partOf(state.x, x));
        picture.append(draw("line", {class: "luck", x1: at, x2: at, y1: up(0), y2: up(1)}),
            draw("text", {class: "luck-text", x: at + 4, y: up(1) + 10}, "permutation null"));
    }
    if (inside(state.y, y)) {
        const at = up(partOf(state.y, y));
        picture.append(draw("line", {class: "luck", x1: across(0), x2: across(1), y1: at, y2: at}),
            draw("text", {class: "luck-text", x: across(1), y: at - 4, "text-anchor": "end"}, "permutation null"));
    }
}

// Label the selected heads, and alternately the heads with the largest values on each axis.
function namedHeads() {
    const few = WIDE < 480 ? 3 : 5;
    const best = c => heads.map((_, h) => h).filter(h => isOn(h) && valueOf(c, h) !== null)
        .sort((a, b) => valueOf(c, b) - valueOf(c, a)).slice(0, few);
    const x = best(state.x), y = best(state.y);
    return new Set([...state.chosen, ...x.flatMap((h, i) => i < y.length ? [h, y[i]] : [h]), ...y]);
}

const NAME_HIGH = 13, NAME_FAR = 78, BESIDE = 9, CLEAR = 3; // pixels

// Places for a name, nearest first, in growing circles around its dot.
function* placesFor(x, y, wide) {
    for (let far = BESIDE; far <= NAME_FAR; far += 6)
        for (const turn of [0, -30, 30, -60, 60, -90, 90, -120, 120, -150, 150, 180]) {
            const angle = turn * Math.PI / 180, cx = x + far * Math.cos(angle), cy = y + far * Math.sin(angle);
            const left = cx - (Math.cos(angle) < -0.3 ? wide : Math.cos(angle) < 0.3 ? wide / 2 : 0), top = cy - NAME_HIGH / 2;
            yield {left, top, wide, high: NAME_HIGH, leader: far > BESIDE ? leaderTo(x, y, left, top, wide) : []};
        }
}

// Points of the line from a dot to the nearest point of its name, at most 2 pixels apart.
function leaderTo(x, y, left, top, wide) {
    const toX = Math.min(Math.max(x, left), left + wide), toY = Math.min(Math.max(y, top + 1), top + NAME_HIGH - 1);
    const steps = Math.ceil(Math.hypot(toX - x, toY - y) / 2);
    return Array.from({length: steps + 1}, (_, n) => [x + (toX - x) * n / steps, y + (toY - y) * n / steps]);
}

// Put names where they cover no dot, text or line. A name that is not beside its dot has a line to
// it. Names without a free place are omitted, least important first, and counted.
function placeNames(picture, names) {
    const points = dots.filter(Boolean).map(dot => [+dot.getAttribute("cx"), +dot.getAttribute("cy"), +dot.getAttribute("r")]);
    const taken = [...picture.querySelectorAll(".luck-text")].map(text => text.getBBox())
        .map(box => ({left: box.x, top: box.y, wide: box.width, high: box.height, leader: []}));
    const holds = (box, [px, py], by) => px > box.left - by && px < box.left + box.wide + by &&
        py > box.top - by && py < box.top + box.high + by;
    let without = 0;
    for (const h of names) {
        if (!dots[h]) continue;
        const x = +dots[h].getAttribute("cx"), y = +dots[h].getAttribute("cy");
        const text = draw("text", {class: "name", "data-name": h}, nameOf(h));
        picture.append(text);
        const isFree = place => place.left >= LEFT - 4 && place.left + place.wide <= WIDE - 2 &&
            place.top >= 2 && place.top + NAME_HIGH <= up(0) &&
            points.every(([px, py, r]) => !holds(place, [px, py], r + 1) &&
                (px === x && py === y || place.leader.every(at => Math.hypot(at[0] - px, at[1] - py) > 0.7 * r))) &&
            taken.every(other => (Math.abs(other.top - place.top) > NAME_HIGH || place.left > other.left + other.wide + 2 * CLEAR ||
                other.left > place.left + place.wide + 2 * CLEAR) &&
                other.leader.every(at => !holds(place, at, CLEAR)) && place.leader.every(at => !holds(other, at, CLEAR) &&
                other.leader.every(there => Math.hypot(at[0] - there[0], at[1] - there[1]) > CLEAR)));
        const place = [...placesFor(x, y, text.getComputedTextLength())].find(isFree);
        if (!place) {
            text.remove();
            without++;
            continue;
        }
        taken.push(place);
        text.setAttribute("x", place.left.toFixed(1));
        text.setAttribute("y", (place.top + 10.5).toFixed(1));
        const [toX, toY] = place.leader.at(-1) ?? [];
        if (place.leader.length) picture.append(draw("line", {class: "leader", x1: x, y1: y, x2: toX, y2: toY}));
    }
    byId("unnamed").textContent = !without ? "" : without === 1 ? "One more name has no room; click a dot for its card."
        : `${without} more names have no room; click a dot for its card.`;
}

function drawScatter() {
    WIDE = Math.max(byId("scatter").clientWidth || 720, 280);
    HIGH = Math.round(Math.min(Math.max(WIDE * 0.66, 300), 560));
    const picture = draw("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img",
        "aria-label": `${wordsOf(state.x)} across, ${wordsOf(state.y)} up, ${heads.length} heads`});
    byId("scatter").replaceChildren(picture); // lengths of texts are known only in the page
    drawAxes(picture);
    drawLuck(picture);
    const radius = heads.length > 600 ? 4 : 5.5, names = namedHeads();
    dots = heads.map((_, h) => {
        const x = valueOf(state.x, h), y = valueOf(state.y, h);
        if (x === null || y === null) return null;
        const dot = draw("circle", {class: "dot", cx: across(partOf(state.x, x)).toFixed(1),
            cy: up(partOf(state.y, y)).toFixed(1), r: radius, "data-head": h});
        dot.style.fill = colourOf(h);
        picture.append(dot);
        return dot;
    });
    placeNames(picture, names);
}

function drawGrid() {
    squares = [];
    const most = Math.max(...heads.map(head => head.head)) + 1;
    byId("layers").setAttribute("aria-colcount", most);
    byId("layers").replaceChildren(...layers.map(layer => {
        const row = make("div", "grid-row", make("span", "", `L${layer}`));
        row.setAttribute("role", "row");
        row.firstChild.setAttribute("role", "rowheader");
        row.style.gridTemplateColumns = `30px repeat(${most}, minmax(9px, 1fr))`;
        heads.forEach((head, h) => {
            if (head.layer !== layer) return;
            const square = make("button");
            square.type = "button";
            square.dataset.head = h;
            square.tabIndex = -1;
            square.style.gridColumn = head.head + 2;
            square.style.background = colourOf(h);
            square.setAttribute("role", "gridcell");
            square.setAttribute("aria-label", `${nameOf(h)}, ${wordsOf(state.colour)} ${tidy(valueOf(state.colour, h))}`);
            squares[h] = square;
            row.append(square);
        });
        return row;
    }));
    const first = state.chosen[0] ?? 0;
    squares[first].tabIndex = 0;
    const [low, high] = extentOf(state.colour);
    byId("legend-name").textContent = wordsOf(state.colour);
    byId("legend-low").textContent = tidy(low);
    byId("legend-high").textContent = tidy(high);
}

function mark() {
    heads.forEach((_, h) => {
        for (const element of [dots[h], squares[h], rowOf.get(h)]) {
            if (!element) continue;
            element.classList.toggle("off", !isOn(h));
            element.classList.toggle("lit", h === state.lit);
            element.classList.toggle("chosen", state.chosen.includes(h));
        }
    });
    const h = state.lit;
    byId("here").textContent = h < 0 ? "" : [nameOf(h),
        ...[...new Set([state.x, state.y, state.colour])].map(c => `${wordsOf(c)} ${tidy(valueOf(c, h))}`),
        rolesOf(h).join(", ")].join(" · ");
}

// Arrow keys in the grid: to the next head of the layer, or of the layer above or below.
function stepFrom(h, key) {
    const {layer, head} = heads[h], row = l => heads.map((_, i) => i).filter(i => heads[i].layer === l)
        .sort((a, b) => heads[a].head - heads[b].head);
    const here = row(layer), at = here.indexOf(h), level = layers.indexOf(layer);
    const nearest = l => l === undefined ? h
        : row(l).reduce((a, b) => Math.abs(heads[b].head - head) < Math.abs(heads[a].head - head) ? b : a);
    return {ArrowLeft: here[at - 1] ?? h, ArrowRight: here[at + 1] ?? h, ArrowUp: nearest(layers[level - 1]),
        ArrowDown: nearest(layers[level + 1]), Home: here[0], End: here[here.length - 1]}[key];
}
