"use strict";
/* How many bytes each rank holds over the time of a step, as headrace.simulate.memory counts them: what an action
   takes, it takes when it begins; what it gives back, it gives back when it ends. */

const Bytes = (() => {
  const spread = (value, stages) => (Array.isArray(value) ? value : Array(stages).fill(value ?? 0));

  /** Per rank, [seconds, bytes] wherever the bytes change, the first at 0. `memory`: the fields of headrace Memory. */
  function overTime(schedule, timeline, memory) {
    const stages = schedule.lanes[0].length;
    const names = ["activations", "for_weight", "stage_input", "parameters", "version", "working", "shared"];
    const of = Object.fromEntries(names.map((name) => [name, spread(memory[name], stages)]));
    return schedule.rows.map((row, rank) => {
      const always = Rows.stagesOf(schedule, rank).reduce((sum, stage) => sum + of.parameters[stage], 0);
      const moments = [[0, always]];
      const between = betweenStages(schedule, row, rank, of);
      let owed = 0; // the first of a pair gives back only when both end
      ofStages(schedule, row, of).forEach(([taken, left], at) => {
        const [takes, gives] = [taken + between[at][0], left + between[at][1] + owed];
        owed = schedule.pairs.has(row[at].name) ? gives : 0;
        const leaves = gives - owed;
        const { start, end } = timeline.tracks[rank][at];
        if (takes) moments.push([start, takes]);
        if (leaves) moments.push([end, leaves]);
      });
      let held = 0;
      return moments.sort(([a], [b]) => a - b).map(([moment, change]) => [moment, (held += change)]);
    });
  }

  const recomputedIn = (row) =>
    new Set(row.filter(({ kind }) => kind === "R").map(({ stage, k }) => `${stage},${k}`));

  /** What each action of a row takes at its begin and at its end, each stage by itself; less than 0 to give back. */
  function ofStages(schedule, row, of) {
    const recomputed = recomputedIn(row);
    const { stashes, drops } = Versions.stashed(schedule, row);
    return row.map(({ stage, kind, k }, at) => {
      let [takes, leaves] = [0, 0];
      if (kind === "F") takes = recomputed.has(`${stage},${k}`) ? of.stage_input[stage] : of.activations[stage];
      else if (kind === "R") takes = of.activations[stage] - of.stage_input[stage];
      else if (kind === "B") leaves = -of.activations[stage];
      else if (kind === "I") leaves = of.for_weight[stage] - of.activations[stage];
      else if (kind === "W") leaves = -of.for_weight[stage];
      const meanwhile = kind === "U" ? 0 : of.working[stage];
      return [
        takes + meanwhile + (stashes.has(at) ? of.version[stage] : 0),
        leaves - meanwhile - (drops.has(at) ? of.version[stage] : 0),
      ];
    });
  }

  /** The same of what waits between two stages of a rank, less what both keep: an output, then a gradient. */
  function betweenStages(schedule, row, rank, of) {
    const stages = schedule.lanes[0].length;
    const recomputed = recomputedIn(row);
    const here = (stage, k) => 0 <= stage && stage < stages && Rows.rankOf(schedule, stage, k) === rank;
    const both = (stage, k) => (recomputed.has(`${stage - 1},${k}`) ? 0 : of.shared[stage]);
    return row.map(({ stage, kind, k }) => {
      let [takes, leaves] = [0, 0];
      if (kind === "F") {
        if (here(stage - 1, k)) takes -= of.stage_input[stage];
        if (here(stage + 1, k)) takes += of.stage_input[stage + 1] - both(stage + 1, k);
      } else if (kind === "B" || kind === "I") {
        if (here(stage + 1, k)) takes -= of.stage_input[stage + 1];
        if (here(stage - 1, k)) leaves += of.stage_input[stage] + both(stage, k);
      }
      return [takes, leaves];
    });
  }

  const peak = (steps) => steps.reduce((most, [, held]) => Math.max(most, held), -Infinity);

  return { overTime, peak };
})();
