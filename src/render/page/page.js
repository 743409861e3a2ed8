// The tools above the map, keys for the whole page, themes, printing, and the start.

function buildChoices(box, name, texts, chosen, onChoose) {
    for (const [value, text, title] of texts) {
        const input = document.createElement("input");
        input.type = "radio";
        input.name = name;
        input.value = value;
        input.checked = value === chosen;
        input.addEventListener("change", () => onChoose(value));
        const label = make("label", "", input, make("span", "", text));
        if (title) label.title = title;
        box.append(label);
    }
}

function choose(name, value) {
    state[name] = value;
    markChoices();
    drawAll();
}

// Set the controls to the state.
function markChoices() {
    for (const name of ["scale", "range", "view"])
        for (const input of document.querySelectorAll(`input[name="${name}"]`))
            input.checked = input.value === state[name];
    byId("cmap").value = state.cmap;
    byId("lines-between").value = state.between;
    byId("beside")?.setAttribute("aria-pressed", String(state.beside >= 0));
}

// The log scale requires values above 0.
const usableScales = SCALES.filter(kind =>
    kind !== "log" || !(data.negative || (data.range === "fixed" && data.hi <= 0)));

const usableRanges = [["shared", t("range.shared"), t("range.shared.about")],
    ["panel", t("range.panel"), t("range.panel.about")]];
if (data.range === "fixed")
    usableRanges.push(["fixed", t("range.fixed"),
        t("range.fixed.about", {lo: short(data.lo), hi: short(data.hi)})]);

// Open the sheet at its top, not at its only button.
function openHelp() {
    byId("help-sheet").showModal();
    byId("help-title").focus();
}

function buildTools() {
    for (const cmap of data.cmaps) byId("cmap").append(new Option(cmap.name, cmap.name));
    byId("cmap").value = state.cmap;
    byId("cmap").addEventListener("change", event => choose("cmap", event.target.value));
    buildChoices(byId("scale"), "scale", usableScales.map(kind => [kind, t(`scale.${kind}`)]), state.scale,
        value => choose("scale", value));
    buildChoices(byId("range"), "range", usableRanges, state.range,
        value => choose("range", value));
    byId("theme").addEventListener("click", toggleTheme);
    byId("help").addEventListener("click", openHelp);
    byId("numbers").addEventListener("click", toggleNumbers);
    byId("row-only").addEventListener("click", toggleRowOnly);
    byId("beside").addEventListener("click", () => toggleBeside());
    if (panels.length < 2) byId("beside").remove();
    byId("twin-button").addEventListener("click", toggleTwin);
    byId("twin-button").hidden = !panels.some(panel => panel.twin);
    if (data.twin_name) byId("twin-button").textContent = given(data.twin_name);
    byId("previous").addEventListener("click", () => stepPanel(-1));
    byId("next").addEventListener("click", () => stepPanel(1));
    byId("row-more").addEventListener("click", toggleWholeRow);
    byId("numbers").setAttribute("aria-pressed", String(state.numbers));
    for (const menu of document.querySelectorAll("details.menu"))
        menu.addEventListener("toggle", keepInside);
    document.addEventListener("click", event => {
        for (const menu of document.querySelectorAll("details.menu[open]"))
            if (!menu.contains(event.target)) menu.open = false;
    });
}

// Move a menu's sheet into the window.
function keepInside(event) {
    const sheet = event.target.querySelector(".sheet");
    sheet.style.transform = "";
    if (!event.target.open) return;
    const box = sheet.getBoundingClientRect(), room = document.documentElement.clientWidth - 8;
    const shift = Math.min(0, room - box.right) || Math.max(0, 8 - box.left);
    sheet.style.transform = `translateX(${shift}px)`;
}

function toggleNumbers() {
    state.numbers = !state.numbers;
    byId("numbers").setAttribute("aria-pressed", String(state.numbers));
    if (state.view === "map") drawMap();
}

function toggleRowOnly() {
    state.rowOnly = !state.rowOnly;
    byId("row-only").setAttribute("aria-pressed", String(state.rowOnly));
    drawMarks();
    say(t(state.rowOnly ? "row.only" : "row.all"));
}

