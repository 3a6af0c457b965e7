// The sample browser: filters, a list, and one trajectory with its mask and both log-probabilities.

// "rl, step 12", or for the trajectories of an evaluation "after rl: aime-2024".
function placeName({ stage, step }) {
  const evaluation = /^evaluate-([a-z]+)-(.*)$/.exec(stage);
  if (!evaluation) return `${stage}, step ${step}`;
  const of = evaluation[1] === "baseline" ? "first weights" : `after ${evaluation[1]}`;
  return `${of}: ${evaluation[2]}${step ? `, step ${step}` : ""}`;
}

function prepareSamples(data) {
  return data.samples.map((sample, index) => {
    const place = new Int32Array(sample.mask.length).fill(-1);
    let seen = 0;
    for (let i = 0; i < sample.mask.length; i++) if (sample.mask[i] === "1") place[i] = seen++;
    const gaps = sample.gap?.map(Math.abs) ?? [];
    return {
      ...sample,
      index,
      place,
      where: placeName(sample),
      verdict: sample.correct === null ? "ungraded" : sample.correct ? "right" : "wrong",
      maxGap: gaps.length ? gaps.reduce((a, b) => Math.max(a, b), 0) : null,
      haystack: [sample.problem, sample.gold, sample.answer, sample.status, sample.stop, sample.error,
        ...sample.segments.map((s) => s[3]), ...sample.calls.flatMap((c) => [c[2], c[3], c[5]])]
        .filter(Boolean).join("\n").toLowerCase(),
    };
  });
}

const FILTERS = {
  q: (sample, value) => value.toLowerCase().split(/\s+/).every((word) => sample.haystack.includes(word)),
  where: (sample, value) => sample.where === value,
  verdict: (sample, value) => sample.verdict === value,
  tool: (sample, value) => ({
    used: sample.calls.length > 0,
    unused: sample.calls.length === 0,
    error: sample.calls.some((call) => !call[4]),
  })[value],
  stop: (sample, value) => sample.stop === value,
};

const SORTS = {
  reward: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  "reward-up": (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity),
  length: (a, b) => b.ids.length - a.ids.length,
  gap: (a, b) => (b.maxGap ?? -1) - (a.maxGap ?? -1),
};

function filterSamples(samples, state) {
  const kept = samples.filter((sample) =>
    Object.entries(FILTERS).every(([name, test]) => !state[name] || test(sample, state[name])));
  const order = SORTS[state.sort];
  return order ? kept.sort((a, b) => order(a, b) || a.index - b.index) : kept;
}

function verdictBadge(sample) {
  const kind = sample.verdict === "ungraded" ? "none" : sample.verdict;
  return element("span", { class: `badge ${kind}` }, sample.verdict);
}

function listItem(sample, here, choose) {
  return element("li", { class: here ? "here" : "", onclick: () => choose(sample.index) },
    element("div", { class: "top" }, element("b", {}, sample.problem), verdictBadge(sample)),
    element("div", { class: "sub" },
      `${sample.where} · reward ${show(sample.reward)} · `
      + `${sample.calls.length} call${sample.calls.length === 1 ? "" : "s"}`));
}

const MODES = {
  mask: "who spoke (mask)",
  policy: "policy log-probability",
  engine: "engine log-probability",
  gap: "engine − policy",
};

function shade(sample, mode, k) {
  if (mode === "mask" || k < 0) return null;
  const values = sample[mode];
  if (!values) return null;
  const value = values[k];
  if (value === null) return null;
  // Log-probabilities: full colour at -6 (1 in 400). Gaps: from 1e-6 to 1e-2 on a log scale.
  const strength = mode === "gap"
    ? Math.min(1, Math.max(0, (Math.log10(Math.abs(value) + 1e-12) + 6) / 4))
    : Math.min(1, Math.abs(value) / 6);
  const tint = mode === "gap" ? "199, 62, 120" : "217, 120, 30";
  return `background:rgba(${tint},${(0.06 + 0.7 * strength).toFixed(2)})`;
}

function tokenTip(sample, i) {
  const k = sample.place[i];
  const pairs = [["token", `${JSON.stringify(sample.pieces?.[i] ?? "")}  id ${sample.ids[i]}`],
    ["position", i], ["mask", sample.mask[i]]];
  if (k >= 0) {
    pairs.push(["engine log-probability", sample.engine[k].toFixed(5)]);
    if (sample.policy) {
      pairs.push(["policy log-probability", sample.policy[k].toFixed(5)]);
      pairs.push(["engine − policy", sample.gap[k].toExponential(1)]);
    }
    pairs.push(["weight version", sample.versions[k] ?? "–"]);
  } else pairs.push(["", "not sampled by the policy: not trained on"]);
  return rows(pairs);
}

