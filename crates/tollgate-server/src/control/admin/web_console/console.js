// The console in a browser. It shows what the server sends each second, and sends forms. Text of callers only ever
// becomes text: nothing here writes HTML.

const SILENT = "the server does not answer";
const formToken = document.body.dataset.formToken;
const byId = (id) => document.getElementById(id);
const canHover = matchMedia("(hover: hover)");
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children. Strings become text. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawing(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---- Tables ----

function fieldCell(field, column) {
  const cell = element("td", { class: field.tone ?? "plain", "data-column": column }, field.text);
  if (field.trend) cell.append(trend(field.trend));
  return cell;
}

function trend(counts) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((count, index) => {
    const height = (count / most) * 20;
    return drawing("rect", { x: index, y: 20 - height, width: 0.9, height, class: "denied" });
  });
  const total = counts.reduce((sum, count) => sum + count, 0);
  const attributes = { viewBox: `0 0 ${counts.length} 20`, preserveAspectRatio: "none", class: "trend", role: "img" };
  return drawing("svg", { ...attributes, "aria-label": `${total} denials in 15 minutes` }, ...bars);
}

function showPanel(panel) {
  const section = byId(panel.id) ?? addSection(panel);
  const hasLinks = panel.entries.some((entry) => entry.about);
  // Rows that an operator is about to open must not move away. A finger does not point at anything after a tap.
  const isPointedAt = canHover.matches && section.matches(":hover");
  const isPaused = hasLinks && (isPointedAt || section.contains(document.activeElement));
  section.classList.toggle("paused", isPaused);
  if (isPaused) return;
  section.querySelector(".note").textContent = panel.note;
  const heads = panel.columns.map((column) => element("th", { scope: "col" }, column));
  if (hasLinks) heads.push(element("th", { scope: "col" }, element("span", { class: "sr" }, "open")));
  section.querySelector("thead tr").replaceChildren(...heads);
  const rows = panel.entries.map((entry) => {
    const cells = entry.fields.map((field, index) => fieldCell(field, panel.columns[index]));
    if (entry.about) {
      const link = element("a", { class: "button", href: `/console/subject?${entry.about}` }, "Open");
      cells.push(element("td", { class: "open" }, link));
    }
    return element("tr", {}, ...cells);
  });
  if (rows.length === 0) {
    rows.push(element("tr", {}, element("td", { colspan: panel.columns.length }, panel.empty)));
  }
  section.querySelector("tbody").replaceChildren(...rows);
}

function addSection(panel) {
  const title = `${panel.id}-title`;
  const table = element("table", {}, element("thead", {}, element("tr")), element("tbody"));
  const section = element(
    "section", { class: "panel", id: panel.id, "aria-labelledby": title },
    element("h2", { id: title }, panel.title), element("p", { class: "note" }),
    element("div", { class: "scroll" }, table),
  );
  byId("tail").before(section);
  return section;
}

function showStrip(facts) {
  byId("strip").replaceChildren(...facts.map((fact) =>
    element("div", { class: fact.tone }, element("dt", {}, fact.name), element("dd", {}, fact.text))));
}

// ---- The chart ----

const GROUPS = {
  all: [
    ["allowed", "allowed", ["allow", "wait"]], ["denied", "denied", ["deny", "never", "penalty", "forbidden"]],
    ["blocked", "blocked", ["blocked"]], ["shed", "shed", ["shed"]],
    ["no decision", "none", ["unavailable", "fault"]],
  ],
  limit: [
    ["allowed", "allowed", ["allow", "wait"]], ["denied", "denied", ["deny", "never"]],
    ["would allow", "none", ["would_allow"]], ["would deny", "would", ["would_deny"]],
  ],
};
const POINTS = { seconds: 900, minutes: 1440 };
const chart = { range: "seconds", limit: "", counts: { seconds: {}, minutes: {} } };

async function loadHistory() {
  const { limit } = chart;
  const query = limit ? `?${new URLSearchParams({ limit })}` : "";
  const response = await fetch(`/console/history${query}`).catch(() => null);
  if (!response) return;
  // A limit without decisions has no history.
  const counts = response.ok ? await response.json() : { seconds: {}, minutes: {} };
  if (limit !== chart.limit) return;
  chart.counts = counts;
  drawChart();
}

/** How many points the chart has: as many as were measured, but at least a minute or an hour. */
function chartLength() {
  const measured = Object.values(chart.counts[chart.range]).map((counts) => counts.length);
  return Math.min(POINTS[chart.range], Math.max(60, ...measured));
}

/** The counts of a range by group, each as long as the chart. */
function grouped(length) {
  return GROUPS[chart.limit ? "limit" : "all"].map(([label, style, names]) => {
    const sums = new Array(length).fill(0);
    for (const name of names) {
      const counts = chart.counts[chart.range][name] ?? [];
      counts.forEach((count, index) => { sums[length - counts.length + index] += count; });
    }
    return { label, style, sums };
  });
}