function toggleTwin() {
    if (byId("twin-button").hidden) return;
    state.twin = !state.twin;
    byId("twin-button").setAttribute("aria-pressed", String(state.twin));
    drawFocus();
}

// -- hiding tokens -------------------------------------------------------------------------------

function labelCounts() {
    const counts = new Map();
    for (const item of rowItems) counts.set(item.text, (counts.get(item.text) ?? 0) + 1);
    for (const item of colItems) if (!counts.has(item.text)) counts.set(item.text, 1);
    return [...counts].sort((a, b) => special.has(b[0]) - special.has(a[0]) || b[1] - a[1]);
}

function buildHiding() {
    byId("special").addEventListener("change", event => setHidden(
        [...special].filter(text => labelCounts().some(([own]) => own === text)),
        event.target.checked));
    byId("renorm").addEventListener("change", event => {
        state.rescale = event.target.checked;
        applyHiding();
    });
    byId("hide-filter").addEventListener("input", event => {
        const part = event.target.value.toLowerCase();
        for (const line of byId("hide-labels").children)
            line.hidden = !line.dataset.text.toLowerCase().includes(part);
    });
    byId("hide-none").addEventListener("click", () => setHidden([...state.hidden], false));
    listHiding();
}

// The labels that can be hidden.
function listHiding() {
    byId("hide-refused").hidden = canHide;
    byId("hide-all").hidden = !canHide;
    byId("special-line").hidden = true;
    byId("hide-none").disabled = !canHide;
    byId("renorm").disabled = !canHide || !canRescale;
    if (!canHide) {
        byId("hide-refused").textContent = t("hide.refused", {n: block});
        return;
    }
    const counts = labelCounts();
    const present = counts.map(([text]) => text).filter(text => special.has(text));
    byId("special-line").hidden = !present.length;
    byId("special-text").textContent = t("hide.special", {list: present.join(", ")});
    byId("renorm").checked = state.rescale;
    byId("hide-labels").replaceChildren(...counts.map(([text, count]) => hideLine(text, count)));
}

function hideLine(text, count) {
    const input = document.createElement("input");
    input.type = "checkbox";
    input.addEventListener("change", () => setHidden([text], input.checked));
    const line = make("label", "check", input, " ", make("bdi", "", text || t("hide.empty")));
    if (count > 1) line.append(make("span", "count", ` ×${count}`));
    line.dataset.text = text;
    return line;
}

function setHidden(texts, hide) {
    for (const text of texts) if (hide) state.hidden.add(text); else state.hidden.delete(text);
    applyHiding();
}

function applyHiding() {
    for (const line of byId("hide-labels").children)
        line.querySelector("input").checked = state.hidden.has(line.dataset.text);
    byId("special").checked = [...special].some(text => state.hidden.has(text));
    byId("hide").firstElementChild.textContent =
        state.hidden.size ? t("hide.count", {n: state.hidden.size}) : t("hide");
    byId("hide").classList.toggle("active", state.hidden.size > 0);
    chooseView(state.hidden, state.rescale);
    keepCellInView();
    drawAll();
}

// -- the colour bar ------------------------------------------------------------------------------

function rangeText() {
    if (state.range === "panel") return t("legend.panel", {map: panels[shownPanel()].name});
    if (state.range === "fixed") return t("legend.fixed");
    return panels.length > 1 ? t("legend.shared", {n: panels.length}) : "";
}

