// Queries and keys of the shown head as points in a plane (the request `plane`), joined by its weights.

const plane = {answer: null, run: "", asked: null, drawn: ""};
const MOST_POINTS = 256, MOST_JOINED = 1000; // tokens; lines, apart from the chosen query's
const LEAST_WEIGHT = 0.02, WIDEST = 9;       // of a line; its pixels at weight 1
const planeRun = () => JSON.stringify({...runOf(), head: panels[shownPanel()]?.name});

// -- requests ------------------------------------------------------------------------------------

async function askForPlane() {
    if (!byId("plane-box").open || !panels.length || plane.asked) return;
    if (answer.tokens > MOST_POINTS) return showPlane(t("plane.long", {n: MOST_POINTS}));
    for (let run = planeRun(); run !== plane.run; run = planeRun()) {
        plane.asked = run;
        try {
            const got = await (await post("plane", JSON.parse(run))).json();
            plane.answer = {...got, queries: floatsOf(got.queries), keys: floatsOf(got.keys)};
            plane.run = run;
        } catch (error) {
            plane.answer = null;
            plane.run = run;
            if (run === planeRun()) showPlane(error.message);
        }
        plane.asked = null;
    }
    drawPlane();
}

function showPlane(text) {
    plane.answer = null;
    plane.drawn = "";
    byId("plane-picture").replaceChildren();
    byId("plane-about").textContent = text;
}

// -- drawing -------------------------------------------------------------------------------------

// Convert the plane to pixels, with one scale for both axes.
function planeScale({queries, keys}, width, height) {
    const all = [...queries, ...keys], xs = all.filter((_, i) => i % 2 === 0), ys = all.filter((_, i) => i % 2);
    const middle = list => (Math.min(...list) + Math.max(...list)) / 2, reach = list => Math.max(...list) - Math.min(...list);
    const edge = 30, size = Math.min((width - 2 * edge) / (reach(xs) || 1), (height - 2 * edge) / (reach(ys) || 1));
    const [x, y] = [middle(xs), middle(ys)];
    return (points, i) => [width / 2 + size * (points[2 * i] - x), height / 2 - size * (points[2 * i + 1] - y)];
}

// Choose labels that cover no earlier label.
function planeLabels(wanted, width) {
    const taken = [];
    return wanted.flatMap(({x, y, text, kind, chosen}) => {
        const wide = 6.6 * Math.min([...text].length, 16) + 4, left = Math.min(Math.max(x - wide / 2, 0), width - wide);
        const top = kind === "key" ? y + 6 : y - 19;
        if (!chosen && taken.some(box => left < box[2] && box[0] < left + wide && top < box[3] && box[1] < top + 13)) return [];
        taken.push([left, top, left + wide, top + 13]);
        return [svg("text", {class: `${kind} ${chosen ? "chosen" : ""}`, x: left + wide / 2, y: top + 10}, [...text].slice(0, 16).join(""))];
    });
}

// The lines of the largest weights, and all lines of the chosen row, which are drawn last.
function planeLines(at, row) {
    const cells = cellsOf(panels[shownPanel()]), all = [];
    for (const r of view.rows)
        for (const c of view.cols) {
            const k = r * cells.cols + c, weight = cells.kind && cells.kind[k] !== VALUE ? 0 : cells.value[k];
            if (weight >= LEAST_WEIGHT) all.push({r, c, weight});
        }
    all.sort((a, b) => b.weight - a.weight);
    const chosen = all.filter(line => line.r === row), others = all.filter(line => line.r !== row).slice(0, MOST_JOINED);
    return [...others, ...chosen].map(line => {
        const [[x1, y1], [x2, y2]] = [at(plane.answer.queries, line.r), at(plane.answer.keys, line.c)];
        return {...line, node: svg("line", {x1, y1, x2, y2, class: line.r === row ? "chosen" : "",
            "stroke-width": Math.max(WIDEST * line.weight, 0.5).toFixed(2)})};
    });
}

