"use strict";
/* Gantt charts, one above the other on a common time axis.

   Gantt.draw(element, {
     charts: [{
       title: "measured",
       end: 0.217,                                  seconds of the step
       segments: 1,                                 in how many pieces sequences are cut (optional)
       tracks: [{
         name: "rank 0",
         actions: ["0F0", "0F1", …],                as headrace.Timeline's tracks, in the order of starts
         starts: [0, 0.01, …], ends: […],           seconds
         waits: [-1, 0, …],                         the span that it waited for last (-1: none), numbered through all
         critical: [1, 0, …],                       tracks of the chart; whether it is on the critical path
       }],
     }],
   });

   A second call for the same element only swaps the data: cheap enough for every move of a slider. Zoom by wheel, pinch,
   buttons or + and −; pan by dragging; the arrow keys go from span to span.                                           */
const Gantt = (() => {
  const LEAST_DRAG = 4;
  const MOST_ROWS = 400; // of the table: more would neither be read nor be fast
  const made = new WeakMap();

  const KEYS =
    "Arrow keys go from action to action, + and − zoom, Shift with arrows pans, Enter goes to what an action waited " +
    "for, 0 shows the whole step.";

  /* One chart's data, with what painting needs of each action worked out once. */
  class Chart {
    constructor({ title, tracks, end, segments = 1 }) {
      Object.assign(this, { title, end, segments });
      this.offsets = [];
      this.count = 0;
      this.kinds = new Set();
      const manyStages = tracks.some((track) => {
        const first = Kinds.parse(track.actions[0] || "0F").stage;
        return track.actions.some((action) => Kinds.parse(action).stage !== first);
      });
      this.tracks = tracks.map((track) => this.prepared(track, manyStages));
      this.hops = this.hopsOfChain();
    }

    prepared(track, manyStages) {
      this.offsets.push(this.count);
      this.count += track.actions.length;
      const parsed = track.actions.map(Kinds.parse);
      parsed.forEach(({ kind }) => this.kinds.add(kind));
      const halves = new Uint8Array(parsed.length); // of an overlapped pair, each gets half of the row
      for (let i = 1; i < parsed.length; i++) {
        if (track.starts[i] < track.ends[i - 1]) [halves[i - 1], halves[i]] = [1, 2];
      }
      const shortLabels = parsed.map(({ kind, microBatch }) => `${kind}${microBatch}`);
      const labels = manyStages ? track.actions : shortLabels;
      const [kinds, microBatches] = [parsed.map((each) => each.kind), parsed.map((each) => each.microBatch)];
      return { ...track, kinds, microBatches, halves, labels, shortLabels };
    }

    hopsOfChain() {
      const hops = [];
      this.tracks.forEach((track, rank) => {
        track.critical.forEach((critical, i) => {
          const before = track.waits[i];
          if (critical && before >= 0 && this.rankOf(before) !== rank) hops.push([before, this.offsets[rank] + i]);
        });
      });
      return hops;
    }

    /* A span has one number `at`, counted through all tracks. */
    rankOf(at) {
      let rank = this.offsets.length - 1;
      while (this.offsets[rank] > at) rank--;
      return rank;
    }

    of(column, at) {
      const rank = this.rankOf(at);
      return this.tracks[rank][column][at - this.offsets[rank]];
    }

    startOf(at) { return this.of("starts", at); }
    endOf(at) { return this.of("ends", at); }
    waitsOf(at) { return this.of("waits", at); }
    halfOf(at) { return this.of("halves", at); }

    /* The span of `rank` at a moment; with `near`, the closest if there is none. */
    find(rank, moment, near = 0, lower = false) {
      const track = this.tracks[rank];
      if (!track || !track.starts.length) return null;
      let i = GanttPaint.firstAfter(track, moment);
      if (i === track.starts.length || (i > 0 && moment - track.ends[i - 1] < track.starts[i] - moment)) {
        if (i > 0 && !(track.starts[i] <= moment)) i--;
      }
      const away = Math.max(0, track.starts[i] - moment, moment - track.ends[i]);
      if (away > near) return null;
      if (lower && track.halves[i] === 1) i++;
      return this.offsets[rank] + i;
    }

    /* Seconds for which the rank did nothing before a span. */
    gapBefore(at) {
      const rank = this.rankOf(at);
      const i = at - this.offsets[rank] - (this.halfOf(at) === 2 ? 1 : 0);
      const track = this.tracks[rank];
      return Math.max(0, track.starts[i] - (i ? track.ends[i - 1] : 0));
    }

    /* Lines about a span: the first is its name. */
    lines(at) {
      const [start, end, before] = [this.startOf(at), this.endOf(at), this.waitsOf(at)];
      const action = this.of("actions", at);
      const rank = this.tracks[this.rankOf(at)].name;
      const when = `${rank}, ${Units.seconds(end - start)}, from ${Units.seconds(start)} to ${Units.seconds(end)}`;
      const lines = [`${action}: ${Kinds.inWords(action, this.segments)}`, when, this.why(at, before)];
      if (this.of("critical", at)) lines.push("on the critical path");
      return lines;
    }

    why(at, before) {
      const gap = this.gapBefore(at);
      const idle = gap > 1e-6 * this.end ? `waited ${Units.seconds(gap)} ` : "";
      if (before < 0) return idle ? `${idle}for nothing that is known` : "waited for nothing";
      const other = this.of("actions", before);
      if (this.rankOf(before) !== this.rankOf(at)) {
        return `${idle || "waited "}for ${other} of ${this.tracks[this.rankOf(before)].name}`;
      }
      return idle ? `began ${Units.seconds(gap)} after ${other}` : `waited for ${other}, before it on this rank`;
    }
  }

  /* The charts of one element: DOM, the shared view, and what pointer and keys do. */
  class Charts {
    constructor(element) {
      this.element = element;
      this.view = new View();
      this.state = { critical: true };
      this.panes = [];
      this.tip = make("div", "tip");
      this.tip.hidden = true;
      this.said = make("p", "unseen");
      this.said.setAttribute("aria-live", "polite");
      this.legend = make("div");
      this.body = make("div");
      element.classList.add("gantt");
      element.replaceChildren(this.toolbar(), this.legend, this.body, this.tip, this.said);
      this.view.watch(() => this.again());
    }

    toolbar() {
      const bar = make("div", "toolbar");
      bar.setAttribute("role", "group");
      bar.setAttribute("aria-label", "Zoom");
      const zoom = (factor) => () => this.view.zoom((this.view.from + this.view.to) / 2, factor);
      bar.append(
        button("−", "Zoom out", zoom(2)),
        button("+", "Zoom in", zoom(0.5)),
        button("whole step", "Show the whole step", () => this.view.showAll()),
      );
      const box = make("input");
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => {
        this.state.critical = box.checked;
        this.again();
      });
      const label = make("label");
      label.append(box, " critical path");
      this.shown = make("span", "shown");
      bar.append(label, this.shown);
      return bar;
    }

    set({ charts }) {
      this.charts = charts.map((chart) => new Chart(chart));
      while (this.panes.length > charts.length) this.panes.pop().remove();
      while (this.panes.length < charts.length) this.panes.push(new Pane(this, this.panes.length));
      this.panes.forEach((pane, i) => pane.set(this.charts[i]));
      const kinds = new Set(this.charts.flatMap((chart) => [...chart.kinds]));
      const key = [...kinds].sort().join("");
      if (this.kinds !== key) {
        this.kinds = key;
        this.legend.replaceChildren(Kinds.legend(kinds, [["critical", "critical path"], ["idle", "idle"]]));
      }
      this.tip.hidden = true;
      this.view.setEnd(Math.max(...this.charts.map((chart) => chart.end)));
    }

    again() {
      const { from, to, end, whole } = this.view;
      this.shown.textContent = whole
        ? `${Units.seconds(end)} in view`
        : `${Units.seconds(from)} to ${Units.seconds(to)} of ${Units.seconds(end)}`;
      this.panes.forEach((pane) => pane.again());
    }
  }

  /* One chart: its canvas and its table. */
  class Pane {
    constructor(charts, index) {
      Object.assign(this, { charts, index, at: null, pointers: new Map(), dragged: 0, tableIsOf: "" });
      this.box = make("figure", "pane");
      this.title = make("figcaption");
      this.canvas = make("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "application");
      this.canvas.setAttribute("aria-roledescription", "Gantt chart");
      this.details = make("details");
      const summary = make("summary");
      summary.textContent = "As a table";
      this.table = make("div", "scroll");
      this.details.append(summary, this.table);
      this.details.addEventListener("toggle", () => this.fillTable());
      this.box.append(this.title, this.canvas, this.details);
      charts.body.append(this.box);
      this.picture = Picture.on(this.canvas, (...all) => this.paint(...all));
      GanttInput.listen(this);
    }

    remove() {
      this.box.remove();
    }

    set(chart) {
      this.chart = chart;
      this.at = null;
      this.picture.height = GanttPaint.heightOf(chart.tracks.length);
      this.title.textContent = `${chart.title}: ${Units.seconds(chart.end)}`;
      const many = `${chart.tracks.length} ranks, ${chart.count.toLocaleString("en-US")} actions`;
      this.canvas.setAttribute("aria-label", `${chart.title}, ${many}, ${Units.seconds(chart.end)}. ${KEYS}`);
      this.tableIsOf = "";
    }

    again() {
      this.picture.again();
      if (this.details.open) this.fillTable();
    }

    paint(brush, width, height, colour) {
      const longest = Math.max(...this.chart.tracks.map((track) => brush.measureText(track.name).width), 0);
      this.frame = new GanttPaint.Frame(this.charts.view, this.chart.tracks, Math.ceil(longest) + 14, width);
      const state = { critical: this.charts.state.critical, at: this.at };
      GanttPaint.paint(brush, this.frame, this.chart, state, colour);
    }

    /* `at` is the span that is pointed at, or null; `place` where the tip goes, in px of the page. */
    choose(at, place, aloud = false) {
      if (at !== this.at) {
        this.at = at;
        this.charts.panes.forEach((pane) => pane !== this && pane.at !== null && pane.choose(null));
        this.picture.again();
      }
      const { tip, said, element } = this.charts;
      if (at === null) {
        tip.hidden = true;
        return;
      }
      const lines = this.chart.lines(at);
      tip.replaceChildren(...lines.map((line, i) => make(i ? "div" : "strong", "", line)));
      tip.hidden = false;
      const around = element.getBoundingClientRect();
      const left = Math.min(place.x - around.left + 12, around.width - tip.offsetWidth);
      tip.style.left = `${Math.max(0, left)}px`;
      tip.style.top = `${place.y - around.top + 16}px`;
      if (aloud) said.textContent = lines.join(". ");
    }

    fillTable() {
      const { from, to } = this.charts.view;
      const key = `${from} ${to}`;
      if (!this.details.open || this.tableIsOf === key) return;
      this.tableIsOf = key;
      const rows = [];
      let all = 0;
      this.chart.tracks.forEach((track, rank) => {
        for (let i = GanttPaint.firstAfter(track, from); i < track.starts.length && track.starts[i] < to; i++) {
          if (++all <= MOST_ROWS) rows.push(this.row(this.chart.offsets[rank] + i));
        }
      });
      const table = Tables.of(["action", "rank", "what", "start", "duration", "waited for", "critical"], rows);
      const note = `The first ${MOST_ROWS} of ${all.toLocaleString("en-US")} actions in view; zoom in to see others.`;
      this.table.replaceChildren(...(all > MOST_ROWS ? [make("p", "", note)] : []), table);
    }

    row(at) {
      const { chart } = this;
      const [action, before] = [chart.of("actions", at), chart.waitsOf(at)];
      return [
        action,
        chart.tracks[chart.rankOf(at)].name,
        Kinds.inWords(action, chart.segments),
        Units.seconds(chart.startOf(at)),
        Units.seconds(chart.endOf(at) - chart.startOf(at)),
        before < 0 ? "" : chart.of("actions", before),
        chart.of("critical", at) ? "yes" : "",
      ];
    }
  }

  function make(tag, name = "", text = "") {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text) element.textContent = text;
    return element;
  }

  function button(text, label, act) {
    const element = make("button", "", text);
    element.type = "button";
    element.title = label;
    element.setAttribute("aria-label", label);
    element.addEventListener("click", act);
    return element;
  }

  function draw(element, data) {
    if (!made.has(element)) made.set(element, new Charts(element));
    made.get(element).set(data);
  }

  /* What is shown now, for tests and for those who build on it. */
  const of = (element) => made.get(element);

  return { draw, of, LEAST_DRAG };
})();
