// The selected view, and its state in the address of the page: #view=lines&head=L3H7&cell=10,2.

const VIEWS = ["map", "lines", "model", "neurons"].map(name =>
    [name, t(`view.${name}`), t(`view.${name}.about`)]);
const isFull = () => panels.length > 0;
const canView = name => name === "map" || (isFull() && VIEWS.some(([v]) => v === name) &&
    (name !== "neurons" || panels.some(panel => panel.queries)) &&
    (name !== "model" || panels.length > 1));

function buildViews() {
    if (!canView(state.view)) state.view = "map";
    const list = VIEWS.filter(([name]) => canView(name));
    byId("view").hidden = list.length < 2;
    buildChoices(byId("view"), "view", list, state.view, setView);
    buildLines();
    buildNeurons();
    markView();
}

function setView(name) {
    if (!canView(name)) return;
    state.view = name;
    state.peek = -1;
    state.side = null;
    if (name === "neurons" && !canNeurons(state.panel))
        showPanel(panels.findIndex(panel => panel.queries));
    markView();
    drawOverview();
    drawFocus();
    say(t("view.now", {view: t(`view.${name}.about`)}));
}

// Show the parts of the page that belong to the view.
function markView() {
    for (const input of document.querySelectorAll('input[name="view"]'))
        input.checked = input.value === state.view;
    for (const [name] of VIEWS) {
        byId("main").classList.toggle(`view-${name}`, state.view === name);
        for (const part of document.querySelectorAll(`.for-${name}`))
            part.hidden = state.view !== name;
    }
    if (state.view === "map") byId("twin-button").hidden = !panels.some(panel => panel.twin);
    measured.clear();
}

const viewNote = () => state.view === "lines" ? linesNote()
    : state.view === "neurons" ? neuronsNote() : "";

// -- two maps beside each other ------------------------------------------------------------------

// Keep the chosen map beside maps that are chosen later. Calling it again ends this.
function toggleBeside(i = state.panel) {
    state.beside = state.beside === i || (state.beside >= 0 && i === state.panel) ? -1 : i;
    byId("beside")?.setAttribute("aria-pressed", String(state.beside >= 0));
    if (state.view !== "map") setView("map");
    drawFocus();
    say(state.beside >= 0 ? t("beside.on", {map: panels[state.beside].name}) : t("beside.off"));
}

// -- the address ---------------------------------------------------------------------------------

const canShare = !data.only_view && location.protocol !== "about:";
const REMEMBER_MS = 400; // browsers limit how often an address changes
let rememberTimer = 0, address = location.hash; // the last address read or written

function placeText() {
    const text = new URLSearchParams(), first = {scale: data.scale, cmap: data.cmap,
        range: data.range, between: "all"};
    text.set("view", state.view);
    text.set("head", panels[state.panel].name);
    text.set("cell", `${state.row},${state.col}`);
    if (state.locked) text.set("locked", state.side ?? "cell");
    if (state.view === "lines") text.set("heads", [...state.lit].map(i => panels[i].name).join(","));
    if (state.beside >= 0) text.set("beside", panels[state.beside].name);
    for (const name in first) if (state[name] !== first[name]) text.set(name, state[name]);
    if (state.frame >= 0) text.set("frame", frames[state.frame].at);
    live?.tell(text);
    return text.toString().replace(/%2C/g, ",");
}

function rememberPlace() {
    if (!canShare || rememberTimer) return;
    rememberTimer = setTimeout(() => {
        rememberTimer = 0;
        if (location.hash !== address) return; // a reader changed it: onAddress() follows
        history.replaceState(null, "", `#${placeText()}`);
        address = location.hash;
    }, REMEMBER_MS);
}

// Restore the valid parts of an address and ignore others.
function restorePlace() {
    if (!canShare || location.hash.length < 2) return;
    const text = new URLSearchParams(location.hash.slice(1));
    const panelOf = name => panels.findIndex(panel => panel.name === name);
    const head = panelOf(text.get("head")), beside = panelOf(text.get("beside"));
    if (head >= 0) {
        state.panel = head;
        state.lit = new Set([head]);
        chooseStrongestCell();
    }
    if (beside >= 0) state.beside = beside;
    state.frame = frames.findIndex(frame => String(frame.at) === text.get("frame"));
    const lit = (text.get("heads") ?? "").split(",").map(panelOf)
        .filter(i => i >= 0 && panels[i].group === panels[state.panel].group);
    if (lit.length) state.lit = new Set(lit);
    const cell = /^(\d{1,9}),(\d{1,9})$/.exec(text.get("cell") ?? "");
    if (cell && Number(cell[1]) < rowItems.length && Number(cell[2]) < colItems.length)
        [state.row, state.col] = [Number(cell[1]), Number(cell[2])];
    if (["cell", "row", "col"].includes(text.get("locked"))) {
        state.locked = true;
        state.side = text.get("locked") === "cell" ? null : text.get("locked");
    }
    const known = {scale: usableScales, cmap: data.cmaps.map(c => c.name),
        range: usableRanges.map(([value]) => value), between: ["all", "aa", "ab", "ba", "bb"]};
    for (const name in known) if (known[name].includes(text.get(name))) state[name] = text.get(name);
    if (canView(text.get("view"))) state.view = text.get("view");
    if (state.view === "neurons" && !canNeurons(state.panel)) state.view = "map";
}

function onAddress() {
    address = location.hash;
    if (live?.follow()) return;
    restorePlace();
    markView();
    markThumbs();
    markScores();
    markChoices();
    scales.clear();
    showPlayer();
    drawAll();
}
