// All maps as thumbnails, one grid row a group; drawn when they come into sight.

const thumbs = [];
let watcher = null;

function buildOverview() {
    const groups = groupList(), box = byId("overview");
    const most = Math.max(0, ...groups.map(g => g.list.length));
    const even = most <= 16 && groups.length > 1;
    box.classList.toggle("even", even);
    box.classList.toggle("few", panels.length <= 16 && groups.length === 1);
    box.style.setProperty("--columns", even ? most : Math.min(most, 16));
    const shape = Math.min(Math.max(colItems.length / rowItems.length || 1, 0.4), 2.5);
    box.style.setProperty("--shape", String(shape));
    const caption = make("p", "caption", make("span", "", `${panels.length} maps`), make("b", ""));
    caption.id = "overview-caption";
    box.append(caption);
    if (even && groups.every(g => g.list.length === most)) box.append(columnHeads(most));
    for (const group of groups) box.append(groupRow(group));
    box.addEventListener("pointerleave", () => peek(-1));
    box.addEventListener("keydown", onOverviewKey);
    byId("main").classList.toggle("single", panels.length <= 1);
    watcher = new IntersectionObserver(entries => {
        for (const entry of entries) {
            const thumb = thumbs[Number(entry.target.dataset.panel)];
            thumb.seen = entry.isIntersecting;
            if (thumb.seen) drawThumb(thumb);
        }
    }, {rootMargin: "200px"});
    thumbs.forEach(thumb => watcher.observe(thumb.button));
}

function columnHeads(count) {
    const line = make("div", "group heads", make("span", "group-name"));
    const numbers = Array.from({length: count}, (_, i) => make("span", "", String(i)));
    line.append(make("div", "thumbs", ...numbers));
    line.setAttribute("aria-hidden", "true");
    return line;
}

function groupRow(group) {
    const cells = make("div", "thumbs");
    for (const i of group.list) {
        const canvas = make("canvas", ""), name = make("span", "thumb-name", panels[i].name);
        const button = make("button", "thumb", canvas, name);
        button.type = "button";
        button.dataset.panel = i;
        button.addEventListener("click", () => choosePanel(i));
        button.addEventListener("pointerenter", event => {
            if (event.pointerType !== "touch") peek(i);
        });
        thumbs[i] = {button, canvas, i, seen: false, drawn: null};
        cells.append(button);
    }
    const line = make("div", "group", make("span", "group-name", group.name), cells);
    line.setAttribute("role", "group");
    line.setAttribute("aria-label", group.name || "maps");
    return line;
}

// Pointing at a thumbnail shows its map large until the pointer leaves.
function peek(i) {
    if (state.peek === i || (i >= 0 && i === state.panel && state.peek < 0)) return;
    state.peek = i === state.panel ? -1 : i;
    drawFocus();
}

function drawThumb(thumb) {
    const scale = scaleOf(thumb.i), map = mapOf(thumb.i);
    const key = [scale, map, theme, palette()];
    if (thumb.drawn && key.every((part, k) => part === thumb.drawn[k])) return;
    thumb.drawn = key;
    if (!map.rows || !map.cols) {
        thumb.canvas.width = thumb.canvas.height = 1;
        return;
    }
    const size = Math.round(Math.max(thumb.button.clientWidth, 24) * ratioNow());
    const whole = {r0: 0, c0: 0, nr: map.rows, nc: map.cols, tiny: true};
    const picture = pictureOf(map, whole, size, size, scale, palette(), theme);
    thumb.canvas.width = picture.width;
    thumb.canvas.height = picture.height;
    thumb.canvas.getContext("2d").drawImage(picture, 0, 0);
}

function drawOverview() {
    for (const thumb of thumbs) if (thumb.seen) drawThumb(thumb);
    markThumbs();
}

function markThumbs() {
    for (const {button, i} of thumbs) {
        const chosen = i === state.panel;
        button.tabIndex = chosen ? 0 : -1;
        if (chosen) button.setAttribute("aria-current", "true");
        else button.removeAttribute("aria-current");
        const r = reachOf(i), range = `${short(r.least)} to ${short(r.greatest)}`;
        button.setAttribute("aria-label",
            [panels[i].name, panels[i].note, range].filter(Boolean).join(", "));
    }
}

function onOverviewKey(event) {
    const steps = {ArrowLeft: -1, ArrowRight: 1};
    if (steps[event.key]) choosePanel(state.panel + steps[event.key]);
    else if (event.key === "ArrowUp") chooseGroup(-1);
    else if (event.key === "ArrowDown") chooseGroup(1);
    else if (event.key === "Home") choosePanel(0);
    else if (event.key === "End") choosePanel(panels.length - 1);
    else return;
    event.preventDefault();
    thumbs[state.panel].button.focus();
}

function drawTitle() {
    const i = shownPanel(), panel = panels[i];
    byId("name").textContent = panel?.name ?? "";
    byId("note").textContent = panel?.note ?? "";
    byId("detail").textContent = panel?.detail ?? "";
    byId("detail").hidden = !panel?.detail;
    byId("overview-caption").lastChild.textContent = state.peek >= 0 ? panel.name : "";
}
