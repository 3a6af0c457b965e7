// Fill the page from the data; what is chosen in the browser lives in the address, so it can be linked.

window.addEventListener("error", (event) => { document.body.dataset.error = event.message; });

const data = JSON.parse(document.getElementById("data").textContent);
const samples = prepareSamples(data);
const byId = (id) => document.getElementById(id);

function header() {
  document.title = `${data.name} · retool`;
  const steps = Object.entries(data.steps).filter(([, count]) => count)
    .map(([stage, count]) => `${count} ${stage.toUpperCase()} steps`).join(", ");
  byId("name").append(data.name, element("small", {}, steps));
}

const ROWS = [["accuracy", "accuracy", "share", 1], ["tool_use", "tool use", "share", 0],
  ["tool_errors", "tool errors", "share", -1], ["turns", "turns", "", 0],
  ["truncated", "truncated", "share", -1], ["response_tokens", "response tokens", "", 0],
  ["reward", "reward", "", 1], ["problems", "problems", "", null], ["samples", "samples", "", null],
  ["ungraded", "not graded", "", null]];
const EVALUATION = "Evaluation during RL";
const STAGES = { baseline: "first weights", sft: "after SFT", rl: "after RL" };

function comparisonTable({ set, stages, change: paired }) {
  const shown = Object.keys(STAGES).filter((stage) => stages[stage]);
  const keys = new Set(shown.flatMap((stage) => Object.keys(stages[stage])));
  const passes = [...keys].filter((key) => /^pass_at_\d+$/.test(key))
    .sort((a, b) => a.slice(8) - b.slice(8)).map((key) => [key, `pass@${key.slice(8)}`, "share", 1]);
  const gain = shown.includes("sft") && shown.includes("rl");
  const body = [ROWS[0], ...passes, ...ROWS.slice(1)].filter(([key]) => keys.has(key))
    .map(([key, label, unit, better]) => {
      const cells = shown.map((stage) => {
        const value = stages[stage][key], low = stages[stage][`${key}_low`];
        return element("td", {}, show(value, unit), low === undefined || low === null ? null
          : element("div", { class: "range" },
            `${show(low, unit)} – ${show(stages[stage][`${key}_high`], unit)}`));
      });
      if (gain) cells.push(change(stages.sft[key], stages.rl[key], unit, better));
      if (gain && paired && key === "accuracy" && paired.low !== null) {
        cells.at(-1).append(element("div", { class: "range" },
          `${points(paired.low)} – ${points(paired.high)}`));
      }
      return element("tr", {}, element("td", {}, label), ...cells);
    });
  const head = ["", ...shown.map((stage) => STAGES[stage]), ...(gain ? ["SFT → RL"] : [])];
  return element("div", { class: "panel" }, element("b", {}, set), element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {}, text)))),
    element("tbody", {}, ...body)),
  paired ? element("p", { class: "range" }, `Of ${paired.num_problems} problems, RL newly solves `
    + `${paired.newly_right} and no longer solves ${paired.newly_wrong}.`) : null);
}

const points = (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;

function change(before, after, unit, better) {
  if (before === null || after === null || before === undefined || after === undefined) {
    return element("td", {}, "–");
  }
  if (better === null) return element("td", {});
  const delta = after - before;
  const good = better * delta;
  const text = unit === "share" ? `${points(delta)} pp` : `${delta > 0 ? "+" : ""}${show(delta, unit)}`;
  return element("td", { class: good > 0 ? "up" : good < 0 ? "down" : "" },
    text);
}

function overview() {
  const parts = data.comparison.map(comparisonTable);
  const wall = data.summary?.wall_s;
  if (wall) {
    const seconds = Object.entries(wall).filter(([, value]) => typeof value === "number");
    parts.push(element("div", { class: "panel" }, element("b", {}, "wall time"),
      rows(seconds.map(([name, value]) => [name, `${value.toFixed(0)} s`]))));
  }
  parts.push(...data.charts.filter((one) => one.section === EVALUATION).map((one) => chart(one, 0)));
  byId("comparison").replaceChildren(parts.length ? element("div", { class: "panels" }, ...parts)
    : element("p", { class: "empty" }, "No evaluation yet."));
}

function curves() {
  const factor = Number(byId("smoothing").value);
  byId("smoothing-value").textContent = factor;
  const sections = new Map();
  for (const one of data.charts) {
    if (one.section !== EVALUATION) sections.set(one.section, [...(sections.get(one.section) ?? []), one]);
  }
  byId("charts").replaceChildren(...[...sections].flatMap(([name, charts]) => [
    element("h3", {}, name),
    element("div", { class: "grid" }, ...charts.map((one) => chart(one, factor))),
  ]));
}

function outcomes() {
  const { steps, outcomes: list } = data.outcomes;
  const totals = { all: 0, first: 0, last: 0 };
  for (const one of list) for (const span of Object.keys(totals)) totals[span] += one[span];
  const share = (one, span) => totals[span] ? one[span] / totals[span] : null;
  const name = steps === 1 ? "step" : `${steps} steps`;
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...["outcome", "calls", "share", `first ${name}`,
      `last ${name}`, ""].map((text) => element("th", {}, text)))),
    element("tbody", {}, ...list.map((one) => element("tr", {},
      element("td", {}, one.name), element("td", {}, Math.round(one.all)),
      element("td", {}, show(share(one, "all"), "share")),
      element("td", {}, show(share(one, "first"), "share")),
      element("td", {}, show(share(one, "last"), "share")),
      element("td", { style: "text-align:left;min-width:11rem" }, element("span",
        { class: "bar", style: `width:${(10 * share(one, "all")).toFixed(2)}rem` }))))));
  byId("outcomes").replaceChildren(list.length
    ? element("div", { class: "panels" }, element("div", { class: "panel" }, table))
    : element("p", { class: "empty" }, "No tool was called."));
}

