// All maps as thumbnails, one grid row per group or in the order of a score, with the badges of
// their roles. Thumbnails are drawn lazily when they become visible.

const thumbs = [];
let watcher = null;

const hasBadges = panels.some(panel => panel.badge);

function buildOverview() {
    const box = byId("overview-maps");
    watcher = new IntersectionObserver(entries => {
        for (const entry of entries) {
            const thumb = thumbs[Number(entry.target.dataset.panel)];
            thumb.seen = entry.isIntersecting;
            if (thumb.seen) waiting.add(thumb);
        }
        drawWaiting();
    }, {rootMargin: "200px"});
    panels.forEach((_, i) => { thumbs[i] = makeThumb(i); });
    const shape = Math.min(Math.max(colItems.length / rowItems.length || 1, 0.4), 2.5);
    box.style.setProperty("--shape", String(shape));
    box.classList.toggle("badges", hasBadges);
    box.addEventListener("pointerleave", () => peek(-1));
    box.addEventListener("keydown", onOverviewKey);
    byId("main").classList.toggle("single", panels.length <= 1);
    byId("overview-count").textContent = t("overview.count", {n: panels.length});
    byId("guide").textContent = given(data.guide ?? "");
    byId("guide").hidden = !data.guide;
    buildOrders();
    buildRoles();
    arrangeOverview();
    thumbs.forEach(thumb => watcher.observe(thumb.button));
}

// Arrange the thumbnails by layer, or in one list by role or by a score.
function arrangeOverview() {
    const groups = state.order === "index" ? groupList()
        : [{group: 0, list: orderBy(state.order), name: ""}];
    const box = byId("overview-maps");
    const most = Math.max(0, ...groups.map(g => g.list.length));
    const even = most <= 16 && groups.length > 1;
    box.classList.toggle("even", even);
    box.classList.toggle("sorted", state.order !== "index");
    box.classList.toggle("few", panels.length <= 16 && groups.length === 1);
    box.style.setProperty("--columns", even ? most : Math.min(most, 16));
    const heads = even && groups.every(g => g.list.length === most) ? [columnHeads(most)] : [];
    box.replaceChildren(...heads, ...groups.map(groupRow));
}

// -- order and roles -----------------------------------------------------------------------------

function orderBy(order) {
    const list = panels.map((_, i) => i);
    if (order === "role") {
        const key = i => panels[i].badge ?? "\uffff";
        return list.sort((a, b) => key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a - b);
    }
    const column = data.columns[Number(order)];
    if (!column) return list;
    const sign = column.ascending ? 1 : -1, value = i => column.values[i];
    return list.sort((a, b) => (value(a) === null) - (value(b) === null) ||
        sign * (value(a) - value(b)) || a - b);
}

const hasRole = i => state.role === null || panels[i].badge === state.role;

// The maps in the order of display; if a role is chosen, only its maps.
function shownOrder() {
    const list = state.order === "index" ? groupList().flatMap(g => g.list) : orderBy(state.order);
    return list.filter(hasRole);
}

const columnName = i => data.columns[i].name ?? t("overview.column", {n: i});

function buildOrders() {
    const orders = [["index", t("overview.index")], ...(hasBadges ? [["role", t("overview.role")]] : []),
        ...data.columns.map((column, i) => [String(i), columnName(i)])];
    byId("order-line").hidden = orders.length < 2;
    byId("order").append(...orders.map(([value, text]) => new Option(text, value)));
    byId("order").addEventListener("change", event => setOrder(event.target.value));
}

function setOrder(order) {
    state.order = order;
    byId("order").value = order;
    arrangeOverview();
    drawOverview();
    say(t("overview.sorted", {order: byId("order").selectedOptions[0]?.textContent ?? order}));
}

function buildRoles() {
    const counts = new Map();
    for (const {badge} of panels) if (badge) counts.set(badge, (counts.get(badge) ?? 0) + 1);
    byId("roles").hidden = counts.size === 0;
    const sorted = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    for (const [role, count] of sorted) {
        const number = make("span", "count", String(count));
        const chip = make("button", "role", make("bdi", "", role), number);
        chip.type = "button";
        chip.dataset.role = role;
        chip.setAttribute("aria-pressed", "false");
        chip.addEventListener("click", () => setRole(state.role === role ? null : role));
        byId("roles").append(chip);
    }
}

// Dim maps of other roles. The keys step through the maps of the chosen role.
function setRole(role) {
    state.role = role;
    for (const chip of byId("roles").querySelectorAll(".role"))
        chip.setAttribute("aria-pressed", String(chip.dataset.role === role));
    for (const {button, i} of thumbs) button.classList.toggle("other", !hasRole(i));
    for (const line of byId("scores-body").rows)
        line.classList.toggle("other", !hasRole(Number(line.dataset.panel)));
    if (role !== null && !hasRole(state.panel)) choosePanel(shownOrder()[0]);
    say(role === null ? t("roles.all") : t("roles.one", {role, n: shownOrder().length}));
}

function columnHeads(count) {
    const line = make("div", "group heads", make("span", "group-name"));
    const numbers = Array.from({length: count}, (_, i) => make("span", "", String(i)));
    line.append(make("div", "thumbs", ...numbers));
    line.setAttribute("aria-hidden", "true");
    return line;
}

function groupRow(group) {
    const cells = make("div", "thumbs", ...group.list.map(i => thumbs[i].button));
    const name = make("span", "group-name", group.name);
    const line = make("div", "group", name, cells);
    name.addEventListener("click", () => live?.pickGroup(group.list));
    line.setAttribute("role", "group");
    line.setAttribute("aria-label", group.name || t("overview.group"));
    return line;
}

