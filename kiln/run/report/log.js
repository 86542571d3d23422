// The log of a page: unpacks the parts that are looked at, leads to lines, and searches all of them.
"use strict";
const root = document.getElementById("log");
const parts = [...document.querySelectorAll("script.part")].map(source => ({
  source, line: Number(source.dataset.line), lines: Number(source.dataset.lines),
}));
const marked = new Set(root.dataset.marked.split(" ").map(Number));
const STAMP = /^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?: |$)/;
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])/g;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/g;
const seconds = match => Date.UTC(match[1], match[2] - 1, match[3], match[4], match[5], match[6]) / 1000;
const first = STAMP.exec(root.dataset.start);
const start = first ? seconds(first) : 0;

async function textOf(part) {
  const packed = Uint8Array.from(atob(part.source.textContent.trim()), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).text()).replace(/\n$/, "");
}

function offset(match) {
  const all = Math.max(0, seconds(match) - start), pad = number => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  return `+${hours ? `${hours}:${pad(minutes)}` : minutes}:${pad(all % 60)}`;
}

function lineElement(number, raw, before) {
  const match = STAMP.exec(raw), time = match ? offset(match) : "";
  let text = match ? raw.slice(match[0].length) : raw;
  text = text.split("\r").filter(piece => piece.trim()).pop() ?? "";
  text = text.replace(ESCAPES, "").replace(HIDDEN, "");
  const line = document.createElement("div"), link = document.createElement("a");
  const clock = document.createElement("span"), words = document.createElement("code");
  line.id = `L${number}`;
  line.className = marked.has(number) ? "line cause" : /^\++ (?:export )?[A-Za-z_]\w*=/.test(text) ? "line trace" : "line";
  link.href = `#L${number}`;
  link.textContent = number;
  clock.textContent = time === before ? "" : time;
  words.textContent = text;
  line.append(link, clock, words);
  return [line, time || before];
}

async function fill(part) {
  part.filled ??= (async () => {
    const lines = (await textOf(part)).split("\n");
    let time = "", element;
    const all = document.createDocumentFragment();
    lines.forEach((raw, index) => {
      [element, time] = lineElement(part.line + index, raw, time);
      all.append(element);
    });
    part.box.style.minHeight = "";
    part.box.replaceChildren(all);
  })();
  await part.filled;
}

function empty(part) {
  if (!part.filled) return;
  part.box.style.minHeight = `${part.box.offsetHeight}px`;
  part.box.replaceChildren();
  part.filled = undefined;
}

const near = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const part = parts[Number(entry.target.dataset.part)];
    if (entry.isIntersecting) fill(part);
    else if (entry.boundingClientRect.height && !part.kept) empty(part);
  }
}, { rootMargin: "1500px 0px" });

function lay(step) {
  if (step.laid) return;
  step.laid = true;
  const from = Number(step.dataset.line), until = from + Number(step.dataset.lines);
  parts.forEach((part, index) => {
    if (part.line < from || part.line >= until) return;
    part.box = document.createElement("div");
    part.box.dataset.part = index;
    part.box.style.minHeight = `${part.lines * 19}px`;
    step.append(part.box);
    near.observe(part.box);
  });
}

const steps = [...root.querySelectorAll("details.step")];
for (const step of steps) step.addEventListener("toggle", () => step.open && lay(step));

async function show(number) {
  const step = steps.find(each => number < Number(each.dataset.line) + Number(each.dataset.lines));
  const part = parts.findLast(each => each.line <= number);
  if (!step || !part) return;
  step.open = true;
  lay(step);
  for (const each of parts) each.kept = each === part;
  await fill(part);
  document.querySelector(".line.shown")?.classList.remove("shown");
  const line = document.getElementById(`L${number}`);
  line?.classList.add("shown");
  line?.scrollIntoView({ block: "center" });
  requestAnimationFrame(() => line?.scrollIntoView({ block: "center" }));
}

function follow() {
  const match = /^#L(\d+)$/.exec(location.hash);
  if (match) show(Number(match[1]));
}
addEventListener("hashchange", follow);

const form = document.getElementById("search"), box = form.querySelector("input");
const told = form.querySelector("output");
let found = [], at = -1, sought = "", turn = 0;

async function search(words) {
  const mine = ++turn;
  [found, at, sought] = [[], -1, words];
  const low = words.toLowerCase();
  for (const [index, part] of parts.entries()) {
    const text = (await textOf(part)).toLowerCase();
    if (mine !== turn) return;
    let line = part.line, place = 0, hit;
    while ((hit = text.indexOf(low, place)) >= 0 && found.length < 100000) {
      for (let end = text.indexOf("\n", place); end >= 0 && end < hit; end = text.indexOf("\n", end + 1)) line++;
      found.push(line);
      const end = text.indexOf("\n", hit);
      if (end < 0) break;
      place = end + 1;
      line++;
    }
    if (index % 64 === 0) told.textContent = `searching… ${found.length} lines so far`;
  }
  told.textContent = found.length ? "" : "no line has it";
  if (found.length) step(1);
}

function step(by) {
  if (!found.length) return;
  at = (at + by + found.length) % found.length;
  told.textContent = `line ${found[at]}: ${at + 1} of ${found.length}`;
  history.replaceState(null, "", `#L${found[at]}`);
  show(found[at]);
}

form.addEventListener("submit", event => {
  event.preventDefault();
  const by = event.submitter?.value === "previous" ? -1 : 1;
  if (!box.value) return;
  if (box.value === sought) step(by);
  else search(box.value);
});
addEventListener("keydown", event => {
  if (event.key !== "/" || event.target.matches("input")) return;
  event.preventDefault();
  box.focus();
});
form.hidden = false;
if (steps.length === 1) steps[0].open = true;
for (const each of steps) if (each.open) lay(each);
follow();
