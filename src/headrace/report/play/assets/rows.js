"use strict";
/* A schedule, read from the grid notation or unpacked from what Python made (see orders.py).

     {name, rows, lanes, laneOf, m, pairs, segments, delay}       the fields of headrace.schedule.Schedule

   rows: per rank, actions {stage, kind, k, name}; lanes: per lane, the rank of each stage; laneOf: per micro-batch, its
   lane, or empty; pairs: a Set of the names of forwards that overlap the backward behind them. */

const Rows = (() => {
  const KINDS = "FBIWRU";

  const action = (stage, kind, k) => ({ stage, kind, k, name: `${stage}${kind}${k}` });

  const rankOf = (schedule, stage, k) => schedule.lanes[schedule.laneOf[k] ?? 0][stage];

  /** The stages that a rank holds, in any lane, in model order. */
  function stagesOf(schedule, rank) {
    const holds = (stage) => schedule.lanes.some((lane) => lane[stage] === rank);
    return [...schedule.lanes[0].keys()].filter(holds);
  }

  /** An order of the catalogue. `recomputes(stage, k)` says which R to keep. */
  function unpack(packed, name, recomputes) {
    const schedule = {
      name,
      rows: [],
      lanes: packed.lanes.map((lane) => [...lane].map(Number)),
      laneOf: [...packed.lane_of].map(Number),
      m: packed.m,
      pairs: new Set(),
      segments: packed.segments,
      delay: packed.delay,
    };
    packed.rows.forEach((letters, rank) => {
      const stages = stagesOf(schedule, rank);
      const expected = new Map();
      const row = [];
      let stage = stages[0];
      for (const [, pair, turn, kind, number] of letters.matchAll(/(&?)([a-z]?)([FBIWRU])(\d*)/g)) {
        if (turn) stage = stages[turn.charCodeAt(0) - 97];
        const k = number ? Number(number) : (expected.get(stage + kind) ?? 0);
        expected.set(stage + kind, k + 1);
        const next = action(stage, kind, k);
        if (pair) schedule.pairs.add(next.name);
        if (kind !== "R" || recomputes(stage, k)) row.push(next);
      }
      schedule.rows.push(row);
    });
    return schedule;
  }

  /** Which (stage, k) recompute in a mode of headrace's `recompute`. */
  function recomputes(mode, { m, segments }) {
    const until = { never: 0, always: m, except_last: m - segments }[mode];
    return (stage, k) => k < until;
  }

  /** Read rows that someone wrote, as headrace.schedule.parse does. Throws an Error that names the row and column. */
  function parse(text, name = "custom") {
    const schedule = { name, rows: [], pairs: new Set(), segments: 1, delay: null };
    const holder = new Map(); // of each "stage,k", the rank
    for (const line of text.trim() ? text.trimEnd().split(/\r\n|\r|\n/) : []) {
      if (line.trimStart().startsWith("#")) Object.assign(schedule, note(line.trim()));
      else schedule.rows.push(rowOf(line, schedule.rows.length, schedule.pairs, holder));
    }
    if (!schedule.rows.length) throw new Error("there is no row: write one line per rank, such as 0F0,0B0");
    return Object.assign(schedule, placed(holder));
  }

  function note(line) {
    const [, name, value] = line.match(/^#\s*(segments|delay)\s*=(.*)$/) ?? [];
    if (!name) return {};
    if (!/^\d+$/.test(value.trim()) || (name === "segments" && Number(value) < 1))
      throw new Error(`'${line}': write a whole number, such as # ${name}=1`);
    return { [name]: Number(value) };
  }

  function rowOf(line, rank, pairs, holder) {
    const row = [];
    line.split(",").forEach((cell, column) => {
      const place = `row ${rank + 1}, column ${column + 1}`;
      const actions = cellOf(cell.trim(), place);
      for (const { stage, k, name } of actions) {
        const has = holder.get(`${stage},${k}`);
        if (has === undefined) holder.set(`${stage},${k}`, rank);
        else if (has !== rank)
          throw new Error(`${place}: rank ${rank} runs ${name}, but rank ${has} already holds stage ${stage}`);
      }
      if (actions.length > 1) pairs.add(actions[0].name);
      row.push(...actions);
    });
    if (!row.length)
      throw new Error(`row ${rank + 1} is empty: rank ${rank} would have nothing to do, so leave it out`);
    return row;
  }

  function cellOf(cell, place) {
    if (/^([0-9]+REDUCE_GRAD)?$/.test(cell)) return [];
    const pair = cell.match(/^\(([^;()]*);([^;()]*)\)(OVERLAP_F_B)?$/);
    return (pair ? [pair[1].trim(), pair[2].trim()] : [cell]).map((text) => {
      const found = text.match(/^(0|[1-9][0-9]*)([FBIWRU])(0|[1-9][0-9]*)$/);
      if (!found)
        throw new Error(
          `${place}: '${text}' is not an action: write stage, kind and micro-batch, such as 2F0, ` +
            `with a kind out of ${[...KINDS].join(", ")} and no leading zeros`,
        );
      return action(Number(found[1]), found[2], Number(found[3]));
    });
  }

  /** The fewest lanes that explain which rank holds which stage for which micro-batch, taken in order. */
  function placed(holder) {
    const cells = [...holder].map(([key, rank]) => [...key.split(",").map(Number), rank]);
    const [stages, m] = [0, 1].map((part) => wholeRange(cells.map((cell) => cell[part]), part));
    const of = Array.from({ length: m }, () => new Map());
    for (const [stage, k, rank] of cells) of[k].set(stage, rank);
    const lanes = [];
    const laneOf = of.map((ranks) => {
      const fits = (lane) => [...ranks].every(([stage, rank]) => (lane.get(stage) ?? rank) === rank);
      let number = lanes.findIndex(fits);
      if (number < 0) number = lanes.push(new Map()) - 1;
      for (const [stage, rank] of ranks) lanes[number].set(stage, rank);
      return number;
    });
    const anywhere = new Map([...lanes].reverse().flatMap((lane) => [...lane]));
    const full = lanes.map((lane) => Array.from({ length: stages }, (_, s) => lane.get(s) ?? anywhere.get(s)));
    return { lanes: full, laneOf: full.length > 1 ? laneOf : [], m };
  }

  /** How many numbers there are, if none below the highest one is missing. */
  function wholeRange(numbers, part) {
    const there = new Set(numbers);
    const highest = numbers.reduce((a, b) => Math.max(a, b));
    let absent = 0;
    while (there.has(absent)) absent += 1;
    if (absent > highest) return highest + 1;
    throw new Error(
      part
        ? `micro-batch ${absent} is missing: micro-batches are numbered 0…${highest} and each needs its actions`
        : `stage ${absent} is missing: stages are numbered 0…${highest} and each needs a rank`,
    );
  }

  return { action, rankOf, stagesOf, recomputes, unpack, parse };
})();
