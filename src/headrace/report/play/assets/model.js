"use strict";
/* What was chosen → a schedule, costs and memory, with the fields of headrace's Schedule, Costs and Memory.

   Seconds and bytes are chosen for a rank's share of the model, a p-th of it, and one micro-batch. A stage that is one
   of v on its rank costs a v-th of that, and a segment its part of it: so schedules can be compared with each other. */

const Model = (() => {
  const GIB = 2 ** 30;
  const OWN = "custom";

  /** What cannot be shown. `ways`: settings that can, as [words, values by name]. */
  class Refusal extends Error {
    constructor(message, ways = []) {
      super(message);
      this.ways = ways;
    }
  }

  /** The schedule of `chosen`; one that nobody can run throws a Refusal. */
  function schedule(chosen, catalogue) {
    if (chosen.schedule === OWN) return own(chosen.rows);
    const entry = catalogue.find(({ name }) => name === chosen.schedule);
    const packed = lookUp(entry, chosen);
    if (packed.refused) throw new Refusal(packed.refused, nearest(entry, chosen));
    return Rows.unpack(packed, entry.name, Rows.recomputes(chosen.recompute, packed));
  }

  function own(text) {
    try {
      const found = Rows.parse(text, "this order");
      Check.check(found);
      return found;
    } catch (error) {
      throw new Refusal(error.message);
    }
  }

  /** What Python made for these numbers: an order, packed, or why there is none. */
  function lookUp({ cases, choice }, chosen) {
    const at = choice ? choice.values.indexOf(chosen.choice) : 0;
    const [ranks, most] = [cases[at].length, cases[at][0].length];
    const refused = `this page knows the catalogue’s orders for up to ${ranks} ranks and ${most} micro-batches`;
    return cases[at][chosen.ranks - 1]?.[chosen.micro_batches - 1] ?? { refused };
  }

  /** The numbers of ranks for which there is an order, nearest first. */
  function nearest(entry, chosen) {
    return entry.cases[0]
      .map((_, i) => i + 1)
      .filter((ranks) => !lookUp(entry, { ...chosen, ranks }).refused)
      .sort((a, b) => Math.abs(a - chosen.ranks) - Math.abs(b - chosen.ranks))
      .map((ranks) => [`${ranks} ranks`, { ranks }]);
  }

  /** How much longer than others each stage takes. */
  function factors({ heavy, factor, factors: list }, stages) {
    const at = { first: 0, middle: Math.floor(stages / 2), last: stages - 1 }[heavy];
    const numbers = Array.from({ length: stages }, (_, stage) => stage);
    if (heavy === "rising") return numbers.map((stage) => (stages > 1 ? 1 + ((factor - 1) * stage) / (stages - 1) : 1));
    if (heavy !== "own") return numbers.map((stage) => (stage === at ? factor : 1));
    const found = list.split(",").map((part) => (part.trim() ? Number(part) : NaN));
    const wrong = found.findIndex((value) => !(value >= 0 && value < Infinity));
    if (list.trim() && wrong >= 0)
      throw new Refusal(`factors: '${list.split(",")[wrong].trim()}' is not a number of 0 or more`);
    if (!list.trim() || found.length !== stages)
      throw new Refusal(`factors: there are ${stages} stages, so write ${stages} numbers with commas between`);
    return found;
  }

  function costs(chosen, { lanes, rows, segments }) {
    const stages = lanes[0].length;
    const share = rows.length / (stages * segments);
    const times = factors(chosen, stages);
    const each = (seconds) => times.map((factor) => seconds * share * factor);
    const forward = each(chosen.forward);
    const inputs = each(chosen.backward_input);
    const weights = each(chosen.backward_weight);
    return {
      forward,
      backward_input: inputs,
      backward_weight: weights,
      recompute: each(chosen.recompute_cost),
      update: chosen.update * (rows.length / stages),
      transfer: chosen.latency,
      message: (chosen.message * GIB) / segments,
      bandwidth: chosen.bandwidth * GIB,
      one_at_a_time: chosen.link === "one",
      pair: chosen.pair === 100 ? null : forward.map((f, s) => (f + inputs[s] + weights[s]) * (chosen.pair / 100)),
    };
  }

  /** A version that is put aside is the weights alone: a quarter of what Adam in single precision holds. */
  function memory(chosen, { lanes, rows, segments }) {
    const share = (rows.length / lanes[0].length) * GIB;
    const activations = (chosen.activations * share) / segments;
    return {
      activations,
      for_weight: (activations * chosen.for_weight) / 100,
      stage_input: (activations * chosen.stage_input) / 100,
      parameters: chosen.parameters * share,
      version: (chosen.parameters * share) / 4,
    };
  }

  const limit = (chosen) => (chosen.cap ? chosen.cap * GIB : null);

  /** What theory says of the bubble: {formula, bubble, applies}, or null if it does not say it without the costs. */
  function theory(chosen, catalogue, found) {
    if (chosen.schedule === OWN) return null;
    const { bubble, formula } = lookUp(catalogue.find(({ name }) => name === chosen.schedule), chosen);
    if (!formula) return null;
    const even = new Set(factors(chosen, found.lanes[0].length)).size === 1;
    const free = !chosen.latency && !chosen.message && !chosen.update;
    return { formula, bubble, applies: even && free && chosen.recompute === "never" };
  }

  return { OWN, Refusal, schedule, costs, memory, limit, theory };
})();