function drawChart() {
  const length = chartLength();
  const groups = grouped(length);
  const perSecond = chart.range === "seconds" ? 1 : 60;
  const totals = new Array(length).fill(0);
  groups.forEach(({ sums }) => sums.forEach((count, index) => { totals[index] += count; }));
  const most = Math.max(perSecond, ...totals);
  const base = new Array(length).fill(0);
  const areas = groups.map(({ style, sums }) => {
    const below = base.map((count, index) => `${index},${200 - (count / most) * 190}`);
    sums.forEach((count, index) => { base[index] += count; });
    const above = base.map((count, index) => `${index},${200 - (count / most) * 190}`);
    return drawing("polygon", { class: style, points: [...above, ...below.reverse()].join(" ") });
  });
  const now = groups.map(({ label, sums }) => `${label} ${rate(sums[length - 1] / perSecond)}`).join(", ");
  const svg = drawing(
    "svg",
    { viewBox: `0 0 ${length - 1} 200`, preserveAspectRatio: "none", role: "img", "aria-label": `A second: ${now}` },
    ...areas,
  );
  byId("chart").replaceChildren(svg, element("span", {}, `${rate(most / perSecond)}/s`));
  const [count, unit] = chart.range === "seconds" ? [length, "s"] : [length, "min"];
  byId("chart-from").textContent = count > 120 ? `${Math.round(count / 60)} ${unit === "s" ? "min" : "h"} ago` : `${count} ${unit} ago`;
  byId("legend").replaceChildren(...groups.map(({ label, style, sums }) => element(
    "span", {}, drawing("svg", { viewBox: "0 0 1 1" }, drawing("rect", { width: 1, height: 1, class: style })),
    `${label} ${rate(sums[length - 1] / perSecond)}/s`,
  )));
}

function rate(number) {
  return number < 10 && !Number.isInteger(number) ? number.toFixed(1) : Math.round(number).toLocaleString("en");
}

function addSecond(overview) {
  // A limit that no node counts any more has no decisions in this second, and its time goes on.
  const rates = (chart.limit ? overview.limits[chart.limit] : overview.rates) ?? {};
  const seconds = chart.counts.seconds;
  const length = Math.max(0, ...Object.values(seconds).map((counts) => counts.length));
  for (const name of new Set([...Object.keys(seconds), ...Object.keys(rates)])) {
    const [before, count] = [seconds[name] ?? [], rates[name] ?? 0];
    if (before.length === 0 && count === 0) continue;
    // All counts end with this second, so each has a number for it.
    seconds[name] = [...new Array(length - before.length).fill(0), ...before, count].slice(-POINTS.seconds);
  }
  if (chart.range === "seconds") drawChart();
}

function showLimits(counted) {
  const select = byId("rates-limit");
  // What is shown stays selected, also when no node counts it any more.
  const names = counted.includes(chart.limit) || !chart.limit ? counted : [...counted, chart.limit];
  const known = [...select.options].map((option) => option.value).filter((value) => value);
  if (known.join("\n") === names.join("\n") || document.activeElement === select) return;
  const options = names.map((name) => element("option", { value: name }, `limit ${name}`));
  select.replaceChildren(element("option", { value: "" }, "all decisions"), ...options);
  select.value = chart.limit;
}

function showRange(range) {
  chart.range = range;
  byId("show-seconds").setAttribute("aria-pressed", String(range === "seconds"));
  byId("show-minutes").setAttribute("aria-pressed", String(range === "minutes"));
  loadHistory();
}

// ---- Live ----

let source = null;
let shownAt = byId("at").textContent;

function showOverview(overview) {
  shownAt = overview.at;
  announce("");
  byId("state").className = "";
  byId("state").replaceChildren("live, ", element("time", { id: "at" }, overview.at));
  showStrip(overview.strip);
  overview.panels.forEach(showPanel);
  showLimits(Object.keys(overview.limits));
  addSecond(overview);
}

/** Old numbers must not pass for those of now. */
function showOld(reason) {
  byId("state").className = "bad";
  byId("state").textContent = `NOT LIVE: ${reason}; the numbers are of ${shownAt}; connecting again …`;
  announce(`Not live: ${reason}`);
}

/** Has a screen reader say something once, and not each second. */
function announce(text) {
  if (byId("alert").textContent !== text) byId("alert").textContent = text;
}

function connect() {
  if (source) return;
  source = new EventSource("/console/events");
  source.addEventListener("overview", (event) => showOverview(JSON.parse(event.data)));
  source.addEventListener("audit", (event) => showPanel(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    showOld(SILENT);
    if (source?.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(connectAgain, 3000);
    }
  });
}

