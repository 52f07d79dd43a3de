"use strict";
/* The rule of simulation, as headrace.simulate has it:

     an action starts when its rank is free and what it needs has arrived; it ends after its cost, and what it gives is
     at once where it is wanted on the same rank, and a message's way later on another one (see `links`).

   Both of an overlapped pair start when both may, and end together. A synchronous step ends with the update of each
   stage. The tests hold this file against Python's simulator on its golden cases and on random ones. */

const Simulate = (() => {
  const { action } = Rows;
  const PART_OF = { F: "forward", B: "backward", I: "backward", W: "weight", R: "recompute", U: "optimizer" };

  /** What an action waits for, as headrace.schedule.dependencies says: a function from an action to actions. */
  function dependencies(schedule) {
    const last = schedule.lanes[0].length - 1;
    const all = schedule.rows.flat();
    const recomputed = new Set(all.filter((a) => a.kind === "R").map((a) => `${a.stage},${a.k}`));
    const split = new Set(all.filter((a) => a.kind === "I").map((a) => `${a.stage},${a.k}`));
    const gradient = (stage, k) => action(stage, split.has(`${stage},${k}`) ? "I" : "B", k);
    return ({ stage, kind, k }) => {
      switch (kind) {
        case "F":
          return [
            ...(k % schedule.segments ? [action(stage, "F", k - 1)] : []),
            ...(stage > 0 ? [action(stage - 1, "F", k)] : []),
          ];
        case "R":
          return [action(stage, "F", k)];
        case "B":
        case "I":
          return [
            action(stage, recomputed.has(`${stage},${k}`) ? "R" : "F", k),
            ...((k + 1) % schedule.segments ? [gradient(stage, k + 1)] : []),
            ...(stage < last ? [gradient(stage + 1, k)] : []),
          ];
        case "U":
          return [action(stage, split.has(`${stage},${k}`) ? "W" : "B", k)];
        default:
          return [action(stage, "I", k)];
      }
    };
  }

  /** The row of a rank in units that run at once: [action], or the two of a pair. */
  function cells(row, pairs) {
    const found = [];
    for (let at = 0; at < row.length; at += 1)
      found.push(pairs.has(row[at].name) && at + 1 < row.length ? [row[at], row[(at += 1)]] : [row[at]]);
    return found;
  }

  const spread = (value, count) => (Array.isArray(value) ? value : Array(count).fill(value));

  /** Seconds of a cell, by the names of headrace.Costs. */
  function seconds(costs, stages) {
    const names = ["forward", "backward_input", "backward_weight", "update"];
    const of = Object.fromEntries(names.map((name) => [name, spread(costs[name] ?? 0, stages)]));
    const again = spread(costs.recompute ?? of.forward, stages);
    const pair = costs.pair == null ? null : spread(costs.pair, stages);
    const alone = ({ stage, kind }) =>
      ({
        F: of.forward[stage],
        B: of.backward_input[stage] + of.backward_weight[stage],
        I: of.backward_input[stage],
        W: of.backward_weight[stage],
        R: again[stage],
        U: of.update[stage],
      })[kind];
    const both = (f, b) => (pair ? pair[f.stage] : alone(f) + alone(b));
    return (cell) => (cell.length === 1 ? alone(cell[0]) : both(...cell));
  }

  /** When the message of an action that has ended is where it is wanted: a function of its rank, itself and its end.

      A message occupies the link from rank to rank for bytes ÷ bandwidth, behind those before it where the link carries
      one at a time, and arrives a latency later. What goes to no other rank is there at once. */
  function links(costs, schedule) {
    const stages = schedule.lanes[0].length;
    const latency = spread(costs.transfer ?? 0, stages - 1);
    const sizes = spread(costs.message ?? 0, stages - 1);
    const sending = sizes.map((size) => (costs.bandwidth == null ? 0 : size / costs.bandwidth));
    const free = new Map(); // by "from,to", when that link has carried all it was given
    return (rank, { stage, kind, k }, end) => {
      const there = kind === "F" ? stage + 1 : "BI".includes(kind) ? stage - 1 : -1;
      if (there < 0 || there >= stages) return end;
      const to = Rows.rankOf(schedule, there, k);
      const hop = Math.min(stage, there);
      if (to === rank) return end;
      if (!costs.one_at_a_time) return end + (latency[hop] + sending[hop]);
      const left = Math.max(free.get(`${rank},${to}`) ?? 0, end) + sending[hop];
      free.set(`${rank},${to}`, left);
      return left + latency[hop];
    };
  }

  /** Put the updates of a synchronous step behind `tracks`, as headrace.simulate.updates does: that of a stage begins on
      all ranks that hold it at once, when the last of them is free. */
  function update(schedule, costs, tracks) {
    const each = spread(costs.update ?? 0, schedule.lanes[0].length);
    if (schedule.rows.flat().some(({ kind }) => kind === "U")) return;
    each.forEach((cost, stage) => {
      if (!cost) return;
      const holders = [...new Set(schedule.lanes.map((lane) => lane[stage]))];
      const before = holders.map((rank) => tracks[rank].at(-1));
      const last = before.reduce((a, b) => (b.end > a.end ? b : a));
      holders.forEach((rank, i) => {
        const waits = last.end > before[i].end ? last : before[i];
        const of = action(stage, "U", schedule.m - 1);
        tracks[rank].push({ rank, action: of, start: last.end, end: last.end + cost, waits, critical: false });
      });
    });
  }

  /** Play `schedule` against `costs`: its timeline (see `measure`). A schedule that is stuck throws; see check.js. */
  function simulate(schedule, costs) {
    const stages = schedule.lanes[0].length;
    const needs = dependencies(schedule);
    const sent = links(costs, schedule);
    const cost = seconds(costs, stages);
    const left = schedule.rows.map((row) => cells(row, schedule.pairs));
    const tracks = left.map(() => []);
    const ended = new Map(); // by name, the span of what has run
    const arrivals = new Map(); // by name, when its result is on another rank, if it goes to one

    const run = (rank, cell, wanted) => {
      const before = tracks[rank].at(-1);
      let start = before ? before.end : 0;
      let waits = before ?? null; // the span that it waited for last
      for (const needed of wanted) {
        const span = ended.get(needed.name);
        const there = span.rank === rank ? span.end : arrivals.get(needed.name);
        if (there > start || waits === null) [start, waits] = [there, span];
      }
      for (const a of cell) {
        const span = { rank, action: a, start, end: start + cost(cell), waits, critical: false };
        tracks[rank].push(span);
        ended.set(a.name, span);
        arrivals.set(a.name, sent(rank, a, span.end));
      }
    };
    for (let moved = true; moved; ) {
      moved = false;
      for (const [rank, rest] of left.entries()) {
        while (rest.length) {
          const wanted = rest[0].flatMap(needs);
          if (!wanted.every((needed) => ended.has(needed.name))) break;
          run(rank, rest.shift(), wanted);
          moved = true;
        }
      }
    }
    if (left.some((rest) => rest.length)) throw new Error(`${schedule.name} waits for ever`);
    update(schedule, costs, tracks);
    return measure(tracks);
  }

  /** {tracks, spans, makespan, busy, bubble, inFlight}: what headrace.Timeline says of what ran. */
  function measure(tracks) {
    const spans = tracks.flat();
    const makespan = spans.reduce((most, span) => Math.max(most, span.end), 0);
    const busy = tracks.map(busySeconds);
    const whole = tracks.length * makespan;
    const bubble = whole ? (whole - busy.reduce((a, b) => a + b, 0)) / whole : 0;
    // Backwards from the last end along what each span waited for: any delay on this way delays the step.
    let on = tracks.map((track) => track.at(-1)).findLast((span) => span?.end === makespan);
    while (on) {
      on.critical = true;
      on = on.waits;
    }
    return { tracks, spans, makespan, busy, bubble, inFlight: tracks.map(peakInFlight) };
  }

  /** The length of the union of a rank's spans. */
  function busySeconds(track) {
    let busy = 0;
    let until = 0;
    for (const { start, end } of track) {
      busy += Math.max(0, end - Math.max(start, until));
      until = Math.max(until, end);
    }
    return busy;
  }

  /** The most (stage, micro-batch) pairs whose F has begun and whose last backward part has not ended. */
  function peakInFlight(track) {
    const changes = track.flatMap(({ action: { kind }, start, end }) =>
      kind === "F" ? [[start, 1]] : kind === "B" || kind === "W" ? [[end, -1]] : [],
    );
    let now = 0;
    return changes
      .sort(([a], [b]) => a - b)
      .reduce((peak, [, change]) => Math.max(peak, (now += change)), 0);
  }

  /** Where a rank's time went, in the words of headrace.report.breakdown; each of two that overlap counts half. */
  function parts({ tracks, makespan }, rank) {
    const found = { waiting: 0 };
    let free = 0;
    tracks[rank].forEach(({ action, start, end }, i, track) => {
      const twin = [track[i - 1], track[i + 1]].some((other) => other?.start === start && other.end === end);
      const part = PART_OF[action.kind];
      found[part] = (found[part] ?? 0) + (end - start) * (twin && end > start ? 0.5 : 1);
      found.waiting += Math.max(0, start - free); // it has waited for another rank, or it would have begun at once
      free = Math.max(free, end);
    });
    return { ...found, idle: makespan - free };
  }

  return { simulate, dependencies, cells, parts };
})();
