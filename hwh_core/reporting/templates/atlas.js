// What is chosen, drawing it, and events; runs after atlas_values.js in the same function.
// ---------------------------------------------------------------- state

const name = (head) => `L${D.layers[Math.floor(head / H)]}H${head % H}`;
const headOf = (label) => {
  const found = /^#?L(\d+)H(\d+)$/.exec(label);
  const layer = found ? D.layers.indexOf(Number(found[1])) : -1;
  const head = layer * H + Number(found?.[2]);
  return layer >= 0 && Number(found[2]) < H && present(head) ? head : null;
};
const best = (values) => Array.from(values).reduce((top, value, head) => (present(head) && !(values[top] >= value) ? head : top), D.present.indexOf("1"));
const state = { head: headOf(location.hash) ?? best(METRICS.some(({ key }) => key === "qr") ? columns.qr : columns.rpd_total), pinned: null, metric: METRICS[0] };

// ---------------------------------------------------------------- drawing

const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
const shade = (stops, share) => {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
  return `rgb(${[0, 1, 2].map((i) => Math.round(channel(stops[low], i) + (place - low) * (channel(stops[low + 1], i) - channel(stops[low], i))))})`;
};
const element = (tag, attributes = {}, content = null) => {
  const made = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== null) made.textContent = content;
  return made;
};
const canvasOf = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
};
// Every n-th row or column is numbered, so that numbers of 12 pixels height or 20 width do not overlap.
const step = (size, room) => [1, 2, 4, 8, 16, 32].find((n) => n * size >= room) ?? 64;
const colourOf = (metric, head) => {
  if (!present(head)) return "#ffffff";
  if (metric.key === "head_class") return CLASS_COLOURS[classOf(head)];
  const value = columns[metric.key][head];
  return Number.isFinite(value) ? shade(CIVIDIS, (value - metric.low) / (metric.high - metric.low || 1)) : MISSING;
};

