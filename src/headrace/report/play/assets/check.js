"use strict";
/* Why rows that someone wrote cannot run, in the words of headrace.schedule.check: what is missing, doubled or in the
   wrong place, or the cycle of ranks that wait for each other. */

const Check = (() => {
  const { rankOf } = Rows;

  /** Throws an Error that says what is wrong; returns nothing if nothing is. */
  function check(schedule) {
    parts(schedule);
    pairs(schedule);
    play(schedule);
    const fault = Versions.fault(schedule);
    if (fault) throw new Error(fault);
  }

  function parts(schedule) {
    const { m, segments, laneOf, lanes, name } = schedule;
    if (m % segments) throw new Error(`${name} has ${m} segments, which is no multiple of segments=${segments}`);
    const split = laneOf.findIndex((lane, k) => lane !== laneOf[k - (k % segments)]);
    if (split >= 0)
      throw new Error(`the segments of micro-batch ${Math.floor(split / segments)} travel in different lanes`);
    const kinds = new Map();
    schedule.rows.forEach((row, rank) => {
      for (const { stage, kind, k, name: what } of row) {
        const has = kinds.get(`${stage},${k}`) ?? "";
        if (has.includes(kind)) throw new Error(`rank ${rank} runs ${what} twice`);
        kinds.set(`${stage},${k}`, has + kind);
      }
    });
    for (let stage = 0; stage < lanes[0].length; stage += 1)
      for (let k = 0; k < m; k += 1) one(kinds.get(`${stage},${k}`) ?? "", rankOf(schedule, stage, k), stage, k);
  }

  function one(has, rank, stage, k) {
    if (!has.includes("F"))
      throw new Error(`${stage}F${k} is missing: rank ${rank} holds stage ${stage} and never runs it`);
    if (has.includes("B")) {
      const extra = [..."IW"].find((kind) => has.includes(kind));
      if (extra)
        throw new Error(
          `rank ${rank} runs both ${stage}B${k} and ${stage}${extra}${k}: B already contains I and W, so drop one`,
        );
    } else if (has.includes("I") !== has.includes("W")) {
      const [there, absent] = has.includes("I") ? "IW" : "WI";
      throw new Error(
        `${stage}${absent}${k} is missing: rank ${rank} runs ${stage}${there}${k}, ` +
          "and a split backward needs both parts",
      );
    } else if (!has.includes("I")) {
      throw new Error(
        `${stage}B${k} (or ${stage}I${k} and ${stage}W${k}) is missing: rank ${rank} never runs the backward`,
      );
    }
  }

  function pairs(schedule) {
    schedule.rows.forEach((row, rank) => {
      row.forEach((action, at) => {
        if (!schedule.pairs.has(action.name)) return;
        const other = row[at + 1];
        if (action.kind === "F" && other && "BI".includes(other.kind) && other.k !== action.k) return;
        throw new Error(
          `rank ${rank} overlaps ${action.name} with ${other ? other.name : "nothing"}: a pair is a forward, ` +
            "then a backward (B or I) of another micro-batch",
        );
      });
    });
  }

  /** Run everything in some valid order, or throw with the cycle of waits. */
  function play(schedule) {
    const alone = Simulate.dependencies(schedule);
    const { rows } = schedule;
    const next = rows.map(() => 0);
    const done = new Set();
    const missing = (rank) => {
      const row = rows[rank];
      const action = row[next[rank]];
      const both = schedule.pairs.has(action.name) ? [action, row[next[rank] + 1]] : [action];
      return both.flatMap(alone).find((needed) => !done.has(needed.name));
    };
    for (let moved = true; moved; ) {
      moved = false;
      rows.forEach((row, rank) => {
        while (next[rank] < row.length && !missing(rank)) {
          done.add(row[next[rank]].name);
          next[rank] += 1;
          moved = true;
        }
      });
    }
    let rank = rows.findIndex((row, at) => next[at] < row.length);
    if (rank < 0) return;
    const path = [];
    while (!path.some((step) => step.rank === rank)) {
      const wanted = missing(rank);
      path.push({ rank, waits: rows[rank][next[rank]].name, wanted: wanted.name });
      rank = rankOf(schedule, wanted.stage, wanted.k);
    }
    const cycle = path.slice(path.findIndex((step) => step.rank === rank));
    const sentences = cycle.map(({ rank: at, waits, wanted }, i) => {
      const blocker = cycle[(i + 1) % cycle.length];
      const who = blocker.rank === at ? "it" : `rank ${blocker.rank}`;
      return `rank ${at} waits at ${waits} for ${wanted}, which ${who} runs only after ${blocker.waits}`;
    });
    throw new Error(`${schedule.name} deadlocks: ${sentences.join("; ")}`);
  }

  return { check };
})();
