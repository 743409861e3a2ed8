// The table: sorted by a column, filtered by roles and words.

const rowOf = new Map();

const matchesFilter = h => state.filter.toLowerCase().split(/\s+/).filter(Boolean).every(word => {
    const name = nameOf(h).toLowerCase();
    return name === word || (/^l\d+$/.test(word) && name.startsWith(`${word}h`)) ||
        rolesOf(h).some(role => role.toLowerCase().includes(word));
});

function sortedHeads() {
    const sign = state.descending ? -1 : 1;
    return heads.map((_, h) => h).filter(h => isOn(h) && matchesFilter(h)).sort((a, b) => {
        if (state.sort < 0) return sign * (a - b);
        const x = valueOf(state.sort, a), y = valueOf(state.sort, b);
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return sign * (x - y) || a - b;
    });
}

function headerOf(c) {
    const button = make("button", "", c < 0 ? "head" : isolated(wordsOf(c))), cell = make("th", "", button);
    button.type = "button";
    cell.scope = "col";
    if (c >= 0) button.title = columns[c].text ?? "";
    if (state.sort === c) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    button.addEventListener("click", () => {
        state.descending = state.sort === c ? !state.descending : c >= 0;
        state.sort = c;
        update();
        byId("table").querySelector("[aria-sort] button")?.focus();
    });
    return cell;
}

function drawTable() {
    const order = sortedHeads(), shown = order.slice(0, state.rows);
    const first = [...new Set([state.x, state.y, state.colour])];
    const rest = columns.map((_, c) => c).filter(c => !first.includes(c)), shownColumns = [...first, ...rest];
    const header = make("tr", "", headerOf(-1), ...shownColumns.map(headerOf), make("th", "", "roles"));
    rowOf.clear();
    const body = make("tbody", "", ...shown.map(h => {
        const row = make("tr", "", make("td", "", nameOf(h)), ...shownColumns.map(c => make("td", "", tidy(valueOf(c, h)))),
            make("td", "text", isolated(heads[h].roles.map(role => role.name).join(", "))));
        row.dataset.head = h;
        rowOf.set(h, row);
        return row;
    }));
    byId("table").replaceChildren(make("thead", "", header), body);
    byId("shown").textContent = `${order.length} of ${heads.length} heads`;
    byId("more").hidden = order.length <= shown.length;
    byId("more").textContent = `show all ${order.length}`;
}