function drawLegend() {
    const scale = scaleOf(Math.min(shownPanel(), panels.length - 1)), colours = palette();
    const canvas = byId("bar"), context = canvas.getContext("2d");
    for (let i = 0; i < 256; i++) {
        context.fillStyle = cssColor(colours, i);
        context.fillRect(i, 0, 1, 1);
    }
    byId("bar-low").style.color = cssColor(colours, 0);
    byId("bar-high").style.color = cssColor(colours, 255);
    byId("bar-low").classList.toggle("on", scale.clippedLow);
    byId("bar-high").classList.toggle("on", scale.clippedHigh);
    const ends = [scale.lo, scale.middle(), scale.hi].map(short);
    byId("ticks").replaceChildren(...barTicks(scale).map(([at, text]) => {
        const tick = make("span", "", text);
        tick.style.left = `${100 * at}%`;
        return tick;
    }));
    byId("value-name").textContent = data.value_name ? valueWord : "";
    const kind = scale.kind === "linear" ? "" : t("legend.scale", {kind: t(`scale.${scale.kind}`)});
    byId("bar-note").textContent = [rangeText(), kind].filter(Boolean).join(" · ");
    byId("legend").setAttribute("aria-label",
        t("legend", {value: valueWord, low: ends[0], middle: ends[1], high: ends[2]}));
    const kinds = panels.length ? cellsOf(sourceOf(shownPanel())).kind : null;
    byId("key-masked").hidden = !kinds?.includes(MASKED);
    byId("key-bad").hidden = !kinds?.includes(NOT_FINITE);
}

function drawBarMark() {
    const f = factsOf(cursor()), mark = byId("bar-mark");
    mark.hidden = !f || f.kind !== VALUE;
    if (!mark.hidden) mark.style.left = `${100 * scaleOf(shownPanel()).position(f.value)}%`;
}

// -- finding -------------------------------------------------------------------------------------

function onFind() {
    state.find = byId("find").value.trim().toLowerCase();
    drawPicture();
    drawCursor();
    const count = matches().length;
    say(state.find ? t("find.count", {n: count}) : "");
    byId("find").classList.toggle("none", state.find !== "" && count === 0);
}

// Cells whose row matches. If the columns have other tokens, cells whose column matches also count.
function matches() {
    const rows = view.rows.filter(r => isFound(rowItems[r])).map(row => ({row, col: state.col}));
    if (same) return rows;
    const cols = view.cols.filter(c => isFound(colItems[c])).map(col => ({row: state.row, col}));
    return [...rows, ...cols];
}

function findNext(step) {
    const list = matches();
    if (!list.length) return;
    const here = list.findIndex(m => m.row === state.row && m.col === state.col);
    const next = here >= 0 ? (here + step + list.length) % list.length
        : step > 0 ? 0 : list.length - 1;
    moveTo(view.rows.indexOf(list[next].row), view.cols.indexOf(list[next].col));
}

// -- themes and paper ----------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const themeNow = () =>
    document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light");

function applyTheme() {
    state.dark = themeNow() === "dark";
    theme = null;
    drawAll();
}

function toggleTheme() {
    document.documentElement.dataset.theme = themeNow() === "dark" ? "light" : "dark";
    applyTheme();
    say(t(themeNow() === "dark" ? "theme.dark" : "theme.light"));
}

// Print in the light theme.
let screenTheme;
function beforePrint() {
    screenTheme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    thumbs.forEach(thumb => { thumb.seen = true; });
    applyTheme();
    drawOverview(Infinity);
}

