// Information about the selected cell and its row: readout, tooltip, strips, table, notes.

// {value, text, rank, count, masked} of a cell of the shown map; null if it is hidden.
function factsOf(cell) {
    const at = panels.length ? inView(cell) : null;
    if (!at) return null;
    const i = shownPanel(), map = mapOf(i), k = at.row * map.cols + at.col;
    const kind = map.kind ? map.kind[k] : VALUE, value = map.value[k];
    const facts = {row: rowItems[cell.row], col: colItems[cell.col], kind, value,
        hidden: map.hidden ? map.hidden[at.row] : 0};
    if (kind === MASKED) facts.text = t("masked");
    else if (kind === NOT_FINITE) {
        facts.text = Number.isFinite(value) ? t("not-finite") : String(value);
    } else {
        facts.text = exactly(value, errorOf(sourceOf(i), value));
        Object.assign(facts, rankOf(map, at.row, at.col));
    }
    facts.twin = twinFacts(i, at, k);
    return facts;
}

// {text, rank, count} of the same cell of the twin; null if there is no twin or no number in the
// cell.
function twinFacts(i, at, k) {
    const twin = shownTwin(i), map = twin && mapFrom(twin);
    if (!map || (map.kind && map.kind[k] !== VALUE)) return null;
    return {text: exactly(map.value[k], errorOf(twin, map.value[k])),
        ...rankOf(map, at.row, at.col)};
}

function cellText(cell) {
    const f = factsOf(cell);
    if (!f) return "";
    const rank = f.rank ? `, ${t("cell.rank", {rank: f.rank, n: f.count})}` : "";
    const twin = f.twin
        ? `; ${t("cell.twin", {twin: twinWord(), value: f.twin.text, rank: f.twin.rank})}` : "";
    return t("cell", {row: rowWord, from: f.row.place, fromText: f.row.text, column: colWord,
        to: f.col.place, toText: f.col.text, value: f.text}) + rank + twin;
}

function make(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);
    return node;
}

const token = item => make("span", "token", make("bdi", "", item.text),
    item.text === item.place ? "" : make("sub", "", item.place));

function pairLine(f) {
    return make("span", "pair", token(f.row), make("span", "to", "→"), token(f.col));
}

// The raw text of a token if its label differs; invisible characters are escaped.
const escaped = text => JSON.stringify(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
    c => `\\u{${c.codePointAt(0).toString(16)}}`);

function rawLines(f) {
    const lines = [];
    for (const [word, item] of [[rowWord, f.row], [colWord, f.col]]) {
        if (item.raw === null) continue;
        lines.push(make("span", "raw",
            ...tNodes("cell.raw", {axis: word, text: make("bdi", "", escaped(item.raw))})));
    }
    return lines;
}

function rankLine(f) {
    return f.rank ? make("span", "rank", t("cell.rank.row", {rank: f.rank, n: f.count})) : "";
}

function twinLine(f) {
    return f.twin ? make("span", "rank twin-value", `${twinWord()} `, make("b", "", f.twin.text),
        ` ${t("cell.twin.rank", {rank: f.twin.rank})}`) : "";
}

function drawReadout() {
    const f = factsOf(cursor()), box = byId("readout");
    box.replaceChildren();
    byId("cell").setAttribute("aria-label", cellText(cursor()));
    const at = inView(cursor());
    byId("grid-row").setAttribute("aria-rowindex", (at?.row ?? 0) + 1);
    byId("cell").setAttribute("aria-colindex", (at?.col ?? 0) + 1);
    byId("cell").setAttribute("aria-selected", String(state.locked));
    if (!f) return;
    box.append(pairLine(f), make("span", "value", f.text), rankLine(f), twinLine(f));
    if (view.hiding) box.append(make("span", "rank", t("cell.hidden", {share: percent(f.hidden)})));
    if (state.locked) box.append(make("span", "lock", t("cell.locked")));
}

function showTip(cell, event) {
    const tip = byId("tip"), f = cell && factsOf(cell);
    tip.hidden = !f || event.pointerType === "touch";
    if (tip.hidden) return;
    const key = `${shownPanel()} ${state.frame} ${cell.row} ${cell.col}`;
    if (tip.dataset.key !== key) {
        tip.dataset.key = key;
        const line = make("span", "line", make("span", "value", f.text), " ", rankLine(f));
        tip.replaceChildren(pairLine(f), line, twinLine(f), ...rawLines(f));
    }
    placeTip(tip, event);
}

function placeTip(tip, event) {
    const box = tip.getBoundingClientRect(), gap = 16;
    const beside = (at, size, end) =>
        Math.max(at + gap + size > end ? at - gap - size : at + gap, 4);
    const x = beside(event.clientX, box.width, innerWidth);
    const y = beside(event.clientY, box.height, innerHeight);
    tip.style.transform = `translate(${x}px, ${y}px)`;
}

// -- strips: the tokens in a line, coloured by the chosen row ------------------------------------

