"use strict";
// Small charts in SVG: lines, bands, stacks, a crosshair that tells the values.

const COLOURS = 8;
const colour = (index) => `var(--c${index % COLOURS})`;
// What means the same has the same colour in every chart.
const MEANING = { ok: "var(--right)", answered: "var(--right)", failed: "var(--wrong)",
  timed_out: "var(--warn)", max_turns: "var(--warn)", all_right: "var(--right)", all_wrong: "var(--wrong)" };
const colourOf = (name, index) => MEANING[name.split("/").at(-1)] ?? colour(index);

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function show(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return value.toFixed(size >= 100 ? 0 : size >= 1 ? 2 : 3);
}

function niceTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function smoothed(values, factor) {
  let mean = null;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : factor * mean + (1 - factor) * value;
    return mean;
  });
}

const tip = {
  show(event, content) {
    const node = document.getElementById("tip");
    node.replaceChildren(content);
    node.hidden = false;
    const box = node.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 16 + box.height < innerHeight;
    node.style.left = `${Math.max(4, left)}px`;
    node.style.top = `${below ? event.clientY + 16 : event.clientY - box.height - 10}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

function rows(pairs) {
  return element("table", {}, element("tbody", {}, ...pairs.map(([name, value]) =>
    element("tr", {}, element("td", {}, name), element("td", {}, value)))));
}

function chart(data, smoothing) {
  const W = 420, H = 190, left = 46, right = 8, top = 8, bottom = 22;
  const stack = data.kind === "stack", log = data.kind === "log";
  const shorts = data.series.map((one) => shortName(one.name));
  let series = data.series.map((one, index) => ({
    ...one,
    colour: colourOf(one.name, index),
    label: shorts.filter((name) => name === shorts[index]).length > 1
      ? one.name.replaceAll("/", " ") : shorts[index],
  }));
  if (stack) {
    // The whole step's time is the stack's height, not a part of it.
    if (series.length > 1) series = series.filter((one) => one.name !== "time/step_s");
    const sum = (one) => one.values.reduce((total, value) => total + (value ?? 0), 0);
    series.sort((a, b) => sum(b) - sum(a));
    const base = data.steps.map(() => 0);
    series = series.map((one) => {
      const floor = [...base];
      one.values.forEach((value, i) => { base[i] += value ?? 0; });
      return { ...one, floor, top: [...base] };
    });
  }
  const all = series.flatMap((one) => stack ? one.top : [
    ...one.values, ...(one.low ?? []), ...(one.high ?? [])])
    .filter((value) => value !== null && value !== undefined && (!log || value > 0));
  let low = Math.min(...all), high = Math.max(...all);
  if (!all.length) { low = log ? 0.1 : 0; high = 1; }
  if (stack) low = 0;
  if (data.unit === "share" && !log) { low = 0; if (!stack && high > 0.2) high = 1; }
  if (low === high) { high = low + (Math.abs(low) * 0.1 || 1); if (low > 0 && !log) low = 0; }
  const f = log ? Math.log10 : (v) => v;
  let lo = f(low), hi = f(high);
  if (log) { lo = Math.floor(lo); hi = Math.ceil(hi); if (lo === hi) hi += 1; }
  else { const pad = (hi - lo) * 0.04; if (low !== 0) lo -= pad; if (!(data.unit === "share")) hi += pad; }
  const first = data.steps[0], last = data.steps.at(-1);
  const x = (step) => left + (last === first ? 0.5 : (step - first) / (last - first)) * (W - left - right);
  const y = (value) => H - bottom - (f(value) - lo) / (hi - lo) * (H - top - bottom);

  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": data.title });
  const ticks = log
    ? niceTicks(lo, hi, 4).filter(Number.isInteger).map((power) => 10 ** power)
    : niceTicks(lo, hi, 5);
  for (const value of ticks) {
    picture.append(svg("line", { class: "axis", x1: left, x2: W - right, y1: y(value), y2: y(value) }));
    const label = svg("text", { class: "tick", x: left - 5, y: y(value) + 4, "text-anchor": "end" });
    label.textContent = log ? value.toExponential(0)
      : data.unit === "share" ? `${+(value * 100).toPrecision(3)} %` : tickLabel(value);
    picture.append(label);
  }
  const stepTicks = last === first ? [first] : niceTicks(first, last, 5).filter(Number.isInteger);
  for (const step of stepTicks) {
    const label = svg("text", { class: "tick", x: x(step), y: H - 6, "text-anchor": "middle" });
    label.textContent = step;
    picture.append(label);
  }
  const drawn = (value) => value !== null && value !== undefined && (!log || value > 0);
  const path = (values) => {
    let pen = "M", text = "";
    values.forEach((value, i) => {
      if (!drawn(value)) return;
      text += `${pen}${x(data.steps[i]).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
    });
    return text;
  };
  const area = (lows, highs) => {
    const keep = data.steps.map((_, i) => i).filter((i) => drawn(lows[i]) && drawn(highs[i]));
    const up = keep.map((i) => `${x(data.steps[i]).toFixed(1)},${y(highs[i]).toFixed(1)}`);
    const down = keep.reverse().map((i) => `${x(data.steps[i]).toFixed(1)},${y(lows[i]).toFixed(1)}`);
    return keep.length ? `M${[...up, ...down].join("L")}Z` : "";
  };
  for (const one of series) {
    if (stack) {
      picture.append(svg("path", { d: area(one.floor, one.top), style: `fill:${one.colour};opacity:.75` }));
      continue;
    }
    if (one.low) {
      picture.append(svg("path", { d: area(one.low, one.high), style: `fill:${one.colour};opacity:.15` }));
    }
    const line = (values, opacity) => picture.append(svg("path", {
      d: path(values),
      style: `fill:none;stroke:${one.colour};stroke-width:1.7;opacity:${opacity};stroke-linejoin:round`,
    }));
    if (smoothing > 0 && data.steps.length > 4) {
      line(one.values, 0.22);
      line(smoothed(one.values, smoothing), 1);
    } else line(one.values, 1);
    const points = one.values.map((value, i) => [data.steps[i], value]).filter((p) => drawn(p[1]));
    if (points.length <= 12) {
      for (const [step, value] of points) {
        picture.append(svg("circle", { cx: x(step), cy: y(value), r: 2.6, style: `fill:${one.colour}` }));
      }
    }
  }
  const cross = svg("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" });
  picture.append(cross);
  const figure = element("figure", { class: "panel" },
    element("figcaption", {}, data.title,
      data.unit && data.unit !== "share" ? element("small", {}, ` ${data.unit}`) : null),
    picture,
    element("div", { class: "legend" }, ...series.map((one) => element("span", {},
      element("i", { style: `background:${one.colour}` }), one.label))));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * W;
    let index = 0;
    data.steps.forEach((step, i) => {
      if (Math.abs(x(step) - at) < Math.abs(x(data.steps[index]) - at)) index = i;
    });
    const px = x(data.steps[index]);
    cross.setAttribute("x1", px); cross.setAttribute("x2", px);
    cross.setAttribute("visibility", "visible");
    tip.show(event, rows([[`step ${data.steps[index]}`, ""], ...series.map((one) => [
      one.label,
      show(one.values[index], data.unit) + (one.low && one.low[index] !== null
        ? ` [${show(one.low[index], data.unit)}, ${show(one.high[index], data.unit)}]` : ""),
    ])]));
  });
  picture.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); tip.hide(); });
  return figure;
}

function tickLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return `${+(value / 1000).toPrecision(3)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential().replace(/(\.\d\d)\d+/, "$1");
  return String(+value.toPrecision(3));
}

function shortName(name) {
  return name.replace(/^(reward\/component|tool\/outcome|stop|time|memory)\//, "")
    .replace(/^(policy|engine|schedule|throughput|groups|response)\//, "")
    .replace(/_(s|mib)$/, "").replace("tokens_per", "tokens/s").replaceAll(/[_/]/g, " ")
    .replace("tokens s", "tokens/s");
}