function afterPrint() {
    if (screenTheme === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = screenTheme;
    applyTheme();
}

// -- keys ----------------------------------------------------------------------------------------

const cycle = (list, now) => list[(list.indexOf(now) + 1) % list.length];
const keys = [
    ["[", t("key.previous"), () => stepPanel(-1)],
    ["]", t("key.next"), () => stepPanel(1)],
    ["{", t("key.previous-group"), () => chooseGroup(-1)],
    ["}", t("key.next-group"), () => chooseGroup(1)],
    ["s", t("key.scale"), () => choose("scale", cycle(usableScales, state.scale))],
    ["c", t("key.colours"), () => choose("cmap", cycle(data.cmaps.map(c => c.name), state.cmap))],
    ["r", t("key.range"),
        () => choose("range", cycle(usableRanges.map(([value]) => value), state.range))],
    ["h", t("key.special"),
        () => { if (!byId("special-line").hidden) byId("special").click(); }],
    ["v", t("key.numbers"), toggleNumbers],
    ["f", t("key.row"), toggleRowOnly],
    ["b", t("key.beside"), () => toggleBeside()],
    ["l", t("key.view"), () => setView(cycle(
        VIEWS.map(([name]) => name).filter(canView), state.view))],
    ["n", t("key.twin"), toggleTwin],
    ["o", t("key.order"), () => setOrder(cycle(
        Array.from(byId("order").options, option => option.value), state.order))],
    ["p", t("key.play"), togglePlay],
    [",", t("key.back"), () => stepFrame(-1)],
    [".", t("key.on"), () => stepFrame(1)],
    ["t", t("key.table"), toggleWholeRow],
    ["/", t("key.find"), () => byId("find").focus()],
    ["+", t("key.in"), () => zoomBy(2)],
    ["-", t("key.out"), () => zoomBy(0.5)],
    ["d", t("key.theme"), toggleTheme],
    ["?", t("key.help"), openHelp]
];

function buildHelp() {
    const mapKeys = ["arrows", "ends", "pages", "enter", "escape"].map(name =>
        [t(`key.${name}`), t(`key.${name}.does`)]);
    const idle = [...(frames.length || live?.plays() ? [] : ["p", ",", "."]),
        ...(panels.some(panel => panel.twin) ? [] : ["n"]), ...(panels.length > 1 ? [] : ["b"])];
    for (const [key, text] of [...mapKeys, ...keys.filter(([key]) => !idle.includes(key))])
        byId("help-keys").append(make("dt", "", make("kbd", "", key)), make("dd", "", text));
    byId("help-text").textContent = t("help.text",
        {rows: given(data.row_axis), columns: given(data.col_axis)});
}

function onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || byId("help-sheet").open) return;
    if (event.key === "Escape") return onEscape();
    if (event.target.closest("input[type=search], select, textarea")) return;
    const found = keys.find(([key]) => key === event.key);
    if (!found || !panels.length) return;
    event.preventDefault();
    found[2]();
}

function onEscape() {
    const open = document.querySelector("details.menu[open]");
    if (open) {
        open.open = false;
        open.firstElementChild.focus();
    } else if (document.activeElement === byId("find")) {
        byId("find").value = "";
        onFind();
        byId("cell").focus();
    } else if (state.locked) setLock(false);
}

function onFindKey(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    findNext(event.shiftKey ? -1 : 1);
}

// -- start ---------------------------------------------------------------------------------------

function listen() {
    document.addEventListener("keydown", onKey);
    addEventListener("hashchange", onAddress);
    byId("find").addEventListener("input", onFind);
    byId("find").addEventListener("keydown", onFindKey);
    prefersDark.addEventListener("change", applyTheme);
    matchMedia("(forced-colors: active)").addEventListener("change", applyTheme);
    addEventListener("beforeprint", beforePrint);
    addEventListener("afterprint", afterPrint);
    let width = 0;
    new ResizeObserver(entries => {
        const now = Math.round(entries[0].contentRect.width);
        if (now === width) return;
        width = now;
        measured.clear();
        drawPicture();
        drawMarks();
        drawCurves();
        for (const thumb of thumbs) thumb.drawn = null;
        drawOverview();
    }).observe(byId("main"));
}

function start() {
    performance.mark("report-start");
    byId("app").hidden = false;
    chooseView(state.hidden, state.rescale);
    if (panels.length) {
        chooseFirstCell();
        state.lit = new Set(data.line_panels.length ? data.line_panels : [state.panel]);
        restorePlace();
    }
    buildTools();
    if (panels.length) buildViews();
    buildPlayer();
    buildCurves();
    buildScores();
    buildHiding();
    buildSaves();
    buildStrips();
    buildHelp();
    startMap();
    state.dark = themeNow() === "dark";
    markChoices();
    if (panels.length) buildOverview();
    drawAll();
    byId("maps").classList.toggle("locked", state.locked);
    if (panels.length) listen();
    else document.querySelector(".tools").hidden = byId("main").hidden = true;
    performance.mark("report-ready");
}

if (!byId("live-panel")) start(); // a live page starts with its first maps