// --- the sample browser's state, kept in the address after #samples?
let mode = "mask";
let chosen = 0;

function readState() {
  const [place, query] = location.hash.slice(1).split("?");
  const sections = [...document.querySelectorAll("section")];
  const tab = sections.find((section) => section.dataset.tab === place) ?? sections[0];
  for (const section of sections) section.className = section === tab ? "here" : "";
  for (const link of document.querySelectorAll("nav a")) {
    link.className = link.hash === `#${tab.dataset.tab}` ? "here" : "";
  }
  if (query === undefined) return;
  const state = new URLSearchParams(query);
  for (const control of byId("filters").elements) if (control.name) control.value = state.get(control.name) ?? "";
  mode = state.get("mode") in MODES ? state.get("mode") : "mask";
  chosen = Number(state.get("sample") ?? 0);
}

function writeState() {
  const state = new URLSearchParams();
  for (const [name, value] of new FormData(byId("filters"))) if (value) state.set(name, value);
  state.set("sample", chosen);
  if (mode !== "mask") state.set("mode", mode);
  history.replaceState(null, "", `#samples?${state}`);
}

function browse() {
  const state = Object.fromEntries(new FormData(byId("filters")));
  const kept = filterSamples(samples, state);
  if (kept.length && !kept.some((sample) => sample.index === chosen)) chosen = kept[0].index;
  byId("sample-count").textContent = samples.length
    ? `${kept.length} of ${samples.length}, from ${new Set(samples.map((s) => s.where)).size} of `
      + `${data.num_stored} stored steps` : "";
  const choose = (index) => { chosen = index; writeState(); browse(); };
  const items = kept.map((sample) => listItem(sample, sample.index === chosen, choose));
  byId("list").replaceChildren(...items);
  reveal(items.find((item) => item.className === "here"));
  byId("detail").replaceChildren(kept.length
    ? detailView(samples[chosen], mode, data.vocabulary, (name) => { mode = name; writeState(); browse(); })
    : element("p", { class: "empty" }, samples.length ? "Nothing matches." : "No trajectories are stored."));
  byId("list").onkeydown = (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const at = kept.findIndex((sample) => sample.index === chosen) + (step ?? 0);
    if (step && kept[at]) { event.preventDefault(); choose(kept[at].index); }
  };
}

// Scrolls the list alone: scrollIntoView would move the page, too.
function reveal(item) {
  const list = byId("list");
  if (!item) return;
  const above = item.offsetTop - list.offsetTop, below = above + item.offsetHeight;
  if (above < list.scrollTop) list.scrollTop = above;
  else if (below > list.scrollTop + list.clientHeight) list.scrollTop = below - list.clientHeight;
}

function options(name, label, values) {
  byId("filters").elements[name].append(element("option", { value: "" }, label),
    ...[...new Set(values)].map((value) => element("option", { value }, value)));
}

function configuration() {
  const flat = [];
  const walk = (value, path) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, item] of Object.entries(value)) walk(item, path ? `${path}.${key}` : key);
    } else flat.push([path, typeof value === "string" ? value : JSON.stringify(value)]);
  };
  if (data.config) walk(data.config, "");
  byId("config-body").replaceChildren(flat.length
    ? element("div", { class: "panel columns" }, ...flat.map(([key, value]) =>
      element("div", {}, element("span", {}, key), element("span", {}, value))))
    : element("p", { class: "empty" }, "The run folder has no config.json."));
}

header();
overview();
curves();
outcomes();
configuration();
options("where", "any step", samples.map((sample) => sample.where));
options("stop", "any end", samples.map((sample) => sample.stop));
readState();
browse();
byId("smoothing").addEventListener("input", curves);
byId("filters").addEventListener("input", () => { writeState(); browse(); });
byId("filters").addEventListener("reset", () => setTimeout(() => { writeState(); browse(); }));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => { readState(); browse(); scrollTo(0, 0); });
document.body.dataset.ready = "yes";