function buildStrip(box, items, onChoose, word) {
    box.replaceChildren(...items.map((item, i) => {
        const chip = make("button", "chip", make("bdi", "", item.text));
        chip.type = "button";
        chip.tabIndex = -1;
        chip.title = t("strip", {axis: word, place: item.place});
        chip.addEventListener("click", () => onChoose(i));
        return chip;
    }));
}

const MOST_NUMBERS = 64;
function buildStrips() {
    const chooseRow = i => chooseFromStrip({row: i, col: state.col});
    const chooseCol = i => chooseFromStrip({row: state.row, col: i});
    // Hide the strip of many numbered features, such as those of --desk, because their labels are
    // only numbers.
    byId("strip").hidden = colItems.length > MOST_NUMBERS &&
        colItems.every(item => item.text === item.place);
    byId("row-strip").hidden = same;
    if (!same) buildStrip(byId("row-strip"), rowItems, chooseRow, rowWord);
    buildStrip(byId("strip"), colItems, same ? chooseRow : chooseCol, same ? rowWord : colWord);
}

function chooseFromStrip(cell) {
    if (!view.rows.includes(cell.row) || !view.cols.includes(cell.col)) return;
    state.hover = null;
    [state.row, state.col] = [cell.row, cell.col];
    scrollToCursor();
    setLock(true);
}

let stripKey = "";
function drawStrips() {
    const cell = cursor(), i = shownPanel();
    const key = [i, state.frame, cell.row, same ? 0 : cell.col, state.find].join(" ");
    const map = panels.length ? mapOf(i) : null;
    const fresh = map === stripMap && theme === stripTheme && scaleOf(i) === stripScale;
    if (key === stripKey && fresh) {
        markColumn(cell);
        return;
    }
    [stripKey, stripMap, stripTheme, stripScale] = [key, map, theme, scaleOf(i)];
    colourStrip(byId("strip").children, cell, i);
    if (!same)
        [...byId("row-strip").children].forEach(
            (chip, r) => chip.classList.toggle("looking", r === cell.row));
    markColumn(cell);
    showChip(byId(same ? "strip" : "row-strip"), cell.row);
}
let stripMap = null, stripTheme = null, stripScale = null;

function colourStrip(chips, cell, i) {
    const at = view.rows.indexOf(cell.row), map = mapOf(i);
    const column = new Map(view.cols.map((c, k) => [c, k]));
    const scale = scaleOf(i), colours = palette();
    for (let c = 0; c < chips.length; c++) {
        const chip = chips[c], k = column.get(c);
        const cut = !map || at < 0 || k === undefined;
        const kind = cut ? MASKED : map.kind ? map.kind[at * map.cols + k] : VALUE;
        const has = kind === VALUE;
        const step = has ? Math.round(255 * scale.position(map.value[at * map.cols + k])) : 0;
        chip.style.background = has ? cssColor(colours, step) : "";
        chip.style.color = has ? inkOn(colours, step) : "";
        chip.classList.toggle("gone", cut);
        chip.classList.toggle("masked", !cut && !has);
        chip.classList.toggle("looking", same && c === cell.row);
        chip.classList.toggle("found", state.find !== "" && isFound(colItems[c]));
    }
}

// Scroll a long strip, not the page, to a token. The positions of its tokens are measured once per
// width, because measuring at every move would force the browser to lay out the page each time.
const measured = new Map();
function showChip(box, i) {
    if (!measured.has(box))
        measured.set(box, {height: box.clientHeight, long: box.scrollHeight > box.clientHeight,
            tops: Array.from(box.children, chip => chip.offsetTop), at: box.scrollTop});
    const m = measured.get(box), top = m.tops[i];
    if (!m.long || top === undefined) return;
    if (top < m.at || top + 28 > m.at + m.height) {
        m.at = Math.max(0, m.tops.find(t => t >= top - m.height / 2) - m.tops[0]); // whole lines
        box.scrollTop = m.at;
    }
}

let markedChip = null;
function markColumn(cell) {
    markedChip?.classList.remove("looked-at");
    markedChip = byId("strip").children[cell.col] ?? null;
    markedChip?.classList.add("looked-at");
}

// -- the row as a table --------------------------------------------------------------------------

const FEW_ROWS = 8, MOST_ROWS = 300;

// The values of a row, [value, item], greatest first, without columns that have no value.
function rowValues(i, at) {
    const map = mapOf(i), source = shownTwin(i), twin = source && mapFrom(source), list = [];
    view.cols.forEach((c, k) => {
        const j = at * map.cols + k, other = twin && (!twin.kind || twin.kind[j] === VALUE);
        if (!map.kind || map.kind[j] === VALUE)
            list.push([map.value[j], colItems[c], c, other ? twin.value[j] : NaN]);
    });
    return list.sort((a, b) => b[0] - a[0]);
}

