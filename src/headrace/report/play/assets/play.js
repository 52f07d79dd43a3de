"use strict";
/* From every move of a control to every picture: read the form, simulate, draw. */

(() => {
  const SAID_AFTER = 600; // ms without a move until a screen reader hears what came of it
  const { form } = Form;
  const at = (id) => document.getElementById(id);
  const show = (id, text) => (at(id).textContent = text);
  let catalogue = [];
  let last = null; // the schedule that was shown last, for who wants to begin with its rows

  async function begin() {
    catalogue = await unpacked(JSON.parse(at("data").textContent));
    if (matchMedia("(max-width: 900px)").matches)
      for (const fold of form.querySelectorAll("details")) fold.open = false;
    form.addEventListener("input", changed);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(changed)); // after the browser has put everything back
    addEventListener("hashchange", recall);
    recall();
    document.documentElement.dataset.ready = "yes"; // for tests
  }

  /** What Python packed: JSON, deflated, in base64. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function recall() {
    Settings.reset(form);
    Form.fit(entryOf(Settings.inAddress().schedule)); // before its number comes, which may be out of another's range
    Settings.recall(form);
    redraw();
  }

  function changed() {
    redraw();
    Settings.remember(form);
  }

  const entryOf = (name) => catalogue.find((entry) => entry.name === name);

  function redraw() {
    const rows = at("rows");
    if (at("schedule").value === Model.OWN && !rows.value.trim() && last) rows.value = text(last);
    const entry = entryOf(at("schedule").value);
    Form.fit(entry);
    const chosen = Settings.read(form);
    Form.label(chosen, entry);
    const shown = played(chosen);
    if (shown.refusal) {
      refuse(chosen, shown.refusal);
      return;
    }
    last = shown.schedule;
    Form.offer(shown.schedule, entry);
    draw(chosen, shown, chosen.beside ? played(besides(chosen)) : null);
  }

  /** {schedule, timeline, held, peaks} of what was chosen, or {refusal}. */
  function played(chosen) {
    try {
      const schedule = Model.schedule(chosen, catalogue);
      const timeline = Simulate.simulate(schedule, Model.costs(chosen, schedule));
      const held = Bytes.overTime(schedule, timeline, Model.memory(chosen, schedule));
      return { schedule, timeline, held, peaks: held.map(Bytes.peak) };
    } catch (refusal) {
      if (!(refusal instanceof Model.Refusal)) throw refusal;
      return { refusal };
    }
  }

  /** The same numbers for the schedule that stands beside. */
  function besides(chosen) {
    const most = entryOf(chosen.beside).choice?.values.at(-1) ?? chosen.choice;
    const own = chosen.schedule === Model.OWN;
    return {
      ...chosen,
      schedule: chosen.beside,
      choice: Math.min(chosen.choice, most),
      ranks: own ? last.rows.length : chosen.ranks,
      micro_batches: own ? last.m / last.segments : chosen.micro_batches,
    };
  }

  /** The rows of a schedule as text that can be read again. */
  function text({ rows, pairs, segments, delay }) {
    const notes = [segments > 1 ? `# segments=${segments}\n` : "", delay === null ? "" : `# delay=${delay}\n`];
    const lines = rows.map((row) => {
      const cells = Simulate.cells(row, pairs).map((cell) => cell.map((action) => action.name));
      return cells.map((names) => (names.length > 1 ? `(${names.join(";")})` : names[0])).join(",");
    });
    return notes.join("") + lines.join("\n");
  }

  function draw(chosen, shown, other) {
    at("refused").hidden = true;
    at("shown").hidden = false;
    const limit = Model.limit(chosen);
    const theory = Model.theory(chosen, catalogue, shown.schedule);
    const drawn = other?.timeline ? [shown, other] : [shown];
    Gantt.draw(at("gantt"), { charts: drawn.map(chart) });
    Memory.draw(at("memory"), {
      end: shown.timeline.makespan,
      ranks: shown.held.map((points, rank) => ({ name: `rank ${rank}`, points, limit })),
    });
    Breakdown.draw(at("breakdown"), { groups: drawn.map(group) });
    facts(shown, limit, theory);
    const beside = other ? ` ${Words.beside(chosen.beside, shown, other)}` : "";
    show("words", Words.step(shown, limit, theory) + beside);
    say(at("words").textContent);
  }

  function chart({ schedule: { name, segments }, timeline: { tracks, spans, makespan } }) {
    const number = new Map(spans.map((span, i) => [span, i]));
    return {
      title: name,
      end: makespan,
      segments,
      tracks: tracks.map((track, rank) => ({
        name: `rank ${rank}`,
        actions: track.map((span) => span.action.name),
        starts: track.map((span) => span.start),
        ends: track.map((span) => span.end),
        waits: track.map((span) => (span.waits === null ? -1 : number.get(span.waits))),
        critical: track.map((span) => Number(span.critical)),
      })),
    };
  }

  const group = ({ schedule, timeline }) => ({
    title: schedule.name,
    ranks: timeline.tracks.map((track, rank) => ({ name: `rank ${rank}`, parts: Simulate.parts(timeline, rank) })),
  });

  function facts({ timeline: { makespan, busy, bubble, inFlight }, peaks }, limit, theory) {
    const ideal = busy.reduce((a, b) => a + b, 0) / busy.length;
    fact("step", Units.seconds(makespan), `${Units.seconds(ideal)} if no rank ever idled`);
    fact("bubble", Units.percent(bubble), Words.theory(theory));
    fact("in-flight", String(Math.max(...inFlight)), `per rank ${inFlight.join(", ")}`);
    const verdict = Words.verdict(peaks, limit);
    fact("most", Units.bytes(Math.max(...peaks)), verdict);
    at("most-fact").classList.toggle("bad", verdict.startsWith("does not"));
    show("memory-note", `${Words.capitalised(verdict)}.`);
  }

  function fact(name, value, note) {
    show(name, value);
    show(`${name}-note`, note);
  }

  /** Nothing can be drawn: say why, and which numbers would do. */
  function refuse(chosen, { message, ways }) {
    at("shown").hidden = true;
    at("refused").hidden = false;
    for (const name of ["step", "bubble", "in-flight", "most"]) fact(name, "–", "");
    at("most-fact").classList.remove("bad");
    show("refused-heading", chosen.schedule === Model.OWN ? "These rows cannot run" : "Not for these numbers");
    const lines = message.split("; ").map((line) => (/^(this|rank) /.test(line) ? Words.capitalised(line) : line));
    at("refused-why").replaceChildren(...lines.map((line) => element("li", line)));
    at("refused-ways").replaceChildren(
      ...(ways.length ? [`${chosen.schedule} is there for `] : []),
      ...ways.map(([words, values]) => way(words, values)),
    );
    say(`${at("refused-heading").textContent}. ${message}`);
  }

  /** A button that sets `values`. */
  function way(words, values) {
    const button = element("button", words);
    button.type = "button";
    button.addEventListener("click", () => {
      Settings.write(form, values);
      changed();
    });
    return button;
  }

  function element(tag, words) {
    const made = document.createElement(tag);
    made.textContent = words;
    return made;
  }

  let later = 0;

  /** Let screen readers hear `words`, once nothing has moved for a while. */
  function say(words) {
    clearTimeout(later);
    later = setTimeout(() => show("said", words), SAID_AFTER);
  }

  begin();
})();
