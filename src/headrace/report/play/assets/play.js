"use strict";
/* From every move of a control to every picture: read the form, simulate, draw. */

(() => {
  const SAID_AFTER = 600; // ms without a move until a screen reader hears what came of it
  const form = document.getElementById("controls");
  const at = (id) => document.getElementById(id);
  const show = (id, text) => (at(id).textContent = text);
  const narrow = matchMedia("(max-width: 900px)");
  let catalogue = [];
  let last = null; // the schedule that was shown last, for who wants to begin with its rows

  async function begin() {
    catalogue = await unpacked(JSON.parse(at("data").textContent));
    if (narrow.matches) form.querySelectorAll("details").forEach((fold) => (fold.open = false));
    form.addEventListener("input", changed);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(changed)); // after the browser has put everything back
    addEventListener("hashchange", () => {
      Settings.recall(form);
      redraw();
    });
    Settings.recall(form);
    redraw();
    document.documentElement.dataset.ready = "yes"; // for tests
  }

  /** What Python packed: JSON, deflated, in base64. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function changed() {
    redraw();
    Settings.remember(form);
  }

  function redraw() {
    const rows = at("rows");
    if (at("schedule").value === Model.OWN && !rows.value.trim() && last) rows.value = text(last);
    const chosen = fit(Settings.read(form));
    label(chosen);
    try {
      const schedule = Model.schedule(chosen, catalogue);
      const timeline = Simulate.simulate(schedule, Model.costs(chosen, schedule));
      const held = Bytes.overTime(schedule, timeline, Model.memory(chosen, schedule));
      offer(chosen, schedule);
      draw(chosen, schedule, timeline, held);
      last = schedule;
    } catch (error) {
      if (!(error instanceof Model.Refusal)) throw error;
      refuse(chosen, error);
    }
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

  /** Bring the schedule's own number into its range, and say what it is called. */
  function fit(chosen) {
    const choice = entryOf(chosen)?.choice;
    const slider = at("choice");
    if (choice) {
      [slider.min, slider.max] = [choice.values[0], choice.values.at(-1)];
      form.querySelector("label[for=choice]").textContent = choice.label;
    }
    return { ...chosen, choice: Number(slider.value) };
  }

  const entryOf = (chosen) => catalogue.find(({ name }) => name === chosen.schedule);

  /** The number behind each slider, and what is there to be moved. */
  function label(chosen) {
    for (const output of form.querySelectorAll("output")) {
      const slider = at(output.htmlFor.value);
      output.textContent = `${Number(slider.value)}${output.dataset.unit && ` ${output.dataset.unit}`}`;
      slider.setAttribute("aria-valuetext", output.textContent);
    }
    const own = chosen.schedule === Model.OWN;
    const entry = entryOf(chosen);
    for (const name of ["ranks", "micro_batches", "recompute"]) visible(name, !own);
    visible("choice", Boolean(entry?.choice));
    visible("rows", own);
    visible("factor", chosen.heavy !== "own");
    visible("factors", chosen.heavy === "own");
    show("about", entry ? entry.description + (entry.needs && `. It needs: ${entry.needs}.`) : "");
  }

  /** Which controls mean something for this schedule. */
  function offer(chosen, schedule) {
    const has = (kind) => schedule.rows.some((row) => row.some((action) => action.kind === kind));
    visible("pair", schedule.pairs.size > 0);
    visible("recompute_cost", has("R"));
    visible("stage_input", has("R"));
    visible("for_weight", has("W"));
    const stages = schedule.lanes[0].length;
    const each = stages / schedule.rows.length;
    if (chosen.schedule !== Model.OWN)
      at("about").textContent += schedule.lanes.length > 1 ? " Each stage is on two ranks." : each > 1 ? ` ${stages} stages, ${each} on each rank.` : "";
  }

  function visible(name, yes) {
    form.querySelector(`.control[data-of="${name}"]`).hidden = !yes;
  }

  function draw(chosen, schedule, timeline, held) {
    at("refused").hidden = true;
    at("shown").hidden = at("facts").hidden = false;
    const { segments } = schedule;
    const names = timeline.tracks.map((_, rank) => `rank ${rank}`);
    const limit = Model.limit(chosen);
    const peaks = held.map(Bytes.peak);
    Gantt.draw(at("gantt"), { charts: [chart(schedule.name, timeline, names, segments)] });
    Memory.draw(at("memory"), {
      end: timeline.makespan,
      ranks: names.map((name, rank) => ({ name, points: held[rank], limit })),
    });
    Breakdown.draw(at("breakdown"), {
      groups: [{ title: "Seconds of the step", ranks: names.map((name, rank) => ({ name, parts: parts(timeline, rank) })) }],
    });
    facts(timeline, peaks, limit, Model.theory(chosen, catalogue, schedule));
    say(inWords(schedule, timeline, peaks, limit));
  }

  function chart(title, { tracks, spans, makespan }, names, segments) {
    const number = new Map(spans.map((span, i) => [span.action.name, i]));
    const column = (track, of) => track.map(of);
    return {
      title,
      end: makespan,
      segments,
      tracks: tracks.map((track, rank) => ({
        name: names[rank],
        actions: column(track, (span) => span.action.name),
        starts: column(track, (span) => span.start),
        ends: column(track, (span) => span.end),
        waits: column(track, (span) => (span.waits === null ? -1 : number.get(span.waits))),
        critical: column(track, (span) => Number(span.critical)),
      })),
    };
  }

  /** Where a rank's time went; each of two that overlap counts half. */
  function parts({ tracks, makespan, busy }, rank) {
    const PART = { F: "forward", B: "backward", I: "backward", W: "weight", R: "recompute", U: "optimizer" };
    const found = { idle: makespan - busy[rank] };
    tracks[rank].forEach(({ action, start, end }, i, track) => {
      const twin = [track[i - 1], track[i + 1]].some((other) => other?.start === start && other.end === end);
      const part = PART[action.kind];
      found[part] = (found[part] ?? 0) + (end - start) * (twin && end > start ? 0.5 : 1);
    });
    return found;
  }

  function facts(timeline, peaks, limit, theory) {
    const { makespan, busy, bubble, inFlight } = timeline;
    const ideal = busy.reduce((a, b) => a + b, 0) / busy.length;
    show("step", Units.seconds(makespan));
    show("step-note", `${Units.seconds(ideal)} if no rank ever idled`);
    show("bubble", Units.percent(bubble));
    show("bubble-note", theoryInWords(theory));
    show("in-flight", String(Math.max(...inFlight)));
    show("in-flight-note", `per rank ${inFlight.join(", ")}`);
    const most = Math.max(...peaks);
    const fits = limit === null || most <= limit;
    show("most", Units.bytes(most));
    show("most-note", limit === null ? "no limit set" : verdict(most, limit, peaks));
    at("most-fact").classList.toggle("bad", !fits);
    show("memory-note", limit === null ? "" : capitalised(verdict(most, limit, peaks)) + ".");
  }

  function theoryInWords(theory) {
    if (!theory) return "of all ranks’ time";
    const value = `${theory.formula} = ${Units.percent(theory.bubble)}`;
    return theory.applies ? `closed form: ${value}` : `${value} if stages are equal, hops free, nothing recomputed`;
  }

  function verdict(most, limit, peaks) {
    if (most <= limit) return `fits: ${Units.bytes(limit)} per rank`;
    const over = peaks.flatMap((peak, rank) => (peak > limit ? [rank] : []));
    const where = over.length === peaks.length && over.length > 1 ? "on every rank" : `on rank ${over.join(", ")}`;
    return `does not fit: ${Units.bytes(most - limit)} more than ${Units.bytes(limit)} ${where}`;
  }

  const capitalised = (words) => words[0].toUpperCase() + words.slice(1);

  function inWords({ name, rows, m, segments }, { makespan, bubble, inFlight }, peaks, limit) {
    const most = Math.max(...peaks);
    return (
      `${capitalised(name)} on ${count(rows.length, "rank")} with ${count(m / segments, "micro-batch", "micro-batches")}: ` +
      `a step takes ${Units.seconds(makespan)}, of which ranks idle ${Units.percent(bubble)}. ` +
      `At most ${Math.max(...inFlight)} are in flight on a rank. The fullest holds ${Units.bytes(most)}` +
      `${limit === null ? "" : `: it ${most <= limit ? "fits" : `does not fit into ${Units.bytes(limit)}`}`}.`
    );
  }

  const count = (number, one, several = `${one}s`) => `${number} ${number === 1 ? one : several}`;

  /** Nothing can be drawn: say why, and which numbers would do. */
  function refuse(chosen, { message, ways }) {
    at("shown").hidden = at("facts").hidden = true;
    const box = at("refused");
    box.hidden = false;
    const own = chosen.schedule === Model.OWN;
    show("refused-heading", own ? "These rows cannot run" : "Not for these numbers");
    const lines = message.split("; ").map((line) => element("li", capitalised(line) + "."));
    at("refused-why").replaceChildren(...lines);
    at("refused-ways").replaceChildren(
      ...(ways.length ? [`${chosen.schedule} is there for `] : []),
      ...ways.map(([words, values]) => {
        const button = element("button", words);
        button.type = "button";
        button.addEventListener("click", () => {
          Settings.write(form, values);
          changed();
        });
        return button;
      }),
    );
    say(`${at("refused-heading").textContent}. ${message}`);
  }

  function element(tag, words) {
    const made = document.createElement(tag);
    made.textContent = words;
    return made;
  }

  let later = 0;

  /** In words what is shown: at once to be read, and after a pause to be heard. */
  function say(words) {
    show("words", words);
    clearTimeout(later);
    later = setTimeout(() => show("said", words), SAID_AFTER);
  }

  begin();
})();
