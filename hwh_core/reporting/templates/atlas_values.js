// Data of the page and how its numbers are written.
const $ = (id) => document.getElementById(id);
const D = JSON.parse($("data").textContent);
const L = D.layers.length, H = D.heads, F = D.tables[0].periods.length;
// Okabe and Ito (2008); the letters repeat in the cells what the colours say.
const CLASS_COLOURS = { retrieval: "#d55e00", positional: "#0072b2", mixed: "#f0e442", unclassified: "#bbbbbb" };
const CLASS_LETTERS = { retrieval: "R", positional: "P", mixed: "M", unclassified: "" };
const CURVES = { rfis: { name: "RFIS", colour: "#0072b2", dash: "" }, rpd: { name: "RPD", colour: "#d55e00", dash: "7 4" }, norm: { name: "norm of q and k", colour: "#aa3377", dash: "2 3" } };
const CIVIDIS = ["#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838"];
const MAGMA = ["#000004", "#1d1147", "#51127c", "#832681", "#b73779", "#e75263", "#fc8961", "#fec488", "#fcfdbf"];
const MISSING = "#dddddd";

// ---------------------------------------------------------------- numbers

const halfTable = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    table[bits] = exponent === 31 ? (fraction ? NaN : sign * Infinity)
      : exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
  }
  return table;
})();
const decode = (text) => {
  const bytes = atob(text), values = new Float32Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) values[i] = halfTable[bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8)];
  return values;
};
const decodeAll = (texts) => Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, decode(text)]));
const maps = decodeAll(D.maps), columns = decodeAll(D.columns);
// Layers may rotate with frequencies of their own: a table holds these, and the bands found and predicted on them.
const layerOf = (head) => Math.floor(head / H);
const tableOf = (layer) => D.tables[D.table_of_layer[layer]];
const present = (head) => D.present[head] === "1";
const classOf = (head) => D.classes[Number(D.head_class[head])];
const curve = (metric, head) => maps[metric].subarray(head * F, (head + 1) * F);
const means = Object.fromEntries(Object.keys(maps).map((metric) => [metric, D.layers.map((_, layer) => {
  const sum = new Float64Array(F);
  let count = 0;
  for (let head = layer * H; head < (layer + 1) * H; head++) {
    if (!present(head)) continue;
    count++;
    curve(metric, head).forEach((value, r) => { sum[r] += value; });
  }
  return sum.map((value) => value / count);
})]));

const text = (value) => {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
};
const periodText = (period) => {
  if (period === null || !Number.isFinite(period)) return "∞";
  for (const [limit, suffix] of [[1e6, "M"], [1e3, "k"]]) if (period >= limit) return Number((period / limit).toPrecision(3)) + suffix;
  return period >= 10 ? String(Number(period.toPrecision(3))) : period.toFixed(1);
};
const groupText = (r, { periods }) => (Number.isFinite(r) ? `r=${r}, ${periods[r] === null ? "no rotation" : periodText(periods[r]) + " tokens"}` : "–");
const shareText = (head) => `${text(columns.s_ret[head])} [${text(columns.s_ret_lo[head])}, ${text(columns.s_ret_hi[head])}]`;

const METRICS = [
  { key: "head_class", label: "class", rank: "s_ret" },
  { key: "s_ret", label: "share of RFIS below the band", show: "s_ret_lo" in columns ? shareText : undefined, top: 1 },
  { key: "qr", label: "QRscore" },
  { key: "qr_calibrated", label: "QRscore, calibrated" },
  { key: "ld", label: "LDscore" },
  { key: "rpd_peak", label: "frequency of the highest RPD", show: (head) => groupText(columns.rpd_peak[head], tableOf(layerOf(head))), top: F - 1, end: (r) => (D.tables.length > 1 ? `r=${r}` : groupText(r, D.tables[0])) },
  { key: "d_ratio", label: "RPD over RFIS" },
  { key: "rfis_total", label: "RFIS, sum over frequencies" },
  { key: "rpd_total", label: "RPD, sum over frequencies" },
  { key: "norm_rfis", label: "norm of q and k against RFIS (ρ)", top: 1 },
  { key: "norm_rpd", label: "norm of q and k against RPD (ρ)", top: 1 },
].filter(({ key }) => (key === "head_class" ? D.head_class !== null : columns[key]?.some(Number.isFinite)));
for (const metric of METRICS) {
  if (metric.key === "head_class") { metric.show = classOf; continue; }
  const values = columns[metric.key];
  metric.show ??= (head) => text(values[head]);
  metric.end ??= text;
  const finite = Array.from(values).filter(Number.isFinite).sort((a, b) => a - b);
  metric.low = Math.min(0, finite[0] ?? 0);
  // One outlier must not hide the others: the colours end at the 99th percentile.
  metric.high = metric.top ?? (finite[Math.floor(0.99 * (finite.length - 1))] || 1);
}
