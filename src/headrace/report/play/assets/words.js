"use strict";
/* What came out, in words: the same for eyes and for screen readers. */

const Words = (() => {
  const capitalised = (words) => words[0].toUpperCase() + words.slice(1);
  const count = (number, one, several = `${one}s`) => `${number} ${number === 1 ? one : several}`;

  /** Of one step: `shown` is {schedule, timeline, peaks}, `limit` the bytes of a rank or null, `theory` as in Model. */
  function step({ schedule, timeline, peaks }, limit, theory) {
    const { name, rows, m, segments } = schedule;
    const most = Math.max(...peaks);
    const closed = theory?.applies ? `, as theory says: ${theory.formula}` : "";
    const fits = limit === null ? "" : most <= limit ? ": it fits" : `: it does not fit into ${Units.bytes(limit)}`;
    return (
      `With ${name} on ${count(rows.length, "rank")} and ${count(m / segments, "micro-batch", "micro-batches")}, ` +
      `a step takes ${Units.seconds(timeline.makespan)}; ` +
      `the bubble is ${Units.percent(timeline.bubble)} of all ranks’ time${closed}. ` +
      `At most ${Math.max(...timeline.inFlight)} are in flight on a rank. ` +
      `The fullest holds ${Units.bytes(most)}${fits}.`
    );
  }

  /** Of the schedule that stands beside it, called `name`; it may be there or have been refused. */
  function beside(name, { timeline: { makespan } }, { refusal, timeline, peaks }) {
    if (refusal) return `${capitalised(name)} cannot stand beside it: ${refusal.message}.`;
    const more = makespan ? (timeline.makespan - makespan) / makespan : 0;
    const than = Math.abs(more) < 5e-4 ? "as long" : `${Units.percent(Math.abs(more))} ${more > 0 ? "longer" : "less"}`;
    return (
      `A step of ${name} takes ${Units.seconds(timeline.makespan)}, ${than}, with a bubble of ` +
      `${Units.percent(timeline.bubble)} and at most ${Units.bytes(Math.max(...peaks))}.`
    );
  }

  function theory(known) {
    if (!known) return "of all ranks’ time";
    const value = `${known.formula} = ${Units.percent(known.bubble)}`;
    return known.applies ? `closed form: ${value}` : `${value} if stages are equal, hops and updates free, nothing recomputed`;
  }

  /** Whether what each rank holds at most fits into `limit`. */
  function verdict(peaks, limit) {
    if (limit === null) return "no limit set";
    const over = peaks.flatMap((peak, rank) => (peak > limit ? [rank] : []));
    if (!over.length) return `fits: ${Units.bytes(limit)} per rank`;
    const where = over.length === peaks.length && over.length > 1 ? "on every rank" : `on rank ${over.join(", ")}`;
    return `does not fit: ${Units.bytes(Math.max(...peaks) - limit)} more than ${Units.bytes(limit)} ${where}`;
  }

  return { capitalised, step, beside, theory, verdict };
})();
