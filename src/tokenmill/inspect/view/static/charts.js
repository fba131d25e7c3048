// Zoom, values under the pointer, and live curves, for the charts of the page of runs. The server
// draws the charts; this file asks it for other parts of a run, and extends curves with new points.

const LIVE_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const NARROWEST = 8;

const make = (name, attributes) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const format = (value) => (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? value.toFixed(4) : value.toPrecision(4));

// Maps steps and losses to pixels of one chart, and back.
class Plane {
  constructor(svg) {
    const number = (name) => Number(svg.dataset[name]);
    this.left = number("left"); this.top = number("top");
    this.across = number("across"); this.down = number("down");
    this.x = { low: number("xLow"), high: number("xHigh"), isLog: number("xLog") === 1 };
    this.y = { low: number("yLow"), high: number("yHigh"), isLog: number("yLog") === 1 };
  }
  static part(scale, value) {
    return ((scale.isLog ? Math.log10(value) : value) - scale.low) / (scale.high - scale.low);
  }
  placeX(step) { return clamp(this.left + this.across * Plane.part(this.x, step), -1e5, 1e5); }
  placeY(loss) { return clamp(this.top + this.down * (1 - Plane.part(this.y, loss)), -1e5, 1e5); }
  stepAt(x) {
    const scaled = this.x.low + ((x - this.left) / this.across) * (this.x.high - this.x.low);
    return this.x.isLog ? 10 ** scaled : scaled;
  }
  has(loss) { const part = Plane.part(this.y, loss); return part >= -0.03 && part <= 1.03; }
}

const isKnown = (value) => value !== null && value !== undefined;

function drawLine(plane, steps, values) {
  let path = "", isOpen = false;
  steps.forEach((step, n) => {
    if (!isKnown(values[n])) { isOpen = false; return; }
    path += `${isOpen ? "L" : "M"}${plane.placeX(step).toFixed(1)} ${plane.placeY(values[n]).toFixed(1)}`;
    isOpen = true;
  });
  return path;
}

function drawDots(plane, steps, values) {
  return steps.map((step, n) => (isKnown(values[n])
    ? `M${plane.placeX(step).toFixed(1)} ${plane.placeY(values[n]).toFixed(1)}h0` : "")).join("");
}

function drawBand(plane, steps, low, high) {
  const known = steps.map((_, n) => n).filter((n) => isKnown(low[n]) && isKnown(high[n]));
  if (!known.length) return "";
  const back = [...known].reverse();
  const path = drawLine(plane, [...known, ...back].map((n) => steps[n]),
    [...known.map((n) => high[n]), ...back.map((n) => low[n])]);
  return `${path}Z`;
}

// Replaces the last points of a curve with those that the server sent, and adds new ones.
function extend(curve, added) {
  const keep = curve.steps.findIndex((step) => step >= Math.floor(added.start));
  const count = keep < 0 ? curve.steps.length : keep;
  for (const name of ["steps", "values", "low", "high", "faint"]) {
    if (curve[name] && added[name]) curve[name] = [...curve[name].slice(0, count), ...added[name]];
  }
}

