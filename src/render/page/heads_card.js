// The card of a head: its roles, pairs or tokens, the earlier heads that it reads, scores, places.

const about = new Set(); // columns whose definition is open

function gaugeOf(c, value) {
    const cell = make("span", "gauge-cell"), [number, chance, low, high, , deciles] = value;
    cell.setAttribute("aria-hidden", "true");
    const percent = v => `${(100 * partOf(c, v)).toFixed(2)}%`;
    const between = (kind, from, to) => {
        const part = make("i", kind);
        part.style.left = percent(from);
        part.style.width = `${(100 * (partOf(c, to) - partOf(c, from))).toFixed(2)}%`;
        return part;
    };
    const at = (kind, v) => {
        const tick = make("i", kind);
        tick.style.left = percent(v);
        return tick;
    };
    cell.append(between("fill", Math.min(extentOf(c)[0], number), number));
    if (deciles) cell.append(between("box", deciles[1], deciles[9]));
    if (low !== null && high !== null) cell.append(between("span", low, high));
    if (chance !== null) cell.append(at("tick", chance));
    if (columns[c].luck !== null) cell.append(at("tick lucky", columns[c].luck));
    return cell;
}

function aboutOf(c, value) {
    const [, chance, low, high, rows, deciles] = value, column = columns[c];
    return [column.text, `${rows.toLocaleString("en")} rows`,
        low !== null && high !== null && low !== high ? `95 % interval ${tidy(low)} to ${tidy(high)}` : "",
        chance !== null ? `chance ${tidy(chance)}` : "",
        column.luck !== null ? `permutation null (95th percentile) ${tidy(column.luck)}` : "",
        deciles ? `deciles ${deciles.map(tidy).join(" ")}` : ""].filter(Boolean).join(" · ");
}

function measuresOf(h) {
    const list = make("div", "measure");
    columns.forEach((column, c) => {
        const value = column.values[h];
        if (!value) return;
        const name = make("button", "", isolated(wordsOf(c)));
        name.type = "button";
        name.title = column.text ?? "";
        name.setAttribute("aria-expanded", about.has(c));
        name.addEventListener("click", () => {
            about.has(c) ? about.delete(c) : about.add(c);
            drawCards();
        });
        list.append(name, gaugeOf(c, value), make("span", "number", tidy(value[0])));
        if (about.has(c)) list.append(make("p", "about", aboutOf(c, value)));
    });
    return list;
}

function placeOf(place) {
    const words = make("div", "words");
    words.dir = "auto";
    (place.tokens ?? []).forEach((token, i) => {
        words.append(i === place.query ? make("span", "query", token) : i === place.key ? make("span", "key", token) : token);
    });
    return make("div", "place", make("div", "where", `${tidy(place.value)} · `, isolated(place.where ?? "")), words);
}

function placesOf(h) {
    const places = heads[h].places;
    if (!places.length) return [];
    const choice = make("select"), box = make("div");
    const kinds = [...new Set(places.map(p => `${p.column} ${p.least ? 1 : 0}`))];
    for (const kind of kinds) {
        const [c, least] = kind.split(" ").map(Number);
        const option = make("option", "", `${least ? "least" : "most"} ${wordsOf(c)}`);
        option.value = kind;
        choice.append(option);
    }
    const bare = columns[state.x].name.replace(/^random_/, "");
    const wanted = `${columns.findIndex(column => column.name === bare)} 0`;
    if (kinds.includes(wanted)) choice.value = wanted;
    const show = () => box.replaceChildren(...places
        .filter(p => `${p.column} ${p.least ? 1 : 0}` === choice.value).map(placeOf));
    choice.addEventListener("change", show);
    choice.setAttribute("aria-label", "Which places");
    show();
    return [make("h3", "", "Places in the texts"), choice, make("p", "keys", make("span", "",
        "dark: the query; underlined: the key with the largest weight")), box];
}

function listsOf(h) {
    return heads[h].lists.flatMap(list => [make("h3", "", list.title ?? ""), make("p", "evidence", list.text ?? ""),
        make("div", "tokens-list", ...(list.names ?? []).map((name, i) =>
            make("span", "", isolated(name), make("small", "", tidy(list.values[i])))))]);
}

function arrowsOf(h) {
    if (!heads[h].arrows.length) return [];
    return [make("h3", "", "Reads of earlier heads"), make("div", "arrows", ...heads[h].arrows.map(arrow => {
        const name = `L${arrow.layer}H${arrow.head}`;
        const button = make("button", "", `${arrow.kind} ← ${name} ${tidy(arrow.value)}`);
        button.type = "button";
        button.title = `chance ${tidy(arrow.chance)}; click to put its card beside this one`;
        button.disabled = !byName.has(name);
        button.addEventListener("click", () => choose(byName.get(name), true));
        return button;
    }))];
}

function lineOf(line) {
    const W = 320, H = 120, x = line.x ?? [], y = line.y ?? [];
    const far = Math.log2(1 + Math.max(...x, 1)), most = Math.max(...y, 1e-9);
    const px = v => 34 + Math.log2(1 + v) / far * (W - 44), py = v => H - 20 - v / most * (H - 32);
    const picture = draw("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": line.title ?? ""});
    picture.append(draw("path", {d: x.map((v, i) => `${i ? "L" : "M"}${px(v).toFixed(1)} ${py(y[i]).toFixed(1)}`).join("")}),
        draw("text", {x: 30, y: py(most) + 4, "text-anchor": "end"}, tidy(most)),
        draw("text", {x: 30, y: py(0) + 4, "text-anchor": "end"}, "0"));
    const edge = x.length ? x[x.length - 1] : 0;
    picture.append(draw("text", {x: px(edge), y: H - 6, "text-anchor": "end"}, `position ${edge}`));
    return make("div", "line-plot", make("h3", "", `${line.title ?? ""}${line.unit ? `, ${line.unit}` : ""}`), picture);
}

function cardOf(h) {
    const head = heads[h], close = make("button", "", "close");
    close.type = "button";
    close.setAttribute("aria-label", `Close the card of ${nameOf(h)}`);
    close.addEventListener("click", () => choose(h, true));
    const card = make("article", "hcard", make("header", "", make("h2", "", nameOf(h)),
        ...head.roles.map(role => make("span", "badge", isolated(role.name))), close));
    card.dataset.head = h;
    if (head.note) card.append(make("p", "", isolated(head.note)));
    for (const role of head.roles) card.append(make("p", "evidence", isolated(role.evidence ?? "")));
    if (!head.roles.length) card.append(make("p", "evidence", "No score reaches the threshold of a role."));
    const key = (name, colour) => {
        const swatch = make("i");
        swatch.style.background = `var(${colour})`;
        return make("span", "", swatch, name);
    };
    card.append(...listsOf(h), ...arrowsOf(h), make("h3", "", "Scores"), make("p", "keys", key("mean", "--bar"), key("95 % interval", "--ink"),
        key("10 to 90 % of rows", "--series-2"), key("chance", "--muted"), key("permutation null", "--series-1")),
    measuresOf(h), ...placesOf(h));
    if (head.lines.length) card.append(make("div", "line-plots", ...head.lines.map(lineOf)));
    if (head.command) card.append(make("h3", "", "See it in a text"), make("p", "", make("code", "", head.command)));
    return card;
}

function drawCards() {
    const focus = document.activeElement?.closest?.(".measure") ? document.activeElement.textContent : null;
    byId("cards").replaceChildren(...state.chosen.map(cardOf));
    if (focus) [...byId("cards").querySelectorAll(".measure button")].find(b => b.textContent === focus)?.focus();
}