function segmentBody(sample, [speaker, start, end, text], mode, vocabulary) {
  const body = element("p", { class: "text" });
  if (!sample.tokens.length) { body.textContent = text; return body; }
  for (let i = start; i < end; i++) {
    const piece = vocabulary[sample.tokens[i]];
    const token = element("span", { class: "t", "data-i": i });
    const style = shade(sample, mode, sample.place[i]);
    if (style) token.setAttribute("style", style);
    // A line break shows its token too, so that its colour and its values can be seen.
    for (const part of piece.split(/(\n)/)) {
      if (part === "\n") token.append(element("span", { class: "nl" }, "↵"), "\n");
      else if (part) token.append(part);
    }
    body.append(token);
  }
  return body;
}

function segmentSummary(sample, [speaker, start, end]) {
  const who = { prompt: "prompt", policy: sample.advantage === null ? "policy" : "policy · trained on", tool: "tool and framing" }[speaker];
  const ks = [];
  for (let i = start; i < end; i++) if (sample.place[i] >= 0) ks.push(sample.place[i]);
  const mean = (values) => ks.reduce((sum, k) => sum + values[k], 0) / ks.length;
  let text = `${who} · ${end - start} tokens`;
  if (ks.length) {
    text += ` · mean log-probability: engine ${mean(sample.engine).toFixed(3)}`;
    if (sample.policy) text += `, policy ${mean(sample.policy).toFixed(3)}`;
  }
  return text;
}

function facts(pairs) {
  return element("div", { class: "facts" }, ...pairs.filter(([, value]) => value !== null)
    .map(([name, value]) => element("span", {}, `${name} `, element("b", {}, String(value)))));
}

function callView([turn, name, args, outcome, ok, text, wall]) {
  let code = args;
  try {
    const parsed = JSON.parse(args);
    code = typeof parsed.code === "string" ? parsed.code : args;
  } catch { /* not JSON: shown as it is */ }
  return element("div", { class: "call" },
    `turn ${turn + 1} · ${name} · `, element("span", { class: `badge ${ok ? "right" : "wrong"}` }, outcome),
    ` · ${(1000 * wall).toFixed(0)} ms`,
    element("pre", { class: "text" }, code), element("pre", { class: "text" }, `→ ${text}`));
}

function detailView(sample, mode, vocabulary, setMode) {
  sample.pieces ??= sample.tokens.map((token) => vocabulary[token]);
  const parts = Object.entries(sample.components).map(([name, value]) => `${name} ${show(value)}`);
  const versions = [...new Set(sample.versions)].join(", ");
  const view = element("div", { class: `mode-${mode}` },
    element("div", {}, element("b", {}, sample.problem), " ", verdictBadge(sample), " ",
      element("small", { class: "none" }, `${sample.where}, group ${sample.group}, sample ${sample.sample}`)),
    facts([["gold", sample.gold], ["answer", sample.answer ?? "–"],
      ["reward", show(sample.reward) + (parts.length ? ` = ${parts.join(" + ")}` : "")],
      ["advantage", sample.advantage === null ? "not in the batch" : show(sample.advantage)],
      ["ended", `${sample.status}: ${sample.stop}`], ["turns", sample.turns],
      ["tokens", `${sample.ids.length}, ${sample.engine.length} sampled`],
      ["weight versions", versions || null],
      ["largest |engine − policy|", sample.maxGap === null ? null : sample.maxGap.toExponential(1)],
      ["time", sample.wall ? `${sample.wall.toFixed(2)} s` : null], ["error", sample.error]]),
    element("div", { class: "modes" }, "colour by", ...Object.entries(MODES)
      .filter(([name]) => name === "mask" || (sample[name] && sample.tokens.length))
      .map(([name, label]) => element("button",
        { class: name === mode ? "here" : "", onclick: () => setMode(name) }, label))),
    ...sample.segments.map((segment) => element("div", { class: `segment ${segment[0]}` },
      element("small", {}, segmentSummary(sample, segment)),
      segmentBody(sample, segment, mode, vocabulary))),
    sample.calls.length ? element("h3", {}, "Tool calls") : null,
    ...sample.calls.map(callView));
  view.addEventListener("pointermove", (event) => {
    const token = event.target.closest?.(".t");
    if (token) tip.show(event, tokenTip(sample, Number(token.dataset.i)));
    else tip.hide();
  });
  view.addEventListener("pointerleave", tip.hide);
  return view;
}