// One chart: the pointer, the keys and the read-out.
class Figure {
  constructor(page, element) {
    this.page = page;
    this.element = element;
    this.svg = element.querySelector("svg.plot");
    this.readout = element.querySelector(".readout");
    this.plane = new Plane(this.svg);
    this.curves = [];
    this.step = null;
    this.start = null;
    const { left, top, across, down } = this.plane;
    this.cursor = make("path", { class: "cursor", visibility: "hidden" });
    this.dots = make("g", {});
    this.selection = make("rect", { class: "selection", visibility: "hidden", y: top, height: down });
    const pane = make("rect", { class: "plane", x: left, y: top, width: across, height: down });
    const firstSpike = this.svg.querySelector(".spike");
    for (const one of [this.selection, this.cursor, this.dots, pane]) this.svg.insertBefore(one, firstSpike);
    this.svg.setAttribute("tabindex", "0");
    this.svg.setAttribute("aria-roledescription", "chart");
    this.readout.setAttribute("aria-live", "polite");
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointercancel", () => this.cancel());
    this.svg.addEventListener("pointerleave", () => { if (this.start === null) this.hide(); });
    this.svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.hide());
  }

  // Where the pointer is, in the chart's own pixels.
  place(event) {
    const box = this.svg.getBoundingClientRect();
    return ((event.clientX - box.left) * this.svg.viewBox.baseVal.width) / box.width;
  }
  inside(x) { return clamp(x, this.plane.left, this.plane.left + this.plane.across); }

  press(event) {
    if (event.button !== 0 || event.target.closest(".spike")) return;
    this.start = this.inside(this.place(event));
    this.svg.setPointerCapture(event.pointerId);
    this.svg.focus({ preventScroll: true });
    event.preventDefault();
  }
  move(event) {
    const x = this.inside(this.place(event));
    if (this.start !== null && Math.abs(x - this.start) > 3) {
      this.selection.setAttribute("visibility", "visible");
      this.selection.setAttribute("x", Math.min(x, this.start));
      this.selection.setAttribute("width", Math.abs(x - this.start));
    }
    this.show(this.plane.stepAt(x));
  }
  release(event) {
    if (this.start === null) return;
    const x = this.inside(this.place(event));
    const [low, high] = [Math.min(x, this.start), Math.max(x, this.start)];
    this.cancel();
    if (high - low > 5) this.page.zoom(this.plane.stepAt(low), this.plane.stepAt(high));
  }
  cancel() {
    this.start = null;
    this.selection.setAttribute("visibility", "hidden");
  }
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.svg) return;
    event.preventDefault();
    const factor = Math.exp(clamp(event.deltaY, -200, 200) / 300);
    this.page.zoomAround(this.plane.stepAt(this.inside(this.place(event))), factor);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.svg) return;
    const steps = this.steps();
    const at = this.step === null ? -1 : nearest(steps, this.step);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: steps.length - 1 };
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      this.page.press(event.key === "ArrowLeft" ? "left" : "right");
    } else if (event.key in moves && steps.length) {
      const first = this.step === null && event.key === "ArrowLeft" ? steps.length - 1 : moves[event.key];
      this.show(steps[clamp(first, 0, steps.length - 1)]);
    } else if (event.key === "+" || event.key === "=") {
      if (this.step === null) this.page.press("in"); else this.page.zoomAround(this.step, 0.5);
    } else if (event.key === "-") this.page.press("out");
    else if (event.key === "0") this.page.press("all");
    else if (event.key === "Escape") this.hide();
    else if (event.key === "Enter" && this.step !== null) this.page.openBatch(this.step, this.curves);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The steps of the longest curve, along which the arrow keys move.
  steps() {
    return this.curves.reduce((longest, one) => (one.steps.length > longest.length ? one.steps : longest), []);
  }

  show(step) {
    if (!this.curves.length) return;
    this.step = step;
    const { plane } = this;
    const all = this.steps();
    if (!all.length) return;
    const snapped = all[nearest(all, step)];
    const x = plane.placeX(snapped);
    this.cursor.setAttribute("d", `M${x.toFixed(1)} ${plane.top}v${plane.down}`);
    this.cursor.setAttribute("visibility", "visible");
    this.dots.replaceChildren();
    const title = document.createElement("b");
    title.textContent = `step ${Math.round(snapped).toLocaleString("en-US")}`;
    this.readout.replaceChildren(title);
    const reach = ((this.plane.x.isLog ? snapped : this.page.span) / plane.across) * 12;
    for (const curve of this.curves) {
      if (!curve.steps.length) continue;
      const at = nearest(curve.steps, snapped);
      const value = curve.values[at];
      if (!isKnown(value)) continue;
      if (Math.abs(curve.steps[at] - snapped) > Math.max(reach, curve.dotted ? this.page.span / 20 : 0)) continue;
      this.dots.append(make("circle", {
        class: `cursor-dot colour-${curve.colour % 8}`, r: 3.5, cx: plane.placeX(curve.steps[at]), cy: plane.placeY(value),
      }));
      this.readout.append(line(curve, value, curve.low && `${format(curve.low[at])} to ${format(curve.high[at])}`));
    }
    this.readout.hidden = false;
    const scale = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width;
    const room = this.element.clientWidth - this.readout.offsetWidth;
    const right = x * scale + 14;
    this.readout.style.left = `${clamp(right > room ? x * scale - this.readout.offsetWidth - 14 : right, 0, Math.max(room, 0))}px`;
  }
  hide() {
    this.step = null;
    this.cursor.setAttribute("visibility", "hidden");
    this.dots.replaceChildren();
    this.readout.hidden = true;
  }

  // Draws a curve again after points were added; returns whether all of it fits in the chart.
  redraw(curve) {
    const group = [...this.svg.querySelectorAll(".series")].find((one) => one.dataset.id === curve.id);
    if (!group) return false;
    const { plane } = this;
    const set = (name, path) => { const found = group.querySelector(`.${name}`); if (found) found.setAttribute("d", path); };
    set("line", drawLine(plane, curve.steps, curve.values));
    set("dots", drawDots(plane, curve.steps, curve.values));
    if (curve.low) set("band", drawBand(plane, curve.steps, curve.low, curve.high));
    if (curve.faint) set("faint", drawLine(plane, curve.steps, curve.faint));
    return [curve.values, curve.low, curve.high, curve.faint].every(
      (values) => !values || values.every((value) => !isKnown(value) || plane.has(value)));
  }
}