function drawTable() {
    const cell = cursor(), at = view.rows.indexOf(cell.row);
    byId("row").hidden = at < 0 || !view.cols.length;
    if (byId("row").hidden) return;
    const i = shownPanel(), list = rowValues(i, at);
    const shown = list.slice(0, state.wholeRow ? MOST_ROWS : FEW_ROWS);
    const most = Math.max(...list.map(([value]) => Math.abs(value)), 0) || 1;
    byId("row-title").replaceChildren(...tNodes("table.title",
        {row: rowWord, token: token(rowItems[cell.row]), value: valueWord}));
    byId("row-more").hidden = list.length <= FEW_ROWS;
    byId("row-more").textContent = state.wholeRow ? t("list.first", {n: FEW_ROWS})
        : t("list.all", {n: list.length});
    const mostTwin = Math.max(...list.map(line => Math.abs(line[3]) || 0), 0) || 1;
    const amount = (value, source, most) => [
        make("td", "number", rowNumber(value, source, most)),
        make("td", "row-bars", barOf(Math.abs(value) / most))];
    const twin = shownTwin(i);
    const line = ([value, item, c, other], rank) => make("tr", c === cell.col ? "here" : "",
        make("td", "number", String(rank + 1)), make("td", "", token(item)),
        ...amount(value, sourceOf(i), most),
        ...(twin ? amount(other, twin, mostTwin) : []));
    const names = [t("rank"), colWord, valueWord, "", ...(twin ? [twinWord(), ""] : [])];
    const head = make("thead", twin ? "" : "unseen",
        make("tr", "", ...names.map(text => make(text ? "th" : "td", "", text))));
    byId("row-body").replaceChildren(
        make("table", "", head, make("tbody", "", ...shown.map(line))));
    if (state.wholeRow && list.length > MOST_ROWS)
        byId("row-body").append(make("p", "small", t("table.cut", {n: MOST_ROWS, all: list.length})));
    byId("row-body").append(...choicesOf(rowItems[cell.row]));
}

// What a row chose from lists, such as a token's experts in each layer, with weights in thousandths.
function choicesOf(item) {
    if (!data.choices.length || item.from !== item.to) return [];
    const line = ({name, count, used, numbers, weights}) => {
        const at = item.from * used, order = [...Array(used).keys()];
        order.sort((a, b) => weights[at + b] - weights[at + a]);
        const chosen = order.map(k => `${numbers[at + k]} (${(weights[at + k] / 1000).toFixed(2)})`);
        return make("tr", "", make("td", "", given(name)), make("td", "", chosen.join(", ")),
            make("td", "number", t("choices.of", {n: used, all: count})));
    };
    return [make("h3", "", given(data.choice_title ?? t("choices"))),
        make("table", "choices", make("tbody", "", ...data.choices.map(line)))];
}

// A number far below the greatest of its row is only reported as small.
function rowNumber(value, source, most) {
    if (Number.isNaN(value)) return "–";
    if (most >= 0.01 && most < 1000 && value >= 0 && value < 0.00005) return "<0.0001";
    return exactly(value, errorOf(source, value));
}

function barOf(share) {
    const bar = make("i", "row-bar");
    bar.style.width = `${100 * Math.min(share || 0, 1)}%`;
    return bar;
}

function toggleWholeRow() {
    state.wholeRow = !state.wholeRow;
    drawTable();
}

// -- notes on precision --------------------------------------------------------------------------

function precisionNote() {
    const which = t(data.negative ? "note.magnitude" : "note.max");
    const size = block > 1 ? t("note.cell", {n: block, which}) : "";
    if (data.bits === 32 || panels[shownPanel()]?.exact) return size ? size + t("note.exact") : "";
    const most = panels.reduce((worst, p) => Math.max(worst, reach(p)), 0);
    const error = panels.reduce((worst, p) => Math.max(worst, errorOf(p, reach(p))), 0);
    return size + t("note.bits",
        {bits: data.bits, error: Number(error.toPrecision(1)), most: short(most)});
}

function hiddenNote() {
    const map = panels.length ? mapOf(shownPanel()) : null;
    if (!view.hiding || !map?.hidden) return "";
    const shares = [...map.hidden];
    const mean = shares.reduce((a, b) => a + b, 0) / Math.max(shares.length, 1);
    const names = [...state.hidden].map(text => `“${text}”`), more = names.length - 6;
    const list = names.slice(0, 6).join(", ") + (more > 0 ? t("note.more", {n: more}) : "");
    return t("note.hidden", {list, mean: percent(mean), value: valueWord,
        least: percent(Math.min(...shares)), most: percent(Math.max(...shares))}) +
        t(view.rescaled ? "note.rescaled" : "note.not-rescaled");
}

function drawNotes() {
    const notes = [precisionNote(), hiddenNote(), frameNote(), viewNote()];
    const pooled = state.view === "map" && place?.pooled || [1, 1];
    if (pooled[0] > 1 || pooled[1] > 1)
        notes.push(t("note.pixel", {rows: pooled[0] * block, columns: pooled[1] * block}));
    const scale = state.view === "map" && scaleOf(shownPanel());
    if (scale?.clippedHigh || scale?.clippedLow)
        notes.push(t("note.clipped"));
    byId("notes").replaceChildren(...notes.filter(Boolean).map(text => make("li", "", text)));
}