let pointer = ""; // its last position: a map that scrolls below it is not pointed at
const pointOf = event => `${event.clientX} ${event.clientY}`;
addEventListener("pointermove", event => { pointer = pointOf(event); });

function makeThumb(i) {
    const canvas = make("canvas", ""), {name, badge} = panels[i];
    const button = make("button", "thumb", canvas, make("span", "thumb-name", name));
    if (hasBadges) button.append(make("bdi", "badge-line", badge ?? ""));
    button.type = "button";
    button.title = [name, badge].filter(Boolean).join(" · ");
    button.dataset.panel = i;
    button.addEventListener("click", event => pickThumb(i, event));
    button.addEventListener("pointerenter", event => {
        if (event.pointerType !== "touch" && state.view !== "model" && pointOf(event) !== pointer) peek(i);
    });
    return {button, canvas, i, seen: false, drawn: null};
}

// With Shift, show a second map beside the first. In the model view, enlarge the map.
function pickThumb(i, event) {
    if (live?.pick(i, event)) return;
    if (event.shiftKey && i !== state.panel) {
        toggleBeside(i);
        return;
    }
    choosePanel(i);
    if (state.view !== "model") return;
    state.lit = new Set([i]);
    setView("lines");
    byId("main").scrollIntoView({block: "nearest"});
}

// Shorten a badge that is too long for its thumbnail to its first word.
function fitBadge({button, i}, width) {
    const line = button.querySelector(".badge-line"), {badge} = panels[i];
    if (!line || !badge) return;
    const size = parseFloat(getComputedStyle(line).fontSize);
    line.textContent = widthOf(badge, size) <= width ? badge : badge.split(/\s+/)[0];
}

// Pointing at a thumbnail shows its map large until the pointer leaves.
function peek(i) {
    if (state.peek === i || (i >= 0 && i === state.panel && state.peek < 0)) return;
    state.peek = i === state.panel ? -1 : i;
    drawFocus();
}

// width: of the button. Drawing changes the layout, so all widths are read first.
function drawThumb(thumb, width) {
    const scale = scaleOf(thumb.i), map = smallMapOf(thumb.i);
    const key = [scale, map, theme, palette(), state.view === "model", state.between];
    if (thumb.drawn && key.every((part, k) => part === thumb.drawn[k])) return;
    thumb.drawn = key;
    if (!map.rows || !map.cols) {
        thumb.canvas.width = thumb.canvas.height = 1;
        return;
    }
    const size = Math.round(width * ratioNow());
    fitBadge(thumb, width);
    if (state.view === "model") {
        drawSmallLines(thumb, width);
        return;
    }
    thumb.canvas.style.width = thumb.canvas.style.height = "";
    const whole = {r0: 0, c0: 0, nr: map.rows, nc: map.cols, tiny: true};
    pictureOf(map, whole, size, size, scale, palette(), theme, thumb.canvas);
}

function drawSmallLines({canvas, i}, width) {
    const map = smallMapOf(i), longest = Math.max(map.rows, map.cols);
    const height = Math.min(Math.max(longest * 4, width * 0.9), width * 1.8);
    paintSmallLines(sizeCanvas(canvas, width, height, ratioNow()), i, width, height);
}

// Draw some thumbnails at once and the rest in slices, so that many large maps do not block the
// keyboard.
const SLICE_MS = 24;
const waiting = new Set();
let waitingTimer = 0;
function drawWaiting(slice = SLICE_MS) {
    const end = performance.now() + slice;
    const widths = new Map([...waiting].map(thumb => [thumb, Math.max(thumb.button.clientWidth, 24)]));
    clearTimeout(waitingTimer);
    waitingTimer = 0;
    for (const thumb of waiting) {
        if (performance.now() > end) {
            waitingTimer = setTimeout(drawWaiting);
            return;
        }
        waiting.delete(thumb);
        drawThumb(thumb, widths.get(thumb));
    }
    if (!performance.getEntriesByName("report-complete").length && thumbs.some(t => t.drawn))
        performance.mark("report-complete");
}

function drawOverview(slice = SLICE_MS) {
    for (const thumb of thumbs) if (thumb.seen) waiting.add(thumb);
    drawWaiting(slice);
    markThumbs();
}

function markThumbs() {
    for (const {button, i} of thumbs) {
        const chosen = i === state.panel;
        button.tabIndex = chosen ? 0 : -1;
        if (chosen) button.setAttribute("aria-current", "true");
        else button.removeAttribute("aria-current");
        const r = reachOf(sourceOf(i)), range = t("overview.reach", {low: short(r.least), high: short(r.greatest)});
        button.setAttribute("aria-label",
            [panels[i].name, panels[i].badge, panels[i].note, range].filter(Boolean).join(", "));
    }
}

function onOverviewKey(event) {
    const steps = {ArrowLeft: -1, ArrowRight: 1};
    if (steps[event.key]) stepPanel(steps[event.key]);
    else if (event.key === "ArrowUp") stepLine(-1);
    else if (event.key === "ArrowDown") stepLine(1);
    else if (event.key === "Home") stepPanel(-Infinity);
    else if (event.key === "End") stepPanel(Infinity);
    else return;
    event.preventDefault();
    thumbs[state.panel].button.focus();
}

// Move up or down by layer, or by the lines into which a sorted list wraps.
function stepLine(by) {
    if (state.order === "index") {
        chooseGroup(by);
        return;
    }
    const list = shownOrder(), tops = list.map(i => thumbs[i].button.offsetTop);
    stepPanel(by * Math.max(tops.filter(top => top === tops[0]).length, 1));
}