/** Why the server refused, where it says so. A session that is over leads to the form to log in. */
async function connectAgain() {
  if (document.hidden || source) return;
  const abort = new AbortController();
  const headers = { Accept: "application/json" };
  const response = await fetch("/console/events", { headers, signal: abort.signal }).catch(() => null);
  if (response?.status === 401) return location.reload();
  if (response?.ok) {
    abort.abort();
    return connect();
  }
  showOld(response ? (await response.json().catch(() => null))?.sentence ?? SILENT : SILENT);
  setTimeout(connectAgain, 3000);
}

function disconnect() {
  source?.close();
  source = null;
}

// ---- Keys and limits ----

async function asked(path, options = {}) {
  try {
    const response = await fetch(path, { ...options, headers: { Accept: "application/json" } });
    if (response.status === 401) location.reload();
    return await response.json();
  } catch {
    const sentence = `${SILENT}: whether it was done is not known. Look again when it answers.`;
    return { title: "No answer", sentence, tone: "bad" };
  }
}

function post(fields) {
  const body = new URLSearchParams(fields);
  body.set("form_token", formToken);
  return asked("/console/act", { method: "POST", body });
}

function answerNodes(answer) {
  const nodes = [element("p", { class: answer.tone }, answer.sentence)];
  if (answer.more?.length) nodes.push(element("ul", {}, ...answer.more.map((text) => element("li", {}, text))));
  if (answer.command) nodes.push(element("pre", {}, answer.command));
  return nodes;
}

function panelNodes({ id, title, note, columns, entries }) {
  const heads = columns.map((column) => element("th", { scope: "col" }, column));
  const rows = entries.map((entry) =>
    element("tr", {}, ...entry.fields.map((field, index) => fieldCell(field, columns[index]))));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  return element(
    "section", { id, "aria-labelledby": `${id}-title` },
    element("h3", { id: `${id}-title` }, title), element("p", { class: "note" }, note),
    element("div", { class: "scroll" }, table),
  );
}

/** What a pasted policy, or the last change, would have done. */
async function compare(event) {
  event.preventDefault();
  const fields = new FormData(event.target);
  if (event.submitter?.name) {
    fields.set(event.submitter.name, event.submitter.value);
    fields.delete("policy");
  }
  const answer = byId("what-if-answer");
  answer.replaceChildren(element("p", {}, "comparing …"));
  const body = new URLSearchParams(fields);
  body.set("form_token", formToken);
  const found = await asked("/console/what-if", { method: "POST", body });
  answer.replaceChildren(
    element("h3", {}, found.title), ...answerNodes(found), ...(found.panels ?? []).map(panelNodes));
}

/** How long until all nodes know what an operator did. */
const SETTLED_AFTER = 2500;
/** The path of the key or limit that is open. */
let opened = "";

function showSubject(path, answer) {
  byId("act-title").textContent = answer.title;
  byId("act-about").replaceChildren(...answerNodes(answer));
  byId("act-offers").replaceChildren(...(answer.offers ?? []).map((offer) => {
    const button = element("button", {}, offer.label);
    button.addEventListener("click", () => take(path, offer, button));
    return element("div", { class: "offer" }, button, element("code", {}, offer.command));
  }));
}

/** Does what an offer says. What was true of the subject before is not shown beside the result. */
async function take(path, offer, button) {
  button.disabled = true;
  const result = await post(offer.fields);
  if (opened !== path) return;
  // Its command is beside the button.
  byId("act-result").replaceChildren(...answerNodes({ ...result, command: null }));
  button.disabled = false;
  await showAgain(path);
  setTimeout(() => showAgain(path), SETTLED_AFTER);
}

async function showAgain(path) {
  if (opened !== path) return;
  const answer = await asked(path);
  // Without an answer the offers stay.
  if (opened !== path || !answer.offers) return;
  const focused = document.activeElement?.closest("#act-offers") ? document.activeElement.innerText : null;
  showSubject(path, answer);
  if (focused === null) return;
  const same = [...document.querySelectorAll("#act-offers button")].find((button) => button.innerText === focused);
  (same ?? byId("act-title")).focus();
}

async function openSubject(path) {
  opened = path;
  const answer = await asked(path);
  if (opened !== path) return;
  showSubject(path, answer);
  byId("act-result").replaceChildren();
  byId("act").hidden = false;
  byId("act-title").focus();
  byId("act").scrollIntoView({ block: "nearest" });
}

function closeSubject() {
  opened = "";
  byId("act").hidden = true;
}

// ---- The tail ----

const EVENTS_KEPT = 500;
const EVENTS_SHOWN = 100;
const tail = { abort: null, events: [], isDrawn: true, wanted: [""] };