function line(curve, value, range) {
  const row = document.createElement("span");
  const name = document.createElement("i");
  const number = document.createElement("u");
  const isolated = document.createElement("bdi");
  isolated.textContent = curve.name;
  const swatch = make("svg", { class: `swatch colour-${curve.colour % 8}`, viewBox: "0 0 18 10", width: 14, height: 8 });
  swatch.append(make("path", { class: curve.dotted ? "line dashed" : "line", d: "M1 5h16" }));
  name.append(swatch, isolated);
  number.textContent = format(value);
  row.append(name, number);
  if (range) row.title = range;
  return row;
}

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
}

// All charts of the page, and the part of the runs that they show.
class Page {
  constructor(root) {
    this.root = root;
    this.request = 0;
    this.timer = 0;
    this.wanted = null;
    this.resized = 0;
    addEventListener("popstate", () => this.load(location.search, "none"));
    addEventListener("resize", () => { clearTimeout(this.resized); this.resized = setTimeout(() => this.fit(), 200); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.poll(); });
    this.bind();
    this.fit();
  }

  get query() { return new URLSearchParams(location.search); }
  get width() {
    const figure = this.root.querySelector(".figure");
    return clamp(Math.round(figure.clientWidth), 280, 2400);
  }

  // Draws the charts for the width that they have on this screen.
  fit() {
    const drawn = this.root.querySelector("svg.plot").viewBox.baseVal.width;
    if (Math.abs(drawn - this.width) > 24) this.load(location.search, "none");
    else if (!this.isFilled) this.fill();
  }

