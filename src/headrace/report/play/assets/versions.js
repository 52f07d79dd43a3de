"use strict";
/* Which weights an asynchronous schedule reads, as headrace.schedule.versions says: how its updates (U) cut the stream
   of micro-batches into groups, and how long a stage must keep its old weights. */

const Versions = (() => {
  const count = (map, key) => map.set(key, (map.get(key) ?? 0) + 1).get(key);

  /** For each "stage,k" whose gradient an update uses, which update of that stage. */
  function groups(row) {
    const group = new Map();
    const waiting = new Map();
    const updates = new Map();
    for (const { stage, kind, k } of row) {
      if (kind === "B" || kind === "W") waiting.set(stage, [...(waiting.get(stage) ?? []), k]);
      if (kind !== "U") continue;
      const number = count(updates, stage) - 1;
      for (const done of waiting.get(stage) ?? []) group.set(`${stage},${done}`, number);
      waiting.delete(stage);
    }
    return group;
  }

  /** For each "stage,k" of a rank, the number of updates that the weights have had which it reads. */
  function read(schedule, row) {
    const done = new Map();
    const newest = new Map();
    for (const { stage, kind, k } of row) {
      if (kind === "U") count(done, stage);
      if (kind === "F") newest.set(`${stage},${k}`, done.get(stage) ?? 0);
    }
    if (schedule.delay === null) return newest;
    const group = groups(row);
    return new Map([...newest.keys()].map((cell) => [cell, Math.max((group.get(cell) ?? 0) - schedule.delay, 0)]));
  }

  /** What is wrong with the updates, in words; null if nothing is. */
  function fault(schedule) {
    const { name, delay, lanes, rows } = schedule;
    if (!rows.flat().some(({ kind }) => kind === "U"))
      return delay === null ? null : `delay=${delay}, but ${name} has no U`;
    if (lanes.length > 1)
      return "stages with replicas in several lanes cannot be updated within a step: the replicas would differ";
    for (const [rank, row] of rows.entries()) {
      const used = groups(row);
      const reads = read(schedule, row);
      const updates = new Map();
      for (const { stage, kind, k, name: what } of row) {
        const cell = `${stage},${k}`;
        const soFar = updates.get(stage) ?? 0;
        if (kind === "U") count(updates, stage);
        else if (kind === "F" && reads.get(cell) > soFar)
          return (
            `rank ${rank} runs ${what} after ${soFar} updates of stage ${stage}, ` +
            `but with delay=${delay} it reads the weights after ${reads.get(cell)}`
          );
        else if ((kind === "B" || kind === "W") && !used.has(cell))
          return `rank ${rank} runs ${what}, but no later U of stage ${stage} uses its gradient`;
      }
    }
    return null;
  }

  /** Where in a row an update puts a copy of the old weights aside, and where such a copy is read last: two Sets. */
  function stashed(schedule, row) {
    const reads = read(schedule, row);
    const last = new Map();
    row.forEach(({ stage, kind, k }, at) => {
      if (kind !== "U") last.set(`${stage},${reads.get(`${stage},${k}`)}`, at);
    });
    const [stashes, drops, updates] = [new Set(), new Set(), new Map()];
    row.forEach(({ stage, kind }, at) => {
      if (kind !== "U") return;
      const until = last.get(`${stage},${count(updates, stage) - 1}`) ?? -1;
      if (until <= at) return;
      stashes.add(at);
      drops.add(until);
    });
    return { stashes, drops };
  }

  return { fault, stashed };
})();