function planePoints(at, row, lines) {
    const looked = new Set(lines.filter(line => line.r === row).map(line => line.c)), marks = [], labels = [];
    const add = (kind, points, list, items, chosen, shape) => {
        for (const i of list) {
            const [x, y] = at(points, i), text = items[i].text || "\u2423", mark = shape(x, y, chosen(i));
            mark.append(svg("title", {}, t(`plane.${kind}`, {token: text, n: items[i].place})));
            if (kind === "query") mark.addEventListener("click", () => choosePlaneRow(i));
            marks.push(mark);
            labels.push({x, y, text, kind, chosen: chosen(i)});
        }
    };
    add("key", plane.answer.keys, view.cols, colItems, c => looked.has(c), (x, y, chosen) =>
        svg("rect", {class: `key ${chosen ? "chosen" : ""}`, x: x - 4, y: y - 4, width: 8, height: 8}));
    add("query", plane.answer.queries, view.rows, rowItems, r => r === row, (x, y, chosen) =>
        svg("circle", {class: `query ${chosen ? "chosen" : ""}`, cx: x, cy: y, r: chosen ? 6 : 4}));
    return {marks, labels: labels.sort((a, b) => b.chosen - a.chosen)};
}

function choosePlaneRow(row) {
    state.hover = null;
    [state.row, state.col] = [row, indexOfMost(weightsOf(shownPanel(), row))];
    setLock(true);
}

// Describe the keys that the chosen query attends to, largest weight first.
function planeText(lines, row) {
    const list = lines.filter(line => line.r === row).sort((a, b) => b.weight - a.weight).slice(0, 4);
    return list.map(({c, weight}) => `${colItems[c].text || "\u2423"} ${percent(weight)}`).join(", ");
}

function drawPlane() {
    const {answer: got, run} = plane;
    if (!byId("plane-box").open || !got || run !== planeRun() || got.tokens !== rowItems.length || coarse) return;
    const box = byId("plane-picture"), width = Math.max(box.clientWidth, 240), height = Math.min(Math.max(0.5 * width, 300), 460);
    const row = cursor().row, drawn = [run, row, width, view.rows, view.cols, panels[shownPanel()].exact !== undefined].join(" ");
    if (drawn === plane.drawn) return;
    plane.drawn = drawn;
    const at = planeScale(got, width, height), lines = planeLines(at, row);
    const {marks, labels} = planePoints(at, row, lines), looks = planeText(lines, row);
    const values = {head: got.head, query: rowItems[row]?.text || "\u2423", list: looks};
    const image = svg("svg", {class: "plane", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
        "aria-label": t("plane.picture", {...values, n: got.tokens})}, ...lines.map(({node}) => node), ...marks,
        ...planeLabels(labels, width));
    box.replaceChildren(image);
    byId("plane-about").replaceChildren(...tNodes("plane.shares", {head: got.head, first: percent(got.shares[0]),
        second: percent(got.shares[1])}), " ", ...tNodes("plane.looks", {...values, query: bdi(values.query), list: bdi(looks)}));
    byId("plane-query").replaceChildren(...view.rows.map(r => new Option(`${rowItems[r].place} ${rowItems[r].text}`, r)));
    byId("plane-query").value = String(row);
}

// -- start ---------------------------------------------------------------------------------------

function buildPlane() {
    const query = knobSelect([], box => choosePlaneRow(Number(box.value))), picture = make("div", ""), about = make("p", "small");
    query.id = "plane-query";
    picture.id = "plane-picture";
    about.id = "plane-about";
    const key = (kind, shape) => make("span", "plane-key", svg("svg", {class: "plane", width: 12, height: 12,
        "aria-hidden": "true"}, shape), t(`plane.key.${kind}`));
    const box = make("details", "knobs", make("summary", "", make("h2", "", t("plane")), make("span", "small", t("plane.about"))),
        make("div", "live-line", make("label", "field knob", t("plane.choose"), " ", query),
            key("query", svg("circle", {class: "query", cx: 6, cy: 6, r: 4})),
            key("key", svg("rect", {class: "key", x: 2, y: 2, width: 8, height: 8}))), about, picture);
    box.id = "plane-box";
    box.addEventListener("toggle", askForPlane);
    const section = make("section", "", box);
    section.id = "plane";
    section.setAttribute("aria-label", t("plane"));
    byId("generate").after(section);
    new ResizeObserver(drawPlane).observe(picture);
}

function followPlane() {
    const {moved, shown} = live;
    live.moved = () => { moved(); drawPlane(); };
    live.shown = () => { shown(); askForPlane(); };
}

buildPlane();
followPlane();
followers.push(askForPlane);
