// Information about a map in addition to its cells: the card (role, sentences, measures with their
// chance levels) and the table of scores of all maps.

function drawTitle() {
    const i = shownPanel(), panel = panels[i];
    byId("name").textContent = panel?.name ?? "";
    byId("badge").textContent = panel?.badge ?? "";
    byId("badge").hidden = !panel?.badge;
    byId("note").textContent = panel?.note ?? "";
    byId("overview-now").textContent = state.peek >= 0 ? panel.name : "";
    drawCard(panel);
}

// The sentence of a head's strongest link (src/show/show_figure.c).
const LINK = /^“(?<from>.+)” attends to “(?<to>.+)”: (?<weight>[\d.]+)(?: \([^()]*: (?<mean>[\d.]+)\))?\.$/;
function translated(sentence) {
    const link = LINK.exec(sentence)?.groups;
    return !link ? sentence : t(link.mean ? "card.link" : "card.link.only", link);
}

const FEW_MEASURES = 6;
function drawCard(panel) {
    const sentences = (panel?.detail ?? "").split("\n").filter(Boolean);
    const measures = panel?.measures ?? [];
    byId("card").hidden = !sentences.length && !measures.length;
    byId("detail").replaceChildren(...sentences.map(text => {
        const line = make("p", "", translated(text));
        line.dir = "auto";
        if (state.frame >= 0 && LINK.test(text)) line.style.visibility = "hidden"; // it is of the figure itself
        return line;
    }));
    const shown = state.allMeasures ? measures : measures.slice(0, FEW_MEASURES);
    byId("measures").replaceChildren(...shown.flatMap(measureLine));
    byId("measures-more").hidden = measures.length <= FEW_MEASURES;
    byId("measures-more").textContent =
        state.allMeasures ? t("measures.fewer") : t("measures.all", {n: measures.length});
}

// A line with a name, a bar with a tick at the chance level, the number, and how it was measured.
function measureLine(m) {
    const most = m.most > 0 ? m.most : 1, part = v => Math.min(Math.max(v / most, 0), 1);
    const bar = make("span", "gauge"), fill = make("i", "fill");
    bar.setAttribute("aria-hidden", "true");
    fill.style.width = `${100 * part(m.value ?? 0)}%`;
    bar.append(fill);
    const chance = m.chance ? m.chance : null;
    if (chance !== null) {
        const tick = make("i", "chance");
        tick.style.left = `${100 * part(chance)}%`;
        bar.append(tick);
    }
    const about = [chance === null ? "" : t("measures.chance", {value: tidy(chance, most)}),
        m.count ? [m.count.toLocaleString(language), m.note ?? ""].join(" ").trim() : m.note ?? ""];
    return [make("dt", "", make("bdi", "", m.name ?? "")), make("dd", "gauge-cell", bar),
        make("dd", "number", tidy(m.value, most)),
        make("dd", "about", m.value === null ? "" : about.filter(Boolean).join(" · "))];
}

function toggleMeasures() {
    state.allMeasures = !state.allMeasures;
    drawCard(panels[shownPanel()]);
}

// -- scores --------------------------------------------------------------------------------------

const FEW_SCORES = 24;
const scores = {column: -1, descending: false, all: false}; // column -1: by index, -2: by role

function scoreOrder() {
    const list = panels.map((_, i) => i), column = data.columns[scores.column];
    const sign = scores.descending ? -1 : 1;
    if (scores.column === -1) return scores.descending ? list.reverse() : list;
    const key = column ? i => column.values[i] : i => panels[i].badge ?? null;
    const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;
    return list.sort((a, b) => (key(a) === null) - (key(b) === null) ||
        sign * compare(key(a), key(b)) || a - b);
}

function buildScores() {
    byId("measures-more").addEventListener("click", toggleMeasures);
    byId("scores-more").addEventListener("click", () => {
        scores.all = !scores.all;
        drawScores();
    });
    byId("scores").hidden = !data.columns.length || !panels.length;
    if (byId("scores").hidden) return;
    const heads = [[-1, t("scores.map"), null, true],
        ...(hasBadges ? [[-2, t("overview.role"), null, true]] : []),
        ...data.columns.map((c, i) => [i, columnName(i), c.about, Boolean(c.ascending)])];
    byId("scores-head").append(...heads.map(scoreHead));
    const abouts = data.columns.filter(column => column.about);
    byId("scores-about").append(...abouts.flatMap(column =>
        [make("dt", "", column.name ?? ""), make("dd", "", column.about)]));
    drawScores();
}

function scoreHead([column, text, about, ascending]) {
    const button = make("button", "sort", text);
    const cell = make("th", column < 0 ? "" : "number", button);
    button.type = "button";
    if (about) button.title = about;
    cell.dataset.column = column;
    cell.scope = "col";
    button.addEventListener("click", () => {
        scores.descending = scores.column === column ? !scores.descending : !ascending;
        scores.column = column;
        drawScores();
        say(t(scores.descending ? "scores.down" : "scores.up", {column: text}));
    });
    return cell;
}

function drawScores() {
    for (const cell of byId("scores-head").children) {
        const on = Number(cell.dataset.column) === scores.column;
        cell.setAttribute("aria-sort",
            on ? scores.descending ? "descending" : "ascending" : "none");
    }
    const most = data.columns.map(column =>
        column.values.reduce((best, v) => Math.max(best, Math.abs(v ?? 0)), 0) || 1);
    const lines = scoreOrder().slice(0, scores.all ? Infinity : FEW_SCORES).map(i => {
        const name = make("button", "link", panels[i].name);
        name.type = "button";
        const line = make("tr", hasRole(i) ? "" : "other", make("th", "", name),
            ...(hasBadges ? [make("td", "", make("bdi", "", panels[i].badge ?? ""))] : []),
            ...data.columns.map((column, k) => scoreCell(column.values[i], most[k])));
        line.firstChild.scope = "row";
        line.dataset.panel = i;
        line.addEventListener("click", () => choosePanel(i));
        return line;
    });
    byId("scores-body").replaceChildren(...lines);
    byId("scores-more").hidden = panels.length <= FEW_SCORES;
    byId("scores-more").textContent = scores.all ? t("list.first", {n: FEW_SCORES})
        : t("scores.all", {n: panels.length});
    markScores();
}

function scoreCell(value, most) {
    const cell = make("td", "number", tidy(value, most));
    if (value !== null) cell.style.setProperty("--part", `${100 * Math.abs(value) / most}%`);
    return cell;
}

function markScores() {
    for (const line of byId("scores-body").rows)
        line.classList.toggle("here", Number(line.dataset.panel) === state.panel);
}