  bind() {
    const { root } = this;
    this.first = Number(root.dataset.from);
    this.last = Number(root.dataset.to);
    this.end = Math.max(Number(root.dataset.end), 1);
    this.span = this.last - this.first;
    this.isFilled = false;
    this.runs = [];
    this.figures = [...root.querySelectorAll(".figure")].map((one) => new Figure(this, one));
    for (const hint of root.querySelectorAll("[data-script]")) hint.hidden = false;
    for (const button of root.querySelectorAll("[data-apply]")) button.hidden = true;
    for (const link of root.querySelectorAll("[data-load]")) {
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        if (link.getAttribute("aria-disabled") !== "true") this.load(new URL(link.href).search, "push");
      });
      link.addEventListener("keydown", (event) => {
        if (event.key === " " && link.getAttribute("role") === "switch") { event.preventDefault(); link.click(); }
      });
    }
    const form = root.querySelector("[data-options]");
    const send = () => this.load(`?${clean(new URLSearchParams(new FormData(form)))}`, "push");
    form.addEventListener("change", send);
    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
  }

  // Shows another part of the runs. Only the newest of several requests counts.
  async load(search, how) {
    const number = ++this.request;
    clearTimeout(this.timer);
    const query = new URLSearchParams(search);
    query.set("width", this.width);
    this.root.setAttribute("aria-busy", "true");
    let text = null;
    try {
      const answer = await fetch(`/runs/charts?${query}`);
      if (answer.ok) text = await answer.text();
    } catch { /* the server has ended: the charts stay as they are */ }
    if (number !== this.request) return;
    this.root.removeAttribute("aria-busy");
    if (text === null) return;
    if (how === "push") history.pushState(null, "", `/runs${search === "?" ? "" : search}`);
    if (how === "replace") history.replaceState(null, "", `/runs${search === "?" ? "" : search}`);
    const focused = this.describeFocus();
    const parsed = new DOMParser().parseFromString(text, "text/html").querySelector("[data-charts]");
    if (!parsed) return;
    this.root.replaceWith(parsed);
    this.root = parsed;
    this.wanted = null;
    this.bind();
    this.refocus(focused);
    await this.fill(focused && focused.step);
  }

  describeFocus() {
    const active = document.activeElement;
    const figure = this.figures.find((one) => one.svg === active);
    if (!active || !this.root.contains(active) || !active.id) return null;
    return { id: active.id, step: figure ? figure.step : null };
  }
  refocus(focused) {
    const found = focused && document.getElementById(focused.id);
    if (found && this.root.contains(found)) found.focus({ preventScroll: true });
  }

  // Reads the points of the curves, for the read-out and for live updates.
  async fill(step = null) {
    const number = this.request;
    const answer = await this.ask(this.root.dataset.points);
    if (!answer || number !== this.request) return;
    this.isFilled = true;
    this.runs = answer.runs;
    const curves = new Map(answer.curves.map((one) => [one.id, one]));
    for (const figure of this.figures) {
      const drawn = [...figure.svg.querySelectorAll(".series")];
      figure.curves = drawn.filter((one) => curves.has(one.dataset.id)).map((one) => {
        const curve = curves.get(one.dataset.id);
        curve.dotted = Boolean(one.querySelector(".dots"));
        return curve;
      });
      if (step !== null && figure.svg === document.activeElement && step >= this.first && step <= this.last) figure.show(step);
    }
    this.root.dataset.filled = "";
    this.schedule();
  }

  async ask(url) {
    try {
      const answer = await fetch(url);
      return answer.ok ? await answer.json() : null;
    } catch { return null; }
  }

  schedule() {
    clearTimeout(this.timer);
    if ("searching" in this.root.dataset) this.timer = setTimeout(() => this.load(location.search, "none"), LIVE_MS);
    else if ("live" in this.root.dataset) this.timer = setTimeout(() => this.poll(), LIVE_MS);
  }

  async poll() {
    if (document.hidden || !this.isFilled || !("live" in this.root.dataset)) return;
    const number = this.request;
    const after = this.runs.map((run) => run.steps).join(",");
    const answer = await this.ask(`${this.root.dataset.points}&after=${after}`);
    if (number !== this.request) return;
    if (!answer) { this.schedule(); return; }
    const isNew = answer.runs.some((run, n) => run.steps !== this.runs[n].steps);
    const isZoomed = "zoomed" in this.root.dataset;
    const end = Math.max(...answer.runs.map((run) => run.steps));
    const changed = answer.runs.some((run, n) => run.restarted || run.live !== this.runs[n].live);
    this.runs = answer.runs;
    let fits = !changed && (isZoomed || end <= this.last);
    if (fits && isNew) fits = this.add(answer.curves);
    if (fits) this.schedule();
    else if (this.figures.every((one) => one.start === null)) this.load(location.search, "none");
    else this.schedule();
  }

  add(added) {
    let fits = true;
    for (const one of added) {
      for (const figure of this.figures) {
        const curve = figure.curves.find((known) => known.id === one.id);
        if (!curve) { fits = fits && !figure.element.matches('[data-figure="loss"]'); continue; }
        extend(curve, one);
        fits = figure.redraw(curve) && fits;
        if (figure.step !== null) figure.show(figure.step);
      }
    }
    this.root.dataset.updates = Number(this.root.dataset.updates || 0) + 1;
    return fits;
  }

  press(name) { this.root.querySelector(`#zoom-${name}`).click(); }

  zoom(first, last, how = "push") {
    const end = this.end;
    let [low, high] = [Math.floor(Math.min(first, last)), Math.ceil(Math.max(first, last))];
    if (high - low < NARROWEST) { low -= Math.ceil((NARROWEST - high + low) / 2); high = low + NARROWEST; }
    low = clamp(low, 0, Math.max(end - NARROWEST, 0));
    high = Math.min(high, Math.max(end, NARROWEST));
    const query = this.query;
    if (low <= 0 && high >= end) { query.delete("from"); query.delete("to"); } else { query.set("from", low); query.set("to", high); }
    this.load(`?${clean(query)}`, how);
  }

  // Turns of the wheel before the server has answered add up.
  zoomAround(step, factor) {
    const { low, high } = this.wanted || { low: this.first, high: this.last };
    const length = clamp((high - low) * factor, NARROWEST, this.end);
    const share = clamp((step - low) / Math.max(high - low, 1), 0, 1);
    let first = step - share * length;
    first = clamp(first, 0, Math.max(this.end - length, 0));
    this.wanted = { low: first, high: first + length };
    this.zoom(first, first + length, "replace");
  }

  openBatch(step, curves) {
    const shown = curves.find((one) => one.id.endsWith(":train") || one.id.includes(":source:"));
    if (!shown) return;
    const run = this.runs[Number(shown.id.split(":")[0])];
    const at = clamp(Math.round(step), 0, Math.max(run.steps - 1, 0));
    location.href = `/batches?${new URLSearchParams({ run: run.key, step: at })}`;
  }
}

// Leaves out parameters that have their usual value, so that links stay short.
function clean(query) {
  const kept = new URLSearchParams();
  for (const [name, value] of query) if (value && (value !== "0" || name === "from" || name === "hide")) kept.set(name, value);
  kept.delete("width");
  return kept;
}

const root = document.querySelector("[data-charts]");
if (root) new Page(root);