const LEFT = 34, TOP = 34;
const cell = Math.max(9, Math.min(24, Math.floor(600 / H), Math.floor(720 / L)));
const wide = Math.max(cell, Math.min(34, Math.floor(320 / H)));
const drawMap = () => {
  const context = canvasOf($("map"), LEFT + wide * H + 4, TOP + cell * L + 4);
  context.textAlign = "center";
  context.fillText("head", LEFT + (wide * H) / 2, 8);
  for (let head = 0; head < H; head += step(wide, 20)) context.fillText(head, LEFT + wide * (head + 0.5), 24);
  context.textAlign = "right";
  for (let layer = 0; layer < L; layer += step(cell, 12)) context.fillText(D.layers[layer], LEFT - 5, TOP + cell * (layer + 0.5));
  context.fillText("layer", LEFT - 5, 24);
  context.textAlign = "center";
  for (let head = 0; head < L * H; head++) {
    const x = LEFT + wide * (head % H), y = TOP + cell * Math.floor(head / H);
    context.fillStyle = colourOf(state.metric, head);
    context.fillRect(x, y, wide - 1, cell - 1);
    if (state.metric.key === "head_class" && cell >= 15 && present(head)) {
      context.fillStyle = classOf(head) === "mixed" ? "#000000" : "#ffffff";
      context.fillText(CLASS_LETTERS[classOf(head)], x + (wide - 1) / 2, y + cell / 2);
    }
  }
  for (const [head, dash] of [[state.pinned, [3, 2]], [state.head, []]]) {
    if (head === null) continue;
    const box = [LEFT + wide * (head % H) - 0.5, TOP + cell * Math.floor(head / H) - 0.5, wide, cell];
    for (const [colour, width, pattern] of [["#ffffff", 5, []], ["#000000", 2.5, dash]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.setLineDash(pattern);
      context.strokeRect(...box);
    }
  }
};

const drawLegend = () => {
  const { metric } = state, legend = $("legend");
  legend.replaceChildren();
  if (metric.key === "head_class") {
    for (const kind of D.classes) {
      const count = Array.from({ length: L * H }, (_, head) => head).filter((head) => present(head) && classOf(head) === kind).length;
      if (!count) continue;
      const item = element("span", {}, `${kind} (${count})`), swatch = element("i");
      swatch.style.background = CLASS_COLOURS[kind];
      item.prepend(swatch);
      legend.append(item);
    }
    legend.append(element("span", { class: "hint" }, "retrieval: at least half of RFIS below the band of the layer; mixed: the interval over samples crosses one half"));
    return;
  }
  const bar = element("canvas"), context = canvasOf(bar, 160, 12);
  for (let x = 0; x < 160; x++) { context.fillStyle = shade(CIVIDIS, x / 159); context.fillRect(x, 0, 1, 12); }
  const more = metric.top === undefined ? " and above" : "";
  legend.append(element("span", {}, metric.end(metric.low)), bar, element("span", {}, metric.end(metric.high) + more));
};

// Place of a period on the axis of frequency groups; null outside of the rotated groups.
const placeOf = (period, { periods }) => {
  for (let r = 0; r + 1 < F && periods[r + 1] !== null; r++) {
    if (periods[r] <= period && period <= periods[r + 1]) return r + Math.log(period / periods[r]) / Math.log(periods[r + 1] / periods[r]);
  }
  return null;
};
const letters = "abcdefghijklmnopqrstuvwxyz";
const predictedOn = (table) => table.predicted.map((row, i) => ({ ...row, letter: letters[i % 26], inside: row.index >= 0 && row.index <= F - 1 }));

const drawPlot = () => {
  const width = 760, height = 380, left = 62, right = 14, top = 52, bottom = 52;
  const layer = layerOf(state.head), table = tableOf(layer), predicted = predictedOn(table), log = $("log").checked;
  const lines = [];
  if ($("norm")?.checked) {
    const norm = curve("norm", state.head), most = Math.max(...norm), height = Math.max(...curve("rfis", state.head), ...curve("rpd", state.head));
    lines.push({ ...CURVES.norm, values: norm.map((value) => (value / most) * height), width: 2, opacity: 1, title: `${CURVES.norm.name}, ${name(state.head)}: highest ${text(most)} in the logit, drawn to the height of RFIS and RPD` });
  }
  if ($("mean").checked) for (const metric of ["rfis", "rpd"]) lines.push({ ...CURVES[metric], values: means[metric][layer], width: 1.3, opacity: 0.65, title: `${CURVES[metric].name}, mean of layer ${D.layers[layer]}` });
  if (state.pinned !== null) for (const metric of ["rfis", "rpd"]) lines.push({ ...CURVES[metric], colour: "#000000", values: curve(metric, state.pinned), width: 1.2, opacity: 0.8, title: `${CURVES[metric].name}, ${name(state.pinned)}` });
  for (const metric of ["rfis", "rpd"]) lines.push({ ...CURVES[metric], values: curve(metric, state.head), width: 2.4, opacity: 1, title: `${CURVES[metric].name}, ${name(state.head)}` });
  const all = lines.flatMap((line) => Array.from(line.values)), high = Math.max(...all, 1e-6) * (log ? 1.5 : 1.06);
  const low = log ? Math.max(Math.min(...all.filter((value) => value > 0), high / 10), high / 1e6, 1e-7) / 1.5 : 0;
  const x = (r) => left + ((r + 0.5) / F) * (width - left - right);
  const y = (value) => {
    const share = log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : value / high;
    return height - bottom - share * (height - top - bottom);
  };
  const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `RFIS and RPD of ${name(state.head)} over frequency` });
  const add = (tag, attributes, content) => svg.append(element(`svg:${tag}`, attributes, content ?? null));
  const label = (px, py, content, anchor = "middle", extra = {}) => add("text", { x: px, y: py, "text-anchor": anchor, ...extra }, content);
  const boundary = columns.boundary?.[state.head];
  if (Number.isFinite(boundary) && boundary < F - 0.5) {
    add("rect", { x: x(boundary), y: top, width: width - right - x(boundary), height: height - top - bottom, fill: "#ececec" });
    label(width - right - 4, top + 14, "below the band", "end", { class: "soft" });
  }
  const decade = (value) => (value >= 0.01 ? String(value) : value.toExponential(0));
  const ticks = [];
  if (log) for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) ticks.push(10 ** power);
  else {
    const raw = high / 5, unit = 10 ** Math.floor(Math.log10(raw)), size = [1, 2, 5, 10].find((n) => n * unit >= raw) * unit;
    for (let value = 0; value <= high; value += size) ticks.push(value);
  }
  for (const value of ticks) {
    add("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "#e2e2e2" });
    label(left - 6, y(value) + 4, log ? decade(value) : text(value), "end");
  }
  for (let power = 0; power < 12; power++) for (let digit = 1; digit < 10; digit++) {
    const place = placeOf(digit * 10 ** power, table);
    if (place === null) continue;
    add("line", { x1: x(place), x2: x(place), y1: height - bottom, y2: height - bottom + (digit === 1 ? 8 : 4), stroke: "#333" });
    if (digit === 1) label(x(place), height - bottom + 21, periodText(10 ** power));
  }
  if (table.periods[F - 1] === null) label(width - right, height - bottom + 21, "no rotation", "end");
  for (let r = 0; r < F; r += step((width - left - right) / F, 44)) {
    add("line", { x1: x(r), x2: x(r), y1: top - 5, y2: top, stroke: "#333" });
    label(x(r), top - 9, String(r), "middle", { class: "soft" });
  }
  label((left + width - right) / 2, height - 8, "period of the frequency (tokens)");
  label((left + width - right) / 2, 14, "frequency group r", "middle", { class: "soft" });
  label(15, (top + height - bottom) / 2, "value", "middle", { transform: `rotate(-90 15 ${(top + height - bottom) / 2})` });
  predicted.filter((row) => row.inside).forEach((row, i) => {
    add("line", { x1: x(row.index), x2: x(row.index), y1: top, y2: height - bottom, stroke: "#444", "stroke-dasharray": "2 4" });
    label(x(row.index) - 4, top + 14 + 14 * (i % 3), row.letter, "end", { "font-weight": "bold" });
  });
  for (const line of lines) {
    const points = Array.from(line.values, (value, r) => `${x(r).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    add("polyline", { points, fill: "none", stroke: line.colour, "stroke-width": line.width, "stroke-dasharray": line.dash, opacity: line.opacity });
  }
  const peak = table.peaks[D.layers[layer]];
  if (Number.isFinite(peak)) add("path", { d: `M${x(peak)},${height - bottom - 1} l-6,11 h12 z`, fill: "#009e73", stroke: "#fff" });
  add("path", { d: `M${left},${top} V${height - bottom} H${width - right} V${top} Z`, fill: "none", stroke: "#333" });
  $("plot").replaceChildren(svg);

  const key = $("key");
  key.replaceChildren();
  const entry = (content, mark) => {
    const item = element("li", {}, content);
    item.prepend(mark);
    key.append(item);
  };
  for (const line of lines.toReversed()) {
    const mark = element("svg:svg", { width: 30, height: 8, "aria-hidden": "true" });
    mark.append(element("svg:line", { x1: 0, x2: 30, y1: 4, y2: 4, stroke: line.colour, "stroke-width": line.width, "stroke-dasharray": line.dash, opacity: line.opacity }));
    entry(line.title, mark);
  }
  if (Number.isFinite(peak)) {
    const mark = element("svg:svg", { width: 12, height: 11, "aria-hidden": "true" });
    mark.append(element("svg:path", { d: "M6,0 L0,11 h12 z", fill: "#009e73" }));
    entry(`band of layer ${D.layers[layer]} in RPD, r=${text(peak)}`, mark);
  }
  for (const row of predicted) {
    const where = row.inside ? "" : "; outside of the frequencies";
    entry(` predicted for ${row.label}: r*=${row.index.toFixed(1)}, ${periodText(row.period)} tokens (Oka et al.: ${row.oka.toFixed(1)})${where}`, element("b", {}, row.letter));
  }
};

const drawNumbers = () => {
  const layer = layerOf(state.head), { periods } = tableOf(layer), list = $("numbers");
  $("head-title").textContent = `Layer ${D.layers[layer]}, head ${state.head % H}` + (D.head_class === null ? "" : `: ${classOf(state.head)}`);
  list.replaceChildren();
  for (const metric of METRICS) {
    if (metric.key === "head_class") continue;
    const pair = element("div");
    pair.append(element("dt", {}, metric.label), element("dd", {}, metric.show(state.head)));
    list.append(pair);
  }
  const shown = Object.keys(CURVES).filter((metric) => metric in maps);
  const rows = [["r", "period (tokens)", ...shown.map((metric) => CURVES[metric].name)], ...Array.from({ length: F }, (_, r) => [r, periodText(periods[r]), ...shown.map((metric) => text(curve(metric, state.head)[r]))])];
  $("values").replaceChildren(...rows.map((cells, i) => {
    const row = element("tr");
    row.append(...cells.map((content) => element(i ? "td" : "th", i ? {} : { scope: "col" }, String(content))));
    return row;
  }));
};

const drawRanking = () => {
  // Where no head has a class there is nothing to rank classes by.
  const metric = METRICS.find((other) => other.key === (state.metric.rank ?? state.metric.key)) ?? METRICS.find((other) => other.key in columns);
  const heads = Array.from({ length: L * H }, (_, head) => head).filter((head) => present(head) && Number.isFinite(columns[metric.key][head]));
  heads.sort((a, b) => columns[metric.key][b] - columns[metric.key][a] || a - b);
  $("ranking-title").textContent = `Highest ${Math.min(20, heads.length)} heads: ${metric.label}`;
  const shown = [metric, ...METRICS.filter((other) => other !== metric)], head = element("tr");
  head.append(element("th", { scope: "col" }, "head"), ...shown.map((other) => element("th", { scope: "col" }, other.label)));
  $("ranking").replaceChildren(head, ...heads.slice(0, 20).map((chosen) => {
    const row = element("tr"), button = element("button", { type: "button" }, name(chosen)), first = element("td");
    button.addEventListener("click", () => {
      select(chosen);
      $("head-title").scrollIntoView({ block: "nearest" });
    });
    first.append(button);
    row.append(first, ...shown.map((other) => element("td", {}, other.show(chosen))));
    return row;
  }));
};

const meanSize = { width: Math.max(4, Math.min(14, Math.floor(560 / F))), height: Math.max(5, Math.min(12, Math.floor(380 / L))) };
const drawMean = (metric) => {
  const { width, height } = meanSize, left = LEFT, top = 36, bottom = top + height * L;
  const layer = layerOf(state.head), table = tableOf(layer), predicted = predictedOn(table);
  const context = canvasOf($(`mean-${metric}`), left + width * F + 14, bottom + 44);
  const most = Math.max(...means[metric].flatMap((row) => Array.from(row)).filter(Number.isFinite), 1e-12);
  const x = (r) => left + width * (r + 0.5);
  means[metric].forEach((row, layer) => row.forEach((value, r) => {
    context.fillStyle = Number.isFinite(value) ? shade(metric === "rfis" ? CIVIDIS : MAGMA, Math.sqrt(value / most)) : MISSING;
    context.fillRect(left + width * r, top + height * layer, width, height);
  }));
  context.fillStyle = context.strokeStyle = "#1c1c1c";
  context.textAlign = "right";
  for (let layer = 0; layer < L; layer += step(height, 12)) context.fillText(D.layers[layer], left - 5, top + height * (layer + 0.5));
  context.textAlign = "center";
  for (let power = 0; power < 12; power++) {
    const place = placeOf(10 ** power, table);
    if (place === null) continue;
    context.fillRect(x(place), bottom, 1, 5);
    context.fillText(periodText(10 ** power), x(place), bottom + 24);
  }
  context.textAlign = "left";
  context.fillText(`period (tokens)${D.tables.length > 1 ? ` in layer ${D.layers[layer]}` : ""}; darkest 0, brightest ${text(most)}`, left, bottom + 38);
  predicted.filter((row) => row.inside).forEach((row, i) => {
    for (const [from, to] of [[top - 8, top + 6], [bottom - 6, bottom + 8]]) {
      context.fillStyle = "#ffffff";
      context.fillRect(x(row.index) - 1.5, from, 4, to - from);
      context.fillStyle = "#1c1c1c";
      context.fillRect(x(row.index) - 0.5, from, 2, to - from);
    }
    context.textAlign = "center";
    context.fillText(row.letter, x(row.index), top - 15 - 10 * (i % 2));
  });
  context.fillStyle = "#009e73";
  for (const band of table.bands) {
    context.beginPath();
    context.moveTo(x(band.centre), bottom + 1);
    context.lineTo(x(band.centre) - 6, bottom + 12);
    context.lineTo(x(band.centre) + 6, bottom + 12);
    context.fill();
  }
  context.strokeStyle = "#009e73";
  context.lineWidth = 2;
  context.strokeRect(left - 1, top + height * layer - 1, width * F + 2, height + 2);
};

const drawSummary = () => {
  const places = D.tables.flatMap(({ bands, layers }) => bands.map((band) => ({ ...band, of: layers }))).map((band) => `r=${text(band.centre)}${band.ci ? ` [${band.ci.map(text).join(", ")}]` : ""}, ${periodText(band.period)} tokens, in ${band.layers} of ${band.of} layers`);
  $("summary").textContent = !D.has_bands ? "Bands were not looked for: this folder has no bands.json."
    : places.length ? `Band${places.length > 1 ? "s" : ""} found in RPD: ${places.join("; ")}.` : "No band was found in RPD.";
};

// ---------------------------------------------------------------- events

const redraw = () => { drawMap(); drawNumbers(); drawPlot(); drawMean("rfis"); drawMean("rpd"); };
const select = (head) => {
  if (!present(head)) return;
  state.head = head;
  history.replaceState(null, "", `#${name(head)}`);
  redraw();
};
const under = (event, left, top, width, height, across) => {
  const box = event.currentTarget.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - left) / width), row = Math.floor((event.clientY - box.top - top) / height);
  return column >= 0 && column < across && row >= 0 && row < L ? [row, column] : null;
};
const underMap = (event) => {
  const found = under(event, LEFT, TOP, wide, cell, H);
  return found && present(found[0] * H + found[1]) ? found[0] * H + found[1] : null;
};
$("map").addEventListener("click", (event) => { const head = underMap(event); if (head !== null) select(head); });
$("map").addEventListener("mousemove", (event) => {
  const head = underMap(event), tip = $("tip");
  tip.hidden = head === null;
  if (head === null) return;
  const kind = D.head_class === null ? "" : `, ${classOf(head)}`;
  tip.textContent = `${name(head)}${kind}` + (state.metric.key === "head_class" ? "" : `, ${state.metric.label} ${state.metric.show(head)}`);
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 4)}px`;
  tip.style.top = `${event.clientY + 14}px`;
});
$("map").addEventListener("mouseleave", () => { $("tip").hidden = true; });
$("map").addEventListener("keydown", (event) => {
  const layer = layerOf(state.head), head = state.head % H;
  const target = {
    ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
    Home: [layer, 0], End: [layer, H - 1], PageUp: [layer - 5, head], PageDown: [layer + 5, head],
  }[event.key];
  if (!target || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const clip = (value, count) => Math.min(Math.max(value, 0), count - 1);
  select(clip(target[0], L) * H + clip(target[1], H));
});
for (const metric of ["rfis", "rpd"]) {
  $(`mean-${metric}`).addEventListener("click", (event) => {
    const found = under(event, LEFT, 36, meanSize.width, meanSize.height, F);
    if (found) select(found[0] * H + (state.head % H));
  });
}
for (const id of ["log", "mean", "norm"]) $(id)?.addEventListener("change", drawPlot);
$("pin").addEventListener("click", () => {
  state.pinned = state.pinned === null ? state.head : null;
  $("pin").textContent = state.pinned === null ? "Keep for comparison" : `Drop ${name(state.pinned)}`;
  redraw();
});
$("colour").append(...METRICS.map((metric) => element("option", { value: metric.key }, metric.label)));
$("colour").addEventListener("change", () => {
  state.metric = METRICS.find((metric) => metric.key === $("colour").value);
  drawMap();
  drawLegend();
  drawRanking();
});
window.addEventListener("hashchange", () => { const head = headOf(location.hash); if (head !== null) select(head); });
drawSummary();
drawLegend();
drawRanking();
redraw();
document.documentElement.dataset.ready = "yes";
