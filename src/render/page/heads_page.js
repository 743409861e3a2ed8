// The page as a whole: controls, the selection of heads, and the address, which holds the state.

function writeAddress() {
    const parts = [`x=${encodeURIComponent(columns[state.x].name)}`, `y=${encodeURIComponent(columns[state.y].name)}`,
        `colour=${encodeURIComponent(columns[state.colour].name)}`];
    if (state.chosen.length) parts.push(`heads=${state.chosen.map(nameOf).join(",")}`);
    if (state.roles.size) parts.push(`roles=${[...state.roles].map(encodeURIComponent).join(",")}`);
    parts.push(`sort=${state.descending ? "-" : ""}${state.sort < 0 ? "head" : encodeURIComponent(columns[state.sort].name)}`);
    if (state.filter) parts.push(`filter=${encodeURIComponent(state.filter)}`);
    history.replaceState(null, "", `#${parts.join("&")}`);
}

// Read the address. State that the address cannot name does not change.
function readAddress() {
    const decode = text => {
        try { return decodeURIComponent(text); } catch { return ""; }
    };
    const column = (text, other) => {
        const c = columns.findIndex(column => column.name === decode(text));
        return c < 0 ? other : c;
    };
    for (const part of location.hash.slice(1).split("&")) {
        const [name, text = ""] = part.split("=", 2);
        if (name === "x" || name === "y" || name === "colour") state[name] = column(text, state[name]);
        if (name === "heads")
            state.chosen = [...new Set(text.split(",").map(n => byName.get(n)).filter(h => h !== undefined))].slice(0, FEW_CARDS);
        if (name === "roles") state.roles = new Set(text.split(",").map(decode).filter(role => allRoles.has(role)));
        if (name === "filter") state.filter = decode(text).slice(0, 100);
        if (name === "sort") {
            state.descending = text.startsWith("-");
            const sorted = text.replace(/^-/, "");
            state.sort = sorted === "head" ? -1 : column(sorted, state.sort);
        }
    }
}

const allRoles = new Map();
heads.forEach((_, h) => rolesOf(h).forEach(role => allRoles.set(role, (allRoles.get(role) ?? 0) + 1)));

function drawControls() {
    for (const name of ["x", "y", "colour"]) byId(name).value = state[name];
    byId("filter").value = state.filter;
    for (const button of byId("roles").children) button.setAttribute("aria-pressed", state.roles.has(button.dataset.role));
    byId("axes-text").textContent = columns[state.x].luck !== null || columns[state.y].luck !== null
        ? "Dashed: the best head's score under the permutation null (95th percentile)." : "";
}

function update() {
    drawControls();
    drawTable();
    drawScatter();
    drawGrid();
    drawCards();
    mark();
    writeAddress();
}

function choose(h, beside) {
    if (h === undefined) return;
    const there = state.chosen.includes(h);
    if (!beside) state.chosen = [h];
    else if (there) state.chosen = state.chosen.filter(other => other !== h);
    else state.chosen = [...state.chosen, h].slice(-FEW_CARDS);
    drawScatter();
    drawCards();
    mark();
    writeAddress();
}

function light(h) {
    if (h === state.lit) return;
    state.lit = h;
    mark();
}

const headAt = event => {
    const element = event.target.closest?.("[data-head]");
    return element && !element.classList.contains("hcard") ? +element.dataset.head : -1;
};

function makeControls() {
    for (const name of ["x", "y", "colour"]) {
        byId(name).append(...columns.map((_, c) => {
            const option = make("option", "", wordsOf(c));
            option.value = c;
            return option;
        }));
        byId(name).addEventListener("change", event => {
            state[name] = +event.target.value;
            update();
        });
    }
    byId("roles").append(...[...allRoles].sort((a, b) => b[1] - a[1]).map(([role, count]) => {
        const button = make("button", "", isolated(role), ` ${count}`);
        button.type = "button";
        button.dataset.role = role;
        button.addEventListener("click", () => {
            state.roles.has(role) ? state.roles.delete(role) : state.roles.add(role);
            update();
        });
        return button;
    }));
    byId("filter").addEventListener("input", event => {
        state.filter = event.target.value;
        drawTable();
        mark();
        writeAddress();
    });
    byId("more").addEventListener("click", () => {
        state.rows = Infinity;
        drawTable();
        mark();
    });
}

function switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
}

function listen() {
    for (const id of ["scatter", "layers", "table"]) {
        byId(id).addEventListener("pointerover", event => light(headAt(event)));
        byId(id).addEventListener("pointerleave", () => light(-1));
        byId(id).addEventListener("click", event => {
            const h = headAt(event);
            if (h >= 0) choose(h, event.ctrlKey || event.shiftKey || event.metaKey);
        });
    }
    byId("layers").addEventListener("focusin", event => light(headAt(event)));
    byId("layers").addEventListener("keydown", event => {
        const h = headAt(event), next = h < 0 ? undefined : stepFrom(h, event.key);
        if (next === undefined) return;
        event.preventDefault();
        squares[h].tabIndex = -1;
        squares[next].tabIndex = 0;
        squares[next].focus();
    });
    byId("theme").addEventListener("click", switchTheme);
    addEventListener("keydown", event => {
        if (event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key === "d") switchTheme();
        if (event.key === "/") {
            event.preventDefault();
            byId("filter").focus();
        }
    });
    let width = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth === width) return;
        width = innerWidth;
        drawScatter();
        mark();
    });
    addEventListener("hashchange", () => {
        readAddress();
        update();
    });
}

byId("app").hidden = false;
makeControls();
readAddress();
listen();
update();
