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

function drawAxes(picture) {
    for (let i = 0; i <= 4; i++) {
        const part = i / 4, [xLow, xHigh] = extentOf(state.x), [yLow, yHigh] = extentOf(state.y);
        picture.append(
            draw("line", {class: "gridline", x1: across(part), x2: across(part), y1: up(0), y2: up(1)}),
            draw("line", {class: "gridline", x1: across(0), x2: across(1), y1: up(part), y2: up(part)}),
            draw("text", {x: across(part), y: up(0) + 16, "text-anchor": "middle"}, tidy(xLow + part * (xHigh - xLow))),
            draw("text", {x: across(0) - 7, y: up(part) + 4, "text-anchor": "end"}, tidy(yLow + part * (yHigh - yLow))));
    }
    const title = c => columns[c].name + (columns[c].unit ? `, ${columns[c].unit}` : "");
    picture.append(draw("text", {class: "label", x: across(1), y: HIGH - 8, "text-anchor": "end"}, `${title(state.x)} →`),
        draw("text", {class: "label", x: 14, y: TOP, transform: `rotate(-90 14 ${TOP})`, "text-anchor": "end"},
            `${title(state.y)} →`));
}

// What the best of all heads reaches by luck.
function drawLuck(picture) {
    const x = columns[state.x].luck, y = columns[state.y].luck;
    const inside = (c, luck) => luck !== null && luck >= extentOf(c)[0] && luck <= extentOf(c)[1];
    if (inside(state.x, x)) {
        const at = across(partOf(state.x, x));
        picture.append(draw("line", {class: "luck", x1: at, x2: at, y1: up(0), y2: up(1)}),
            draw("text", {class: "luck-text", x: at + 4, y: up(1) + 10}, "best by luck"));
    }
    if (inside(state.y, y)) {
        const at = up(partOf(state.y, y));
        picture.append(draw("line", {class: "luck", x1: across(0), x2: across(1), y1: at, y2: at}),
            draw("text", {class: "luck-text", x: across(1), y: at - 4, "text-anchor": "end"}, "best by luck"));
    }
}

// Names beside those that stand out: the largest of each axis, and what is chosen.
function namedHeads() {
    const best = c => heads.map((_, h) => h).filter(h => isOn(h) && valueOf(c, h) !== null)
        .sort((a, b) => valueOf(c, b) - valueOf(c, a)).slice(0, 5);
    return new Set([...state.chosen, ...best(state.x), ...best(state.y)]);
}

// A name beside its dot, above those that are there already.
function placeNames(picture, names) {
    const taken = [];
    for (const h of names) {
        if (!dots[h]) continue;
        const x = +dots[h].getAttribute("cx"), left = x > WIDE - 70 ? x - 56 : x + 8;
        let y = +dots[h].getAttribute("cy") - 6;
        while (y > TOP + 12 && taken.some(t => Math.abs(t.left - left) < 52 && Math.abs(t.y - y) < 12)) y -= 12;
        taken.push({left, y});
        picture.append(draw("text", {class: "name", x: left, y}, nameOf(h)));
    }
}

function drawScatter() {
    WIDE = Math.max(byId("scatter").clientWidth || 720, 280);
    HIGH = Math.round(Math.min(Math.max(WIDE * 0.66, 300), 560));
    const picture = draw("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img",
        "aria-label": `${columns[state.x].name} across, ${columns[state.y].name} up, ${heads.length} heads`});
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
    byId("scatter").replaceChildren(picture);
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
            square.setAttribute("aria-label", `${nameOf(h)}, ${columns[state.colour].name} ${tidy(valueOf(state.colour, h))}`);
            squares[h] = square;
            row.append(square);
        });
        return row;
    }));
    const first = state.chosen[0] ?? 0;
    squares[first].tabIndex = 0;
    const [low, high] = extentOf(state.colour);
    byId("legend-name").textContent = columns[state.colour].name;
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
        ...[...new Set([state.x, state.y, state.colour])].map(c => `${columns[c].name} ${tidy(valueOf(c, h))}`),
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