async function startTail() {
  tail.abort = new AbortController();
  const path = `/console/tail?denied=${byId("tail-denied").checked}`;
  const response = await fetch(path, { headers: { Accept: "application/json" }, signal: tail.abort.signal });
  if (!response.ok) throw new Error((await response.json().catch(() => null))?.sentence ?? "refused");
  byId("tail-toggle").textContent = "Stop";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("it ended");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((text) => text)) tail.events.unshift(JSON.parse(line));
    tail.events.length = Math.min(tail.events.length, EVENTS_KEPT);
    drawTailSoon();
  }
}

function drawTailSoon() {
  if (!tail.isDrawn) return;
  tail.isDrawn = false;
  setTimeout(() => { tail.isDrawn = true; drawTail(); }, 250);
}

function verdict({ verdict, would_deny: names = [] }) {
  return names.length ? `${verdict}, ${names.join(" and ")} would deny` : verdict;
}

/** Where the denials from before the tail end, and whether there were more. */
function pastText({ past, forgotten_until: forgotten }) {
  const some = `denials before: ${past}`;
  return forgotten ? `${some}; keys last denied before ${forgotten.slice(11, 19)}Z may be forgotten` : some;
}

/** Filters by the typed text. A credential is shown as its digest, which the server knows to compute. */
let typing = 0;
function filterTail() {
  const text = byId("tail-filter").value.trim();
  tail.wanted = [text.toLowerCase()];
  drawTail();
  clearTimeout(typing);
  if (!text) return;
  typing = setTimeout(async () => {
    const body = new URLSearchParams({ form_token: formToken, text });
    const response = await fetch("/console/digest", { method: "POST", body }).catch(() => null);
    const digests = response?.ok ? await response.json() : [];
    if (byId("tail-filter").value.trim() !== text) return;
    tail.wanted = [text, ...digests].map((wanted) => wanted.toLowerCase());
    drawTail();
  }, 300);
}

function drawTail() {
  const texts = tail.events.map((event) => event.at === undefined ? [
    "", event.missed ? `${event.missed} missed` : event.problem ?? pastText(event), "", "", "", "", event.node ?? "",
  ] : [
    event.at.slice(11, 23), verdict(event), event.limit,
    Object.entries(event.attributes).map(([name, value]) => `${name}=${value}`).join(" "),
    event.retry_after_ms === undefined ? "" : `${event.retry_after_ms} ms`, event.source,
    event.node ?? "",
  ]);
  const columns = ["when", "verdict", "limit", "attributes", "retry after", "source", "node"];
  const isWanted = (text) => tail.wanted.some((wanted) => text.includes(wanted));
  const shown = texts.filter((fields) => isWanted(fields.join(" ").toLowerCase())).slice(0, EVENTS_SHOWN);
  byId("tail-events").replaceChildren(...shown.map((fields) => element("tr", {}, ...fields.map((text, index) =>
    element("td", { "data-column": columns[index], class: index === 1 && !text.startsWith("allow") ? "bad" : "plain" }, text)))));
}

async function toggleTail(isWanted) {
  tail.abort?.abort();
  tail.abort = null;
  byId("tail-toggle").textContent = isWanted ? "Starting" : "Start";
  byId("tail-toggle").setAttribute("aria-pressed", String(isWanted));
  if (!isWanted) return;
  try {
    await startTail();
  } catch (error) {
    if (error.name === "AbortError") return;
    toggleTail(false);
    byId("tail-toggle").textContent = `Start (${error.message})`;
  }
}

// ---- Start ----

document.querySelectorAll(".js").forEach((section) => { section.hidden = false; });
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="/console/subject?"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openSubject(link.getAttribute("href"));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeSubject();
});
byId("act-close").addEventListener("click", closeSubject);
byId("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("answer").replaceChildren(...answerNodes(await post(new FormData(event.target))));
});
byId("what-if-form")?.addEventListener("submit", compare);
byId("what-if-file")?.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) byId("what-if-policy").value = await file.text();
});
byId("show-seconds").addEventListener("click", () => showRange("seconds"));
byId("show-minutes").addEventListener("click", () => showRange("minutes"));
byId("rates-limit").addEventListener("change", (event) => {
  chart.limit = event.target.value;
  loadHistory();
});
byId("tail-toggle").addEventListener("click", () => toggleTail(!tail.abort));
byId("tail-denied").addEventListener("change", () => { if (tail.abort) toggleTail(true); });
byId("tail-filter").addEventListener("input", filterTail);
// Browsers open six connections to a server at most, so a tab that is not seen gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return disconnect();
  connect();
  loadHistory();
});
setInterval(() => { if (chart.range === "minutes" && !document.hidden) loadHistory(); }, 60000);
connect();
loadHistory();
